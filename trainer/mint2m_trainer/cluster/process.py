"""Processes by identity, not by number: a pid together with the clock tick at which it started.

Linux reuses pids. A journal that says "kill 4711" may name somebody else's process an hour later, so every check and
every signal compares the start tick first, and signals go through a pidfd, which keeps naming the process that was
compared even if it ends in between.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Environment variable by which every process of one run can be found again. Its value is the execution id.
MARKER = "MINT2M_EXECUTION_ID"

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ProcessId:
    """One process of this machine; equal only to itself, also after its pid is used again."""

    pid: int
    start_ticks: int


def identify(pid: int) -> ProcessId | None:
    """The identity of a live process, or None. A zombie has ended: only its parent still has to notice."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    state, start_ticks = fields[0], int(fields[19])  # fields 3 and 22 of proc(5)
    return None if state in ("Z", "X") else ProcessId(pid=pid, start_ticks=start_ticks)


def alive(process: ProcessId) -> bool:
    """Whether exactly this process still runs."""
    return identify(process.pid) == process


def marked(execution_id: str) -> tuple[ProcessId, ...]:
    """Every live process whose environment carries this run's marker, by pid.

    Processes of other users cannot be read and cannot have been started by this run.
    """
    wanted = f"{MARKER}={execution_id}".encode()
    hits = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            process = identify(int(entry.name))
            if process is not None:
                hits.append(process)
    return tuple(sorted(hits))


def ray_holders(directory: Path) -> tuple[ProcessId, ...]:
    """Every live process of a Ray that has a file of `directory` open, by pid.

    Ray's agents write their titles over their own environment, so no marker can be read from them. Both are required,
    Ray's command line and the open file: whoever reads a log of the run is no process of it.
    """
    inside = f"{directory}/"
    hits = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if not command.startswith(b"ray::") and b"/ray/" not in command:
                continue
            descriptors = list((entry / "fd").iterdir())
        except OSError:
            continue
        if any(_target(descriptor).startswith(inside) for descriptor in descriptors):
            process = identify(int(entry.name))
            if process is not None:
                hits.append(process)
    return tuple(sorted(hits))


def _target(descriptor: Path) -> str:
    """What an entry of /proc/PID/fd leads to; nothing where it was closed in the meantime."""
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def command_name(process: ProcessId) -> str:
    """A short name of a process for a person: the base name of its program, or Ray's title."""
    try:
        words = (_PROC / str(process.pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "process"
    first = words[0].decode("utf-8", errors="replace").strip()
    if first.startswith("ray::"):
        return first
    name = Path(first).name or "process"
    if name.startswith("python"):
        scripts = [word for word in words[1:] if word.endswith(b".py")]
        if scripts:
            return Path(scripts[0].decode("utf-8", errors="replace")).stem
    return name


def end(processes: Iterable[ProcessId], *, grace_s: float) -> tuple[ProcessId, ...]:
    """End processes: SIGTERM, then SIGKILL to those that stay. Returns those that are alive even then.

    Args:
        processes: identities; one whose pid now belongs to another process is left alone.
        grace_s: seconds between the signals, and again after the second.
    """
    remaining = tuple(process for process in processes if alive(process))
    for number in (signal.SIGTERM, signal.SIGKILL):
        descriptors = [fd for process in remaining if (fd := _open(process)) is not None]
        try:
            for descriptor in descriptors:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
            _wait(descriptors, grace_s)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        remaining = tuple(process for process in remaining if alive(process))
        if not remaining:
            break
    return remaining


def _open(process: ProcessId) -> int | None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # Compared after opening: from here on the descriptor names this very process or nothing.
    if alive(process):
        return descriptor
    os.close(descriptor)
    return None


def _wait(descriptors: list[int], seconds: float) -> None:
    """Wait until every process behind a pidfd has ended, or the time is over."""
    poller, waiting = select.poll(), set(descriptors)
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + seconds
    while waiting and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left * 1000):
            poller.unregister(descriptor)
            waiting.discard(descriptor)
