"""What a report can show beside its rows: chains, placements, timelines, measures and tables, as plain values.

The rule: an exhibit illustrates and never decides. A verdict follows from findings alone; what stands here is the
evidence's own account, drawn as it was found, and a renderer that has no room for it leaves it out.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


class LinkState(enum.StrEnum):
    """How a link of a chain stands."""

    INTACT = "intact"
    BROKEN = "broken"
    FOLLOWS = "follows"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One artifact or stage that binds the next; `note` is the first thing wrong with it, or what it holds."""

    name: str
    note: str
    state: LinkState


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Links in the order in which each binds the next; the first broken one breaks what comes after it."""

    title: str
    links: tuple[Link, ...]

    @property
    def first_broken(self) -> Link | None:
        """The link at which the chain breaks first."""
        return next((link for link in self.links if link.state is LinkState.BROKEN), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRank:
    """A rank where it says that it ran; `as_planned` compares that with the plan."""

    rank: int
    node: str
    slot: int
    device: str
    as_planned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All ranks by node and slot."""

    ranks: tuple[PlacedRank, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in order of the first rank on each."""
        return tuple(dict.fromkeys(placed.node for placed in self.ranks))

    @property
    def slots(self) -> int:
        """Slots of the fullest node."""
        return max((placed.slot + 1 for placed in self.ranks), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBar:
    """One phase of one rank, in seconds since the first phase of any rank."""

    rank: int
    phase: str
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Phases of all ranks by the ranks' own clocks, which prove no order."""

    bars: tuple[PhaseBar, ...]

    @property
    def seconds(self) -> float:
        return max((bar.end_s for bar in self.bars), default=0.0)

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases in order of first appearance."""
        return tuple(dict.fromkeys(bar.phase for bar in self.bars))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({bar.rank for bar in self.bars}))

    def slowest(self) -> Mapping[str, float]:
        """Seconds of each phase on the rank that took longest, in order of first appearance."""
        return {phase: max(bar.seconds for bar in self.bars if bar.phase == phase) for phase in self.phases}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A labelled number, with its standing in words."""

    label: str
    value: float
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Numbers of one kind, drawn as bars from zero."""

    title: str
    note: str
    rows: tuple[Measure, ...]

    @property
    def largest(self) -> float:
        return max((row.value for row in self.rows), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Things beside each other, one a row, that the report's own rows say one by one with their standing."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Exhibit: TypeAlias = Chain | Placement | Timeline | Measures | Table
