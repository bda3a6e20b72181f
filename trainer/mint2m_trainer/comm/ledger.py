"""A record of every collective, so that ranks can prove they took the same steps.

Each call is tagged (phase, chunk, layer, operation, direction). The running digest covers the tags in order and
leaves out byte counts, which differ by rank (an all-to-all sends what its tokens chose). Ranks compare digests at
each phase boundary; a difference names the ranks. Without it a rank that skipped or reordered a collective shows
only as a wrong number or as a hang far away.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """Where in the update a collective belongs; layer -1 is outside the layers, chunk -1 outside chunks."""

    phase: str
    chunk: int = -1
    layer: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTotal:
    """Calls and payload of one kind of collective on this rank."""

    phase: str
    operation: str
    calls: int
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last collective that a rank came to, and how many there were with it."""

    tag: Tag
    operation: str
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSummary:
    """What one rank reports: the digest that must agree, and its own totals."""

    calls: int
    digest: str
    totals: tuple[OperationTotal, ...]


class Ledger:
    """Collects calls; cheap enough to stay on."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._count = 0
        self._position: Position | None = None

    def record(self, tag: Tag, operation: str, sent_bytes: int) -> None:
        """Note one collective about to start."""
        self._digest.update(f"{tag.phase}\0{tag.chunk}\0{tag.layer}\0{operation}\n".encode())
        self._calls[tag.phase, operation] += 1
        self._bytes[tag.phase, operation] += sent_bytes
        self._count += 1
        self._position = Position(tag=tag, operation=operation, calls=self._count)

    @property
    def position(self) -> Position | None:
        """Where this rank is; None before its first collective. May be asked from another thread."""
        return self._position

    def digest(self) -> str:
        """SHA-256 over the tags so far, lower-case hex."""
        return self._digest.hexdigest()

    def summary(self) -> LedgerSummary:
        """Totals by phase and operation, in order of name."""
        return LedgerSummary(
            calls=self._count,
            digest=self.digest(),
            totals=tuple(
                OperationTotal(phase=phase, operation=operation, calls=calls, sent_bytes=self._bytes[phase, operation])
                for (phase, operation), calls in sorted(self._calls.items())
            ),
        )
