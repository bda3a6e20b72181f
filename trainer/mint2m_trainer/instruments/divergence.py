"""Two traces laid beside each other: the first layer in which they part, the token, and the ranks that had it.

The rule: first means first in the order of cause. A token's hidden state in a layer follows from that layer and lower
ones, at its own and earlier positions; so within a phase the lowest layer is first, within a layer selection before
experts before the hidden state, and then the lowest position. Chunks and ranks have no part in it, and the traces may
come from different layouts. Traces that have no token in common, or one that lacks what the other has, do not agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.instruments.trace import KINDS, Kind, RankTrace

#: (phase, turn, layer, kind), in which tokens of all ranks and chunks come together.
Place: TypeAlias = tuple[str, int, int, Kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A token's numbers in one place, and where they were computed."""

    values: tuple[float, ...]
    rank: int
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where two runs part: `left` or `right` is None where that run has no such token.

    `differing` of `compared` tokens differ in this place; `left_ranks` and `right_ranks` computed them. `relative` is
    the difference at `position`, relative to the hidden state's norm; 1 for a choice.
    """

    phase: str
    turn: int
    layer: int
    kind: Kind
    position: int
    left: Entry | None
    right: Entry | None
    relative: float
    differing: int
    compared: int
    left_ranks: tuple[int, ...]
    right_ranks: tuple[int, ...]

    def __str__(self) -> str:
        sides = f"ranks {_listed(self.left_ranks)} against {_listed(self.right_ranks)}"
        return (
            f"{self.phase}, layer {self.layer}, {self.kind}: position {self.position} on {_rank(self.left)} against "
            f"{_rank(self.right)}, {self.relative:.3g} relative; {self.differing} of {self.compared} tokens, {sides}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was laid beside what: `tokens` entries in `places` places, and the first difference if there is one."""

    places: int
    tokens: int
    first: Divergence | None


def compare(
    left: Sequence[RankTrace], right: Sequence[RankTrace], *, relative: float, common_only: bool = False
) -> Comparison:
    """Compare the traces of two runs, each given by all of its ranks.

    Args:
        relative: a hidden state may differ by this times its norm; 0 asks for equal bits. Choices must be equal.
        common_only: leave out tokens and places that one run has alone, as whole sequences have beside replays.

    Raises:
        InstrumentError: a rank is missing or there twice, strides differ, or there is nothing to compare.
    """
    ours, others = _merged(left), _merged(right)
    if left[0].stride != right[0].stride:
        raise InstrumentError(f"strides differ: {left[0].stride} and {right[0].stride}")
    places = _ordered(ours, others)
    tokens = 0
    first: Divergence | None = None
    for place in places:
        mine, theirs = ours.get(place, {}), others.get(place, {})
        if common_only:
            shared = mine.keys() & theirs.keys()
            mine, theirs = ({at: side[at] for at in shared} for side in (mine, theirs))
        tokens += len(mine.keys() & theirs.keys())
        if first is None:
            first = _difference(place, mine, theirs, relative)
    if first is None and tokens == 0:
        raise InstrumentError("the traces have no token in common")
    return Comparison(places=len(places), tokens=tokens, first=first)


def _merged(ranks: Sequence[RankTrace]) -> Mapping[Place, Mapping[int, Entry]]:
    """All ranks' entries by place and position."""
    if not ranks or sorted(trace.rank for trace in ranks) != list(range(ranks[0].world_size)):
        present = sorted(trace.rank for trace in ranks)
        raise InstrumentError(f"a run's trace has each of its ranks once, not {present}")
    if len({(trace.world_size, trace.stride) for trace in ranks}) != 1:
        raise InstrumentError("ranks of one run have one world size and one stride")
    merged: dict[Place, dict[int, Entry]] = {}
    for trace in ranks:
        for point in trace.points:
            entries = merged.setdefault((point.phase, point.turn, point.layer, point.kind), {})
            for position, values in zip(point.positions, point.values, strict=True):
                if position in entries:
                    raise InstrumentError(f"{point.phase}, layer {point.layer}: position {position} was traced twice")
                entries[position] = Entry(values=values, rank=trace.rank, chunk=point.chunk)
    return merged


def _ordered(ours: Mapping[Place, object], others: Mapping[Place, object]) -> list[Place]:
    """Places of both runs: phases as they came, then turn, layer, and the order in which a layer works."""
    phases = list(dict.fromkeys(place[0] for place in [*ours, *others]))
    return sorted({*ours, *others}, key=lambda place: (phases.index(place[0]), *place[1:3], KINDS.index(place[3])))


def _difference(
    place: Place, mine: Mapping[int, Entry], theirs: Mapping[int, Entry], relative: float
) -> Divergence | None:
    apart = list(_apart(place[3], mine, theirs, relative))
    if not apart:
        return None
    position, by = apart[0]
    held = [(mine.get(at), theirs.get(at)) for at, _ in apart]
    return Divergence(
        phase=place[0],
        turn=place[1],
        layer=place[2],
        kind=place[3],
        position=position,
        left=mine.get(position),
        right=theirs.get(position),
        relative=by,
        differing=len(apart),
        compared=len(mine.keys() | theirs.keys()),
        left_ranks=tuple(sorted({left.rank for left, _ in held if left is not None})),
        right_ranks=tuple(sorted({right.rank for _, right in held if right is not None})),
    )


def _apart(
    kind: Kind, mine: Mapping[int, Entry], theirs: Mapping[int, Entry], relative: float
) -> Iterator[tuple[int, float]]:
    """Positions that differ, ascending, and by how much."""
    for position in sorted(mine.keys() | theirs.keys()):
        left, right = mine.get(position), theirs.get(position)
        if left is None or right is None:
            yield position, 1.0
        elif left.values != right.values:
            if kind != "hidden":
                yield position, 1.0
                continue
            # The norm, the second number, is the scale of both.
            scale = max(abs(left.values[1]), abs(right.values[1]))
            by = max(abs(a - b) for a, b in zip(left.values, right.values, strict=True)) / scale if scale else 1.0
            if not by <= relative:  # NaN is no agreement
                yield position, by


def _rank(entry: Entry | None) -> str:
    return "no rank" if entry is None else f"rank {entry.rank} (chunk {entry.chunk})"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"
