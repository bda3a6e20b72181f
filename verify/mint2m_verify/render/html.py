"""The report as one HTML page: no script, no request, readable from disk, on paper and by a screen reader.

The rule: the template escapes everything (jinja2's autoescape), and what comes from evidence passes `escape` before, so
that no name can hide, reorder or imitate what the page says. The page forbids itself to load anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from mint2m_verify import __version__
from mint2m_verify.catalogue import entry
from mint2m_verify.exhibits import Chain, Measures, PlacedRank, Placement, Table, Timeline
from mint2m_verify.finding import Finding, Report, Verdict
from mint2m_verify.render.escape import escape
from mint2m_verify.render.places import place
from mint2m_verify.render.text import WORDS

if TYPE_CHECKING:
    from jinja2 import Template

#: Places listed under one finding id.
_MOST_PLACES = 10_000

#: Consequences listed under one cause.
_MOST_FOLLOWING = 20

_MARKS = {Verdict.ACCEPTED: ("good", "✓"), Verdict.FAILED: ("bad", "✕"), Verdict.INTERNAL: ("bad", "✕")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One place where something is wrong."""

    place: str
    details: tuple[tuple[str, str], ...]
    following: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All causes of one finding id, with its explanation."""

    id: str
    message: str
    explanation: str
    causes: tuple[Cause, ...]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One rank's bars: x and width in thousandths of the whole time."""

    rank: int
    y: int
    bars: tuple[tuple[int, float, float, str], ...]  # colour index, x, width, words


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One node's slots; None where no rank is."""

    node: str
    slots: tuple[PlacedRank | None, ...]


def render_html(report: Report) -> str:
    """The whole page."""
    mark, sign = _MARKS.get(report.verdict, ("warn", "!"))
    return _template().render(
        report=report,
        word=WORDS[report.verdict],
        mark=mark,
        sign=sign,
        version=__version__,
        groups=list(_groups(report)),
        chains=[item for item in report.exhibits if isinstance(item, Chain)],
        placements=[(item, _rows(item)) for item in report.exhibits if isinstance(item, Placement)],
        timelines=[(item, _lanes(item)) for item in report.exhibits if isinstance(item, Timeline) and item.bars],
        tables=[item for item in report.exhibits if isinstance(item, Table)],
        measures=[item for item in report.exhibits if isinstance(item, Measures)],
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mint2m_verify.render", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["harmless"] = escape
    return environment.get_template("report.html")


def _groups(report: Report) -> Iterator[Group]:
    by_id: dict[str, list[tuple[Finding, tuple[Finding, ...]]]] = {}
    for finding, following in report.causes():
        by_id.setdefault(finding.id, []).append((finding, following))
    for id, found in by_id.items():
        yield Group(
            id=id,
            message=entry(id).message,
            explanation=" ".join(entry(id).explanation.split()),
            causes=tuple(_cause(*pair) for pair in found[:_MOST_PLACES]),
            more=max(0, len(found) - _MOST_PLACES),
        )


def _cause(finding: Finding, following: Sequence[Finding]) -> Cause:
    pairs = (
        ("stage", finding.stage),
        ("expected", finding.expected),
        ("found", finding.actual),
        ("hint", finding.hint),
    )
    consequences = dict.fromkeys(f"{item.id} {place(item)}".rstrip() for item in following[:_MOST_FOLLOWING])
    return Cause(
        place=place(finding),
        details=tuple((word, escape(value)) for word, value in pairs if value is not None),
        following=tuple(consequences),
    )


def _rows(placement: Placement) -> tuple[Row, ...]:
    at = {(placed.node, placed.slot): placed for placed in placement.ranks}
    return tuple(
        Row(node=node, slots=tuple(at.get((node, slot)) for slot in range(placement.slots))) for node in placement.nodes
    )


def _lanes(timeline: Timeline) -> tuple[Lane, ...]:
    scale = 1000 / timeline.seconds if timeline.seconds > 0 else 0.0
    colour = {phase: index for index, phase in enumerate(timeline.phases)}
    lanes = []
    for index, rank in enumerate(timeline.ranks):
        bars = tuple(
            (
                colour[bar.phase] % 12,
                round(bar.begin_s * scale, 2),
                max(round(bar.seconds * scale, 2), 0.5),  # a phase of no time still shows as a line
                f"rank {rank} {escape(bar.phase)}: {bar.seconds:.3f} s",
            )
            for bar in timeline.bars
            if bar.rank == rank
        )
        lanes.append(Lane(rank=rank, y=index * 22, bars=bars))
    return tuple(lanes)
