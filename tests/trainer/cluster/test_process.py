"""Processes are told apart by start tick: a pid that was used again is never signalled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from mint2m_trainer.cluster.process import MARKER, ProcessId, alive, end, identify, marked, ray_holders


@contextmanager
def running(program: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that says when it is up; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}\nprint('up', flush=True)\nimport time\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_start_tick_is_the_one_psutil_derives_its_creation_time_from() -> None:
    with running("") as process:
        found = identify(process.pid)
        assert found is not None
        seconds = found.start_ticks / os.sysconf("SC_CLK_TCK") + psutil.boot_time()
        assert abs(seconds - psutil.Process(process.pid).create_time()) < 1.5


def test_a_process_with_another_start_tick_is_left_alone() -> None:
    with running("") as process:
        found = identify(process.pid)
        assert found is not None
        recycled = ProcessId(pid=found.pid, start_ticks=found.start_ticks - 1)
        assert end([recycled], grace_s=0.2) == ()
        assert process.poll() is None
        assert alive(found)
        assert not alive(recycled)


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    with running("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        found = identify(process.pid)
        assert found is not None
        assert end([found], grace_s=0.3) == ()
        assert process.wait(5) == -9


def test_a_process_gets_the_chance_to_leave_by_itself() -> None:
    with running("import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))") as process:
        found = identify(process.pid)
        assert found is not None
        end([found], grace_s=5)
        assert process.wait(5) == 7


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 10
    while identify(process.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert identify(process.pid) is None, "ended, though its parent has not looked yet"
    process.wait()


def test_the_marker_finds_this_execution_only() -> None:
    with running("", **{MARKER: "a" * 64}) as mine, running("", **{MARKER: "b" * 64}) as other:
        pids = {process.pid for process in marked("a" * 64)}
        assert mine.pid in pids
        assert other.pid not in pids
        assert marked("a" * 63) == (), "a prefix is another value"


def test_an_agent_of_ray_is_found_by_the_directory_it_writes_to_and_a_reader_of_its_log_is_not(tmp_path: Path) -> None:
    # Ray's agents overwrite their environment with their title, so the marker alone would miss them.
    log = tmp_path / "agent.log"
    log.touch()
    program = f"log = open({str(log)!r}); import sys; print('up', flush=True); sys.stdin.read()"
    started = [
        subprocess.Popen(
            [title, "-c", program], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for title in ("ray::DashboardAgent", "less")
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
        assert [process.pid for process in ray_holders(tmp_path)] == [started[0].pid]
        assert ray_holders(tmp_path / "agent") == ()
    finally:
        for process in started:
            process.kill()
            process.wait()
