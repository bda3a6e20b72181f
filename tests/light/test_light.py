"""What the install without extras gives: verification, planning and examination, with no torch to import."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "ray", "megatron")

VECTORS = Path(__file__).resolve().parents[1] / "vectors"


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mint2m", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(os.environ.get("MINT2M_LIGHT") != "1", reason="only in the environment of `nox -s light`")
def test_this_environment_has_no_training_package_and_the_project_is_installed_not_borrowed() -> None:
    assert [name for name in HEAVY if importlib.util.find_spec(name)] == []
    spec = importlib.util.find_spec("mint2m_verify")
    assert spec is not None
    assert "site-packages" in str(spec.origin)


def test_importing_the_verifier_brings_no_training_package() -> None:
    modules = "mint2m_verify.run, mint2m_verify.plan, mint2m_verify.doctor, mint2m_verify.receipt"
    code = f"import {modules}, sys, json; print(json.dumps(sorted({{n.split('.')[0] for n in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(done.stdout)) & {*HEAVY, "sigstore"}
