"""A Ray that somebody else runs: the run uses it, owns only what it made there, and leaves it running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mint2m_trainer.cluster.journal import read

pytestmark = [pytest.mark.ray, pytest.mark.slow]

HERE = Path(__file__).parent
RAY = Path(sys.executable).with_name("ray")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Address of a one-node cluster, and the environment in which its clients and workers run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "STALL_IN_PHASE": "grpo-0",
        "STALL_ANNOUNCED_AT": str(tmp_path / "stalled"),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        command = [str(RAY), "start", "--head", "--block", "--port", str(port), "--node-ip-address", "127.0.0.1"]
        command += ["--num-cpus", "3", "--include-dashboard", "false", "--temp-dir", folder, "--disable-usage-stats"]
        log = (tmp_path / "ray.log").open("wb")
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait(lambda: _listens(port), "the cluster")
            yield f"127.0.0.1:{port}", environment
            assert head.poll() is None, "the cluster must outlive the run"
        finally:
            os.killpg(head.pid, signal.SIGTERM)
            head.wait(60)
            log.close()


def test_a_run_uses_the_cluster_and_leaves_it_running(
    cluster: tuple[str, dict[str, str]], tmp_path: Path, tiny_deployment: Callable[..., Path]
) -> None:
    address, environment = cluster
    deployment = _deployment(tiny_deployment, tmp_path, address)
    out = tmp_path / "out"
    done = _mint2m(environment, "run", "--deployment", deployment, "--output", out, "--format", "json")
    report = json.loads(done.stdout)
    assert report["verdict"] == "accepted", report["findings"]
    kinds = {event.resource.kind for event in read(out / "ownership.jsonl").events if event.resource}
    assert kinds == {"ray", "placement-group", "actor"}, "no process or directory of the cluster is the run's"


def test_a_killed_driver_leaves_nothing_in_the_cluster(
    cluster: tuple[str, dict[str, str]], tmp_path: Path, tiny_deployment: Callable[..., Path]
) -> None:
    address, environment = cluster
    deployment = _deployment(tiny_deployment, tmp_path, address)
    out = tmp_path / "out"
    driver = subprocess.Popen(
        [
            *(sys.executable, str(HERE / "drive_run.py"), "stalling_backend:StallingUpdate"),
            *("run", "--deployment", str(deployment), "--output", str(out)),
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait(lambda: len(list(tmp_path.glob("stalled.*"))) == 2, "the phase")
    finally:
        driver.kill()
        driver.wait()
    words = ("cleanup", "--plan", out / "plan.json", "--ownership", out / "ownership.jsonl", "--format", "json")
    report = json.loads(_mint2m(environment, *words).stdout)
    assert report["exit_code"] == 0, report
    ledger = read(out / "ownership.jsonl")
    assert ledger.closed
    assert not ledger.owned
    pids = [event.resource.pid for event in ledger.events if event.resource and event.resource.pid]
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(("kind", "number"), [("actor", 1), ("placement-group", 1), ("actor", 2)], ids=str)
def test_a_driver_killed_before_the_journal_has_an_id_leaves_nothing_in_the_cluster(
    cluster: tuple[str, dict[str, str]], tmp_path: Path, tiny_deployment: Callable[..., Path], kind: str, number: int
) -> None:
    """Cleanup deletes nothing by name; it waits for Ray, which ends what a dead driver owned."""
    address, environment = cluster
    out = tmp_path / "out"
    command = [sys.executable, str(HERE / "drive_unjournalled.py"), kind, str(number), "run"]
    command += ["--deployment", str(_deployment(tiny_deployment, tmp_path, address)), "--output", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout
    unknown = [item for item in read(out / "ownership.jsonl").owned if item.kind == kind and item.id is None]
    assert len(unknown) == 1, "created, and only its name is known"
    words = ("cleanup", "--plan", out / "plan.json", "--ownership", out / "ownership.jsonl", "--format", "json")
    report = json.loads(_mint2m(environment, *words).stdout)
    assert report["exit_code"] == 0, report
    ledger = read(out / "ownership.jsonl")
    assert ledger.closed
    assert not ledger.owned


def _deployment(make: Callable[..., Path], tmp_path: Path, address: str) -> Path:
    path = make(tmp_path / "prepared")
    value = json.loads(path.read_text())
    value["ray_address"] = address
    path.write_text(json.dumps(value))
    return path


def _mint2m(environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mint2m", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300
    while not done():
        assert time.monotonic() < deadline, f"{what} was not reached"
        time.sleep(0.1)
