"""A run whose rank is killed, in capture and then in the reverse pass: the next ones go on, and the last verifies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.cluster.cleanup import cleanup
from mint2m_verify.finding import Verdict

pytestmark = [pytest.mark.ray, pytest.mark.slow]

HERE = Path(__file__).parent


def run(root: Path, profile: Path, *words: str, phase: str = "", tokens: int = 0) -> tuple[int, dict[str, Any]]:
    environment = os.environ | {
        "DIE_IN_PHASE": phase,
        "DIE_AFTER_TOKENS": str(tokens),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "drive_run.py"), "chunk_dying_backend:DyingUpdate"),
            *("run", "--deployment", "local", "--profile", str(profile), "--output", str(root)),
            *("--format", "json", *words),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_run_goes_on_from_its_progress_to_the_same_bytes_and_verifies(
    tmp_path: Path, tiny_profile: Callable[..., Path]
) -> None:
    profile, kept = tiny_profile(), tmp_path / "kept"
    option = ("--progress", str(kept))
    # 1023 rows in chunks of 256.
    code, report = run(tmp_path / "one", profile, *option, phase="capture-prefix", tokens=512)
    assert (code, report["findings"][0]["id"]) == (5, "rank.died")
    again = cleanup(tmp_path / "one/plan.json", tmp_path / "one/ownership.jsonl")
    assert again.verdict is Verdict.ACCEPTED
    assert f"{kept} is there" in [row.found for row in again.requirements]
    code, report = run(tmp_path / "two", profile, *option, phase="prefix-backward", tokens=255)
    assert (code, report["findings"][0]["id"]) == (5, "rank.died")

    other = tiny_profile()
    value = json.loads(other.read_bytes())
    value["grpo"]["clip_high"] = 0.3
    other.write_text(json.dumps(value))
    code, report = run(tmp_path / "other", other, *option)
    assert (code, report["findings"][0]["id"]) == (2, "progress.identity-mismatch")
    assert not (tmp_path / "other/ownership.jsonl").exists()

    code, report = run(tmp_path / "three", tiny_profile(), *option)
    assert code == 0, report["findings"]
    said = [note for note in report["not_checked"] if "took over" in note]
    assert len(said) == 1
    assert "capture-prefix 4 of 4 chunks" in said[0]
    assert "prefix-backward 1 of 4 chunks" in said[0]
    assert not kept.exists()

    code, report = run(tmp_path / "whole", tiny_profile())
    assert code == 0
    for name in ("artifacts/gradient.safetensors", "adapter/adapter_model.safetensors"):
        assert (tmp_path / "three" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
