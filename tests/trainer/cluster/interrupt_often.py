"""Interrupts run after run and says what each left: `python interrupt_often.py COUNT PROFILE`, JSON on stdout.

Meant for namespaces of its own (`test_no_leak.py`), where every process, port and file is the script's or was left by a
run. A run is stopped at another moment and by another signal each time, and cleaned up after.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
WORK = Path("/tmp/interrupted")

#: `journal`: as soon as the journal says anything, while Ray is started; the others stand still inside a phase.
MOMENTS = ("journal", "bind", "capture-prefix", "grpo-0", "prefix-backward", "optimizer-step", "checkpoint")

#: As many as have no divisor in common with the moments, so that twenty runs are twenty cases.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)

#: States of /proc/net/tcp and /proc/net/unix in which somebody waits for others.
_LISTEN, _ACCEPTING = "0A", "00010000"


def seen() -> dict[str, list[str]]:
    """What is there now, by kind; this script, its parents and what it works in left out."""
    return {
        "processes": sorted(_processes()),
        "ports": sorted(_ports()),
        "sockets": sorted(_sockets()),
        "shared memory": sorted(path.name for path in Path("/dev/shm").iterdir()) + _segments(),
        "temporary files": sorted(
            str(path) for level in ("*", "*/*") for path in Path("/tmp").glob(level) if not _own(path)
        ),
    }


def _own(path: Path) -> bool:
    return path == WORK or WORK in path.parents


def _processes() -> list[str]:
    mine = {os.getpid(), os.getppid(), 1}
    numbers = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()} - mine
    found = []
    for number in numbers:
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it went while it was looked at
        if state != "Z":  # ended, and waits for pid 1 to take notice
            found.append(words[:120])
    return found


def _ports() -> list[str]:
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == _LISTEN]


def _sockets() -> list[str]:
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [row[-1] for row in rows if row[3] == _ACCEPTING]


def _segments() -> list[str]:
    return Path("/proc/sysvipc/shm").read_text().splitlines()[1:]


def interrupt(number: int, profile: Path) -> dict[str, object]:
    """One run, stopped; what its driver and its cleanup came to."""
    moment, kind = MOMENTS[number % len(MOMENTS)], SIGNALS[number % len(SIGNALS)]
    root, stalled = WORK / f"run-{number}", WORK / f"stalled-{number}"
    environment = os.environ | {
        "STALL_IN_PHASE": moment,
        "STALL_ANNOUNCED_AT": str(stalled),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    words = ["run", "--deployment", "local", "--profile", str(profile), "--output", str(root)]
    command = [sys.executable, str(HERE / "drive_run.py"), "stalling_backend:StallingUpdate", *words]
    with (WORK / f"driver-{number}.log").open("wb") as log:
        driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    deadline = time.monotonic() + 240
    while not _reached(moment, root, stalled) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    reached = _reached(moment, root, stalled) and driver.poll() is None
    driver.send_signal(kind)
    code = driver.wait(timeout=180)
    return {"moment": moment, "signal": kind.name, "reached": reached, "driver": code, "cleanup": _cleanup(root)}


def _reached(moment: str, root: Path, stalled: Path) -> bool:
    journal = root / "ownership.jsonl"
    if moment == "journal":
        return journal.is_file() and journal.stat().st_size > 0
    return len(list(stalled.parent.glob(f"{stalled.name}.*"))) >= (1 if moment == "checkpoint" else 2)


def _cleanup(root: Path) -> int:
    command = [sys.executable, "-m", "mint2m", "cleanup"]
    command += ["--plan", str(root / "plan.json"), "--ownership", str(root / "ownership.jsonl")]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=180).returncode


if __name__ == "__main__":
    WORK.mkdir()
    # torch makes one for each user when it is imported, whoever does so; what a run put into it would be seen.
    Path("/tmp", f"torchinductor_{getpass.getuser()}").mkdir()
    before = seen()
    runs = [interrupt(number, Path(sys.argv[2])) for number in range(int(sys.argv[1]))]
    half = [str(path) for path in WORK.rglob("*") if ".partial" in path.name]
    print(json.dumps({"before": before, "after": seen(), "half-written": half, "runs": runs}))
