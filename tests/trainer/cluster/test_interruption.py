"""A driver that dies or is interrupted in any phase leaves nothing that cleanup does not remove and prove absent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mint2m_trainer.cluster.directory import half_written
from mint2m_trainer.cluster.journal import read
from mint2m_trainer.cluster.process import marked
from mint2m_trainer.cluster.ray_session import ray_directory

pytestmark = pytest.mark.ray

HERE = Path(__file__).parent

EXACT_PHASES = (
    "bind",
    "initialize",
    "materialize",
    "capture-prefix",
    "score-old",
    "grpo-0",
    "grpo-1",
    "prefix-backward",
    "finalize",
    "optimizer-step",
    "checkpoint",
)
#: Before, during and after autograd, and with a checkpoint half on disk; the others are the slow cases.
FEW = (("capture-prefix", signal.SIGKILL), ("prefix-backward", signal.SIGINT), ("checkpoint", signal.SIGKILL))
ALL = [(phase, number) for phase in EXACT_PHASES for number in (signal.SIGINT, signal.SIGKILL)]
CASES = [
    pytest.param(phase, number, id=f"{phase}-{number.name}", marks=[] if (phase, number) in FEW else pytest.mark.slow)
    for phase, number in ALL
]


def _holders(directory: Path) -> list[str]:
    """Command lines of all processes that have a file of `directory` open, or name it: whoever they are."""
    holders = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            opened = [file.path for file in process.open_files()]
            words = process.cmdline()
            if any(text.startswith(f"{directory}/") for text in opened) or str(directory) in " ".join(words):
                holders.append(" ".join(words)[:80])
    return holders


@pytest.mark.parametrize(("phase", "number"), CASES)
def test_an_interrupted_run_is_cleaned_up_completely(
    phase: str, number: signal.Signals, tmp_path: Path, tiny_profile: Callable[..., Path]
) -> None:
    root = tmp_path / "out"
    driver = _start(tmp_path, root, tiny_profile(), phase)
    try:
        _wait_for_stall(driver, tmp_path, ranks=1 if phase == "checkpoint" else 2)
        execution_id = read(root / "ownership.jsonl").execution_id
        directory = ray_directory(execution_id)
        assert len(marked(execution_id)) >= 5, "Ray and its workers should be running"
        assert any("Agent" in text for text in _holders(directory)), "Ray's agents, whose marker cannot be read"
        os.kill(driver.pid, number)
        text, _ = driver.communicate(timeout=180)
    finally:
        driver.kill()
    if number is signal.SIGINT:
        assert driver.returncode == 2
        assert "run.interrupted" in text
        assert not marked(execution_id), "after SIGINT the driver cleans up by itself"
        assert _holders(directory) == []
    else:
        assert driver.returncode == -signal.SIGKILL

    first = _cleanup(root)
    assert first["exit_code"] == 0, first
    assert first["summary"] == "nothing of this run is left"
    assert not marked(execution_id)
    assert _holders(directory) == []
    assert not directory.exists()
    assert not list(half_written(root))
    assert read(root / "ownership.jsonl").closed
    assert not read(root / "ownership.jsonl").owned
    assert not (root / "receipt.json").exists()
    assert not (root / "attestations").exists()

    journal = (root / "ownership.jsonl").read_bytes()
    assert _cleanup(root)["exit_code"] == 0
    assert (root / "ownership.jsonl").read_bytes() == journal, "a closed journal is never written to"


#: The coordinator is the first actor; the ranks' processes are known, and journalled again, when both have answered.
CREATED = [
    ("directory", 1),
    ("process", 1),
    ("ray", 1),
    ("actor", 1),
    ("placement-group", 1),
    ("actor", 2),
    ("actor", 4),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), CREATED, ids=lambda value: str(value))
def test_a_driver_killed_between_creating_and_journalling_leaves_nothing(
    kind: str, number: int, tmp_path: Path, tiny_profile: Callable[..., Path]
) -> None:
    root = tmp_path / "out"
    command = [sys.executable, str(HERE / "drive_unjournalled.py"), kind, str(number)]
    command += ["run", "--deployment", "local", "--profile", str(tiny_profile()), "--output", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout
    ledger = read(root / "ownership.jsonl")
    named = [event for event in ledger.events if event.resource is not None and event.resource.kind == kind]
    assert [event.event for event in named].count("created") == number - 1
    assert kind in {item.kind for item in ledger.owned}, "what was intended is owned, with or without an id"

    report = _cleanup(root)
    assert report["exit_code"] == 0, report
    assert not marked(ledger.execution_id)
    directory = ray_directory(ledger.execution_id)
    assert _holders(directory) == []
    assert not directory.exists()
    after = read(root / "ownership.jsonl")
    assert after.closed
    assert not after.owned
    assert not (root / "receipt.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["capture-prefix", "grpo-0", "checkpoint"])
def test_a_run_whose_own_ray_loses_its_head_says_so_and_leaves_nothing(
    phase: str, tmp_path: Path, tiny_profile: Callable[..., Path]
) -> None:
    root = tmp_path / "out"
    driver = _start(tmp_path, root, tiny_profile(), phase)
    try:
        _wait_for_stall(driver, tmp_path, ranks=1 if phase == "checkpoint" else 2)
        ledger = read(root / "ownership.jsonl")
        (head,) = [item for item in ledger.owned if item.name == "gcs_server"]
        assert head.pid is not None
        os.kill(head.pid, signal.SIGKILL)
        text, _ = driver.communicate(timeout=180)
    finally:
        driver.kill()
    assert driver.returncode == 5, text
    assert "ray.head-lost" in text
    assert not marked(ledger.execution_id), "its own Ray is ended by pid, with or without a head"
    assert _holders(ray_directory(ledger.execution_id)) == []
    failed = json.loads((root / "failed-receipt.json").read_bytes())
    assert (failed["stopped_in"], failed["finding"]["id"]) == (phase, "ray.head-lost")
    assert _cleanup(root)["exit_code"] == 0
    assert read(root / "ownership.jsonl").closed


def test_cleanup_refuses_while_the_driver_lives(tmp_path: Path, tiny_profile: Callable[..., Path]) -> None:
    root = tmp_path / "out"
    driver = _start(tmp_path, root, tiny_profile(), "materialize")
    try:
        _wait_for_stall(driver, tmp_path, ranks=2)
        report = _cleanup(root)
        assert report["exit_code"] == 2
        assert [finding["id"] for finding in report["findings"]] == ["ownership.driver-alive"]
        assert driver.poll() is None
        driver.send_signal(signal.SIGTERM)
        text, _ = driver.communicate(timeout=180)
    finally:
        driver.kill()
    assert driver.returncode == 2
    assert "run.interrupted" in text


def _start(tmp_path: Path, root: Path, profile: Path, phase: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "STALL_IN_PHASE": phase,
        "STALL_ANNOUNCED_AT": str(tmp_path / "stalled"),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [
        sys.executable,
        str(HERE / "drive_run.py"),
        "stalling_backend:StallingUpdate",
        *("run", "--deployment", "local", "--profile", str(profile), "--output", str(root)),
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def _wait_for_stall(driver: subprocess.Popen[str], tmp_path: Path, *, ranks: int) -> None:
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob("stalled.*"))) < ranks:
        assert driver.poll() is None, driver.stdout.read() if driver.stdout else ""
        assert time.monotonic() < deadline, "the phase was not reached"
        time.sleep(0.05)


def _cleanup(root: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "mint2m", "cleanup", "--format", "json"]
    command += ["--plan", str(root / "plan.json"), "--ownership", str(root / "ownership.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    report: dict[str, object] = json.loads(done.stdout)
    assert report["exit_code"] == done.returncode
    return report
