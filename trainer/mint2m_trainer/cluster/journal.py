"""The ownership journal: what this run is about to create, what it created, and that it is gone again.

The rule: an intent is on disk before anything is created, the id right after. A driver that is killed between the
two leaves an intent without an id, and cleanup then looks for exactly that one thing. Each line carries the SHA-256
of the line before, so a line cannot be dropped or changed unseen. The file is created exclusively and locked while
its driver lives: two drivers can never share one, and cleanup can tell a dead driver from a slow one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.records import OwnedResource, OwnershipEvent
from mint2m_verify.files import read_once, sync_directory
from mint2m_verify.finding import FindingError, found

Kind = Literal["ray", "placement-group", "actor", "process", "directory"]
Event = Literal["opened", "intent", "created", "released", "absent", "closed", "cleanup-failed"]


def utc_now() -> str:
    """The time as documents write it; order never depends on it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def resource(
    kind: Kind,
    name: str,
    *,
    id: str | None = None,
    pid: int | None = None,
    start_ticks: int | None = None,
    node_ip: str | None = None,
) -> OwnedResource:
    """A thing this run owns, with as much of its identity as is known."""
    return OwnedResource(kind=kind, name=name, id=id, pid=pid, start_ticks=start_ticks, node_ip=node_ip)


#: Between the two halves of the first event's words: what was begun, and where the run keeps its progress.
_PROGRESS_IN = "; progress in "


def opened_words(run_id: str, progress: Path | None, *, root: Path) -> str:
    """What the first event of a run says; the journal is evidence, so a folder beside the run is named from there."""
    words = f"mint2m train of {run_id}"
    return words if progress is None else f"{words}{_PROGRESS_IN}{os.path.relpath(progress, root)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a journal says: its events in order, and the resources it still has to answer for."""

    plan_sha256: str
    execution_id: str
    events: tuple[OwnershipEvent, ...]

    @property
    def closed(self) -> bool:
        """Whether the run declared itself over and everything absent."""
        return self.events[-1].event == "closed"

    @property
    def progress(self) -> str | None:
        """Where the run keeps its progress, from its directory; not its own to remove. None where it keeps none."""
        return (self.events[0].detail or "").partition(_PROGRESS_IN)[2] or None

    @property
    def owned(self) -> tuple[OwnedResource, ...]:
        """Everything intended or created and not yet absent, in order, each with its best-known identity."""
        open_: dict[tuple[str, str], OwnedResource] = {}
        for event in self.events:
            if event.resource is None or event.event == "opened":
                continue
            key = (event.resource.kind, event.resource.name)
            if event.event == "absent":
                open_.pop(key, None)
            elif event.event in ("intent", "created"):
                open_[key] = event.resource
        return tuple(open_.values())


class Journal:
    """An open journal. Every line is written, flushed and synced before the call returns."""

    def __init__(
        self, path: Path, descriptor: int, *, plan_sha256: str, execution_id: str, lines: tuple[bytes, ...]
    ) -> None:
        self._path, self._descriptor = path, descriptor
        self._plan_sha256, self._execution_id = plan_sha256, execution_id
        self._sequence = len(lines)
        self._previous = sha256_hex(lines[-1]) if lines else None

    @classmethod
    def create(cls, path: Path, *, plan_sha256: str, execution_id: str) -> Self:
        """A new journal, locked until closed.

        Raises:
            FindingError: `ownership.exists`; a journal is never reused.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileExistsError as fault:
            raise FindingError(found("ownership.exists", file=str(path))) from fault
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sync_directory(path.parent)
        return cls(path, descriptor, plan_sha256=plan_sha256, execution_id=execution_id, lines=())

    @classmethod
    def reopen(cls, path: Path) -> tuple[Self, Ledger]:
        """The journal of a driver that has ended, locked for whoever cleans up after it.

        A last line without its newline was being written when the driver died: it is cut off, nothing was created
        for it, because creation waits for the sync.

        Raises:
            FindingError: `ownership.driver-alive` while its driver (or another cleanup) holds it.
        """
        read_once(path)  # refuses links and whatever is no regular file, with a finding
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            os.close(descriptor)
            raise FindingError(found("ownership.driver-alive", file=str(path))) from fault
        try:
            raw = read_once(path)
            whole = raw.rpartition(b"\n")[0] + b"\n" if b"\n" in raw else b""
            ledger = parse(whole, file=str(path))
            if len(whole) != len(raw):
                os.ftruncate(descriptor, len(whole))
        except FindingError:
            os.close(descriptor)
            raise
        journal = cls(
            path,
            descriptor,
            plan_sha256=ledger.plan_sha256,
            execution_id=ledger.execution_id,
            lines=tuple(whole.splitlines()),
        )
        return journal, ledger

    @property
    def path(self) -> Path:
        return self._path

    @property
    def execution_id(self) -> str:
        return self._execution_id

    def write(self, event: Event, about: OwnedResource | None = None, *, detail: str | None = None) -> None:
        """Append one event and wait until it is on disk; raises `OSError` with the journal as it was."""
        line = OwnershipEvent(
            sequence=self._sequence,
            previous_sha256=self._previous,
            time=utc_now(),
            plan_sha256=self._plan_sha256,
            execution_id=self._execution_id,
            event=event,
            resource=about,
            detail=detail,
        ).encode()
        before = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line + b"\n")
            if written != len(line) + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._descriptor)
        except OSError as fault:
            # Half a line is cut off again: the next one would make it the middle of a journal that nobody can read.
            os.ftruncate(self._descriptor, before)
            raise OSError(fault.errno, fault.strerror, str(self._path)) from fault
        self._sequence += 1
        self._previous = sha256_hex(line)

    def close(self) -> None:
        """Give up the lock; idempotent. Says nothing about what is owned."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> Ledger:
    """A journal as it lies on disk, whoever holds it. Raises `FindingError` (`ownership.*`)."""
    raw = read_once(path)
    return parse(raw.rpartition(b"\n")[0] + b"\n" if b"\n" in raw else b"", file=str(path))


def parse(raw: bytes, *, file: str) -> Ledger:
    """Whole lines of one journal, each chained to the one before.

    Raises:
        FindingError: `ownership.empty`, `ownership.chain-broken`, or what is wrong with a line.
    """
    events = tuple(_chained(raw.splitlines(), file=file))
    if not events:
        raise FindingError(found("ownership.empty", file=file))
    first = events[0]
    return Ledger(plan_sha256=first.plan_sha256, execution_id=first.execution_id, events=events)


def _chained(lines: list[bytes], *, file: str) -> Iterator[OwnershipEvent]:
    previous: str | None = None
    first: OwnershipEvent | None = None
    for number, line in enumerate(lines):
        event = OwnershipEvent.parse(line, file=f"{file}:{number + 1}")
        first = event if first is None else first
        expected = (number, previous, first.plan_sha256, first.execution_id)
        actual = (event.sequence, event.previous_sha256, event.plan_sha256, event.execution_id)
        if expected != actual:
            raise FindingError(
                found("ownership.chain-broken", file=f"{file}:{number + 1}", expected=str(expected), actual=str(actual))
            )
        previous = sha256_hex(line)
        yield event
