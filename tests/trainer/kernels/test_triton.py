"""Triton's kernels pass every test of this folder that takes an implementation, under Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_interpreted_triton_kernels_pass_what_the_others_pass() -> None:
    files = [str(HERE / name) for name in ("test_selection.py", "test_attention.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", "triton"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=HERE.parents[2])
    assert done.returncode == 0, done.stdout[-4000:]
    counted = re.search(r"(\d+) passed(?!.*skipped)", done.stdout)
    assert counted is not None, done.stdout[-4000:]
    assert int(counted[1]) >= 50
