"""A late rank's flight record: beside its log, written when a phase has lasted too long, and read by the driver.

The rule: a rank writes by itself, from a thread of its own, once the phase's time is over; nothing can be asked of a
rank that hangs. A phase that ends after all takes its record back. What the driver reads is JSON, bounded, and nothing
but words for people comes of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import FindingError

#: Longest record that is read; ranks write less.
_LIMIT_BYTES = 4 << 20

#: Characters of a name in it; torch's are shorter.
_NAME = 100

#: Seconds for which the end of a phase waits for a record that is being written.
_WRITTEN_S = 10.0

_POLL_S = 0.1

_LOG = logging.getLogger("mint2m.rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A collective that was begun and has not ended: its name, its number within its group, and the group's."""

    operation: str
    number: int
    group: str

    def __str__(self) -> str:
        return f"{self.operation}, number {self.number} of {self.group}"


@contextlib.contextmanager
def recording(place: Path, after_s: float, take: Callable[[], bytes | None]) -> Iterator[None]:
    """Scope of one phase: what `take` returns goes to `place` once the scope has lasted `after_s` seconds.

    Args:
        take: called from another thread; None where there is nothing to write.
    """
    timer = threading.Timer(after_s, _write, (place, take))
    timer.daemon = True  # it must never keep a rank alive
    timer.start()
    try:
        yield
    except BaseException:
        timer.cancel()  # what is there already says how it came to this
        raise
    timer.cancel()
    timer.join(_WRITTEN_S)
    with contextlib.suppress(OSError):
        place.unlink()  # late, and no fault; or, nearly always, not there


def _write(place: Path, take: Callable[[], bytes | None]) -> None:
    raw = take()
    if raw is not None:
        # A full disk is told by what has to be written; a record that cannot be is no fault.
        with contextlib.suppress(FindingError):
            write_atomic(place, raw)
            _LOG.warning("the phase's time is over; %s has the collectives", place.name)


def records_of(root: Path, ranks: Sequence[int], *, seconds: float, look: Callable[[], None]) -> str:
    """In words, what the flight records of late ranks say, once all are there or the time is over.

    Args:
        look: raises where waiting should end.
    """
    deadline = time.monotonic() + seconds
    while not all((root / layout.rank_flight(rank)).exists() for rank in ranks) and time.monotonic() < deadline:
        look()
        time.sleep(_POLL_S)
    return "; ".join(words for rank in ranks if (words := _said(root, rank)))


def _said(root: Path, rank: int) -> str | None:
    name = layout.rank_flight(rank)
    try:
        first = unfinished(read_once(root / name, name=name, limit=_LIMIT_BYTES))
    except FindingError:
        return None  # none was written: the rank is in no group, or could not write
    except ValueError as fault:
        return f"{name}: {fault}"
    return f"rank {rank} in {'none' if first is None else first} ({name})"


def unfinished(raw: bytes) -> Unfinished | None:
    """The first collective of a record that has not ended; None where all have.

    Gloo only says that one was retired, NCCL also that it is completed. Raises `ValueError` for what is no record.
    """
    try:
        entries = json.loads(raw).get("entries", [])
        waiting = [entry for entry in entries if not entry["retired"] and entry["state"] != "completed"]
        if not waiting:
            return None
        first = min(waiting, key=lambda entry: int(entry["record_id"]))
        name, description = first["process_group"]
        return Unfinished(
            operation=str(first["profiling_name"])[:_NAME],
            number=int(first["collective_seq_id"]),
            group=str(description or name)[:_NAME],
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as fault:
        raise ValueError(f"no flight record: {type(fault).__name__}") from fault
