"""What a run on this machine left: its own Ray, its processes, its directory. Needs the journal and /proc, not Ray.

The rule: a process is ended only when the journal names its pid and start tick, when its environment carries the
execution's own marker, or when it is of the Ray whose directory this execution made; a directory is removed only when
its name is the one that this execution made. Whatever is then not there any more is journalled as absent, one line
each; nothing else is.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from mint2m_trainer.cluster.journal import Journal, read, resource
from mint2m_trainer.cluster.process import ProcessId, alive, end
from mint2m_trainer.cluster.ray_session import processes_of, ray_directory
from mint2m_verify.documents.records import OwnedResource

#: Seconds between SIGTERM and SIGKILL, and after SIGKILL.
_GRACE_S = 3.0

#: How often to look for processes that were started while others ended.
_ROUNDS = 5


def settle_local(journal: Journal) -> None:
    """End everything of this execution on this machine and journal the absence of each thing that is gone."""
    owned = read(journal.path).owned
    known = {process for item in owned if (process := process_of(item)) is not None}
    end(known | set(processes_of(journal.execution_id)), grace_s=_GRACE_S)
    for _ in range(_ROUNDS):
        # One that was being ended may have started another: a Ray interrupted while it starts does.
        if not end(processes_of(journal.execution_id), grace_s=_GRACE_S) and not processes_of(journal.execution_id):
            break
    # Only now, with no process of this execution left, can its actors and its group be gone with certainty: they
    # lived inside a Ray that was this run's alone.
    ray_ended = not processes_of(journal.execution_id) and not any(alive(process) for process in known)
    for item in owned:
        if item.kind == "directory":
            continue
        process = process_of(item)
        if ray_ended or (item.kind == "process" and process is not None and not alive(process)):
            journal.write("absent", item)
    if ray_ended:
        for item in owned:
            if item.kind == "directory" and _removed(Path(item.name), journal.execution_id):
                journal.write("absent", item)


def process_of(item: OwnedResource) -> ProcessId | None:
    """The process that a journalled resource is, where the journal knows it."""
    if item.pid is None or item.start_ticks is None:
        return None
    return ProcessId(pid=item.pid, start_ticks=item.start_ticks)


def still_there(execution_id: str, owned: tuple[OwnedResource, ...]) -> tuple[OwnedResource, ...]:
    """What of a run on this machine exists right now, whatever its journal says."""
    here = [item for item in owned if (process := process_of(item)) is not None and alive(process)]
    known = {item.pid for item in here}
    here += [
        resource("process", f"pid {process.pid}", pid=process.pid, start_ticks=process.start_ticks)
        for process in processes_of(execution_id)
        if process.pid not in known
    ]
    directory = ray_directory(execution_id)
    if directory.exists():
        here.append(resource("directory", str(directory)))
    return tuple(here)


def _removed(directory: Path, execution_id: str) -> bool:
    """Remove Ray's directory if it is the one that this execution made; whether it is gone."""
    if directory.name != ray_directory(execution_id).name or directory.is_symlink():
        return False
    deadline = time.monotonic() + _GRACE_S
    while directory.exists() and time.monotonic() < deadline:
        # A process that is just ending may still write a log line into a directory being removed.
        shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()
