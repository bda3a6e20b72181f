"""How tokens are cut into chunks and shared over context-parallel ranks, and who holds which position.

A chunk's tokens are split over the ranks into adjacent shares whose sizes differ by at most one; the first ranks
take the larger ones. A rank whose share is empty still carries one ghost row through every layer, so that all
ranks run the same collectives; its results are outside pages, loss and counts.

A rank numbers its own rows in the order of their positions (its local ids). Owner and local id of a position are a
function of the layout alone: no table of the prefix's length is kept or sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


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
    """The cut fixed by the plan.

    `route` says how a query reaches rows of other ranks: `fetch` brings the rows to the query, `lse` sends the
    query to the rows and merges the ranks' partial attention by log-sum-exp.
    """

    chunk: int
    cp: int
    rank: int
    route: Literal["fetch", "lse"] = "fetch"

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.cp < 1 or not 0 <= self.rank < self.cp:
            raise ValueError(f"no layout has chunk {self.chunk}, rank {self.rank} of {self.cp}")
        if self.route not in ("fetch", "lse"):
            raise ValueError(f"a route is 'fetch' or 'lse', not {self.route!r}")

    def chunks(self, tokens: int) -> tuple[Span, ...]:
        """Spans of a prefix of `tokens`, in order; only the last may be short."""
        return tuple(
            Span(index=index, start=start, stop=min(start + self.chunk, tokens))
            for index, start in enumerate(range(0, tokens, self.chunk))
        )

    def counts(self, tokens: int) -> tuple[int, ...]:
        """Tokens of each rank, of a span of `tokens`."""
        base, larger = divmod(tokens, self.cp)
        return tuple(base + (rank < larger) for rank in range(self.cp))

    def share(self, span: Span) -> Share:
        """This rank's share of `span`."""
        return Share(span=span, counts=self.counts(span.tokens), rank=self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Who holds which row during one pass: the prefix [0, prefix) in chunks, then the rows of the pass itself.

    A rank's local ids count its prefix rows first and its rows of the pass behind them, so ascending local ids are
    ascending positions. `prefix` is where the pass starts, or 0 in a pass without a prefix.
    """

    layout: Layout
    prefix: int
    share: Share

    @property
    def own(self) -> int:
        """Prefix rows of this rank; the local id of its first row of the pass."""
        return self.held(self.layout.rank)

    def held(self, rank: int) -> int:
        """Prefix rows of a rank."""
        whole, rest = divmod(self.prefix, self.layout.chunk)
        return whole * self.layout.counts(self.layout.chunk)[rank] + self.layout.counts(rest)[rank]

    def locate(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Owner and local id of each position before the end of the pass's span.

        Args:
            positions: [N] int64.

        Returns:
            (rank [N], local id [N]), both int64.
        """
        layout, span = self.layout, self.share.span
        in_pass = positions >= self.prefix
        chunk = positions // layout.chunk
        whole = self.prefix // layout.chunk
        size = torch.where(chunk < whole, layout.chunk, self.prefix - whole * layout.chunk)  # the last may be short
        offset = torch.where(in_pass, positions - span.start, positions - chunk * layout.chunk)
        size = torch.where(in_pass, span.tokens, size)
        base, larger = size // layout.cp, size % layout.cp
        edge = larger * (base + 1)  # offsets before it lie with ranks that took one more
        rank = torch.where(
            offset < edge, offset // (base + 1), larger + (offset - edge) // base.clamp(min=1)
        )  # base is 0 only where every offset is before the edge
        within = offset - rank * base - torch.minimum(rank, larger)
        each = torch.tensor(layout.counts(layout.chunk), device=positions.device)  # [cp], rows of a whole chunk
        held = torch.tensor([self.held(r) for r in range(layout.cp)], device=positions.device)  # [cp]
        return rank, within + torch.where(in_pass, held[rank], chunk * each[rank])

    def positions(self, ids: Tensor) -> Tensor:
        """Positions of this rank's local ids; any shape, int64. The inverse of `locate`."""
        layout, rank = self.layout, self.layout.rank
        whole, rest = divmod(self.prefix, layout.chunk)
        counts = layout.counts(layout.chunk)
        each = max(counts[rank], 1)  # without rows in a whole chunk a rank has none in a shorter one
        chunk = (ids // each).clamp(max=whole)
        offsets = sum(counts[:rank]), sum(layout.counts(rest)[:rank])
        offset = torch.where(chunk < whole, offsets[0], offsets[1])
        before = chunk * layout.chunk + offset + (ids - chunk * counts[rank])
        return torch.where(ids < self.own, before, self.share.span.start + self.share.offset + (ids - self.own))
