"""Run after run is interrupted, in namespaces of their own, and nothing at all is left there after their cleanup."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.ray]

HERE = Path(__file__).parent

#: Processes, network, System V memory, /tmp and /dev/shm that nobody else uses; the shell stays as pid 1 and reaps.
UNSHARE = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--net", "--ipc", "--mount")
PREPARE = 'mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && ip link set lo up || exit 99; "$@"; exit $?'


def _permitted() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = [*UNSHARE, "sh", "-c", PREPARE, "sh", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("count", [3, 20])
def test_nothing_is_left_after_interrupted_runs(count: int, tiny_profile: Callable[..., Path]) -> None:
    if not _permitted():
        pytest.skip("namespaces: needs unshare(1) and the right to use it")
    if Path("/tmp") in HERE.resolve().parents:
        pytest.skip("the checkout lies below /tmp, which the namespaces have their own of")
    # The profile lies below the /tmp that the namespace does not see.
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="mint2m-", suffix=".profile.json") as profile:
        profile.write(tiny_profile().read_bytes())
        profile.flush()
        words = [sys.executable, str(HERE / "interrupt_often.py"), str(count), profile.name]
        done = subprocess.run(
            [*UNSHARE, "sh", "-c", PREPARE, "sh", *words], capture_output=True, text=True, check=False, timeout=3600
        )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    assert len(told["runs"]) == count
    for run in told["runs"]:
        assert run["reached"], run
        assert run["driver"] == (-9 if run["signal"] == "SIGKILL" else 2), run
        assert run["cleanup"] == 0, run
    assert told["half-written"] == []
    assert told["after"] == told["before"]
