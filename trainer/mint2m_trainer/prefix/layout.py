"""How tokens are cut into chunks and shared over context-parallel ranks.

A chunk's tokens are split over the ranks into adjacent shares whose sizes differ by at most one; the first ranks
take the larger ones. A rank whose share is empty still carries one ghost row through every layer, so that all
ranks run the same collectives; its results are outside pages, loss and counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Global positions [start, stop) of one chunk."""

    index: int
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """How many positions."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part of a span; `counts` are the parts of all ranks."""

    span: Span
    counts: tuple[int, ...]
    rank: int

    @property
    def count(self) -> int:
        """Tokens of this rank; zero makes it a ghost."""
        return self.counts[self.rank]

    @property
    def offset(self) -> int:
        """Tokens of the span that lower ranks hold."""
        return sum(self.counts[: self.rank])

    @property
    def rows(self) -> int:
        """Rows this rank carries: its tokens, or one ghost."""
        return max(self.count, 1)

    @property
    def local(self) -> slice:
        """This rank's tokens within the span."""
        return slice(self.offset, self.offset + self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The cut fixed by the plan. `route` says how remote rows are reached; only `fetch` exists so far."""

    chunk: int
    cp: int
    rank: int
    route: Literal["fetch", "lse"] = "fetch"

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.cp < 1 or not 0 <= self.rank < self.cp:
            raise ValueError(f"no layout has chunk {self.chunk}, rank {self.rank} of {self.cp}")
        if self.route != "fetch":
            raise ValueError(f"route {self.route!r} is not supported; 'fetch' is")

    def chunks(self, tokens: int) -> tuple[Span, ...]:
        """Spans of a prefix of `tokens`, in order; only the last may be short."""
        return tuple(
            Span(index=index, start=start, stop=min(start + self.chunk, tokens))
            for index, start in enumerate(range(0, tokens, self.chunk))
        )

    def share(self, span: Span) -> Share:
        """This rank's share of `span`."""
        base, larger = divmod(span.tokens, self.cp)
        counts = tuple(base + (rank < larger) for rank in range(self.cp))
        return Share(span=span, counts=counts, rank=self.rank)
