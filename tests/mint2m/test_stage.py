"""A whole promotion run through the command line: interrupted, resumed, verified; and refused where it must be."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site(mint2m: Run, tmp_path: Path) -> Path:
    """Keys of planner and operator, and the signed plan of the small packaged set."""
    for name in ("planner", "operator"):
        assert mint2m("keys", "new", tmp_path / name).returncode == 0
    made = mint2m(
        "stage", "plan", "--deployment", "local-small", "--instance-nonce", "one",
        "--key", tmp_path / "planner.key", "--output", tmp_path / "plan",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return tmp_path


def words(site: Path, run_id: str) -> list[str]:
    options = {
        "--validation-plan": site / "plan" / "validation-plan.json",
        "--run-id": run_id,
        "--evidence": site / "evidence",
        "--key": site / "operator.key",
        "--plan-key": site / "planner.pub",
    }
    return [str(word) for pair in options.items() for word in pair]


def test_a_stage_out_of_order_says_which_comes_first_and_exits_2(mint2m: Run, site: Path) -> None:
    done = mint2m("stage", "actor", *words(site, str(uuid.uuid4())), "--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"][0]["id"]) == (2, "stage.parent-missing")
    assert report["findings"][0]["expected"] == "nccl"
    assert not (site / "evidence").exists()


def test_an_unknown_stage_to_verify_through_is_wrong_usage(mint2m: Run, site: Path) -> None:
    done = mint2m("verify", "chain", site, "--consistency-only", "--through", "kernels", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["id"]) == (2, "usage.invalid")


@pytest.mark.ray
@pytest.mark.slow
def test_all_stages_run_in_one_command_go_on_after_an_interruption_and_verify(mint2m: Run, site: Path) -> None:
    command = ["stage", "all", *words(site, str(uuid.uuid4()))]
    first = subprocess.Popen([sys.executable, "-m", "mint2m", *command], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 900
    while not (site / "evidence/attestations/nccl.sigstore.json").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(5)
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=300)
    assert first.returncode == 2, out
    assert "run.interrupted" in out and "absent" in out
    assert list(site.glob("evidence.work-*")) == []

    done = mint2m(*command, timeout=3000)
    assert done.returncode == 0, done.stdout
    assert "sealed already" in done.stdout or "ACCEPTED" in done.stdout
    verified = mint2m(
        "verify", "chain", site / "evidence", "--key", site / "operator.pub", "--plan-key", site / "planner.pub"
    )
    assert verified.returncode == 0, verified.stdout
    assert "7 stages, through scale-2m" in verified.stdout
    again = mint2m("stage", "doctor", *command[2:])
    assert again.returncode == 2 and "stage.repeated" in again.stdout
