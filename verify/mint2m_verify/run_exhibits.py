"""The exhibits of a run: what binds what, where its ranks were, and where time and memory went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mint2m_verify import layout
from mint2m_verify.documents import RankSessions
from mint2m_verify.exhibits import (
    Chain,
    Exhibit,
    Link,
    LinkState,
    Measure,
    Measures,
    PhaseBar,
    PlacedRank,
    Placement,
    Timeline,
)
from mint2m_verify.expert_load import expert_load
from mint2m_verify.finding import Finding
from mint2m_verify.times import parse_time

#: Links of a run in the order in which each binds the next, with the beginnings of the paths that belong to each.
_LINKS = (
    ("seal", (layout.ATTESTATIONS,), "signs every file outside the trees"),
    ("receipt", (layout.RECEIPT, layout.DOCTOR, layout.OWNERSHIP), "names the run's records by digest"),
    ("plan", (layout.PLAN,), "fixed before the run"),
    ("inputs", ("inputs/",), "what was trained on, and by which profile"),
    ("ranks", (layout.RANK_SESSIONS,), "every phase of every rank, chained"),
    ("numbers", ("artifacts/",), "scores, tensors, manifests"),
    ("checkpoint", ("checkpoint/",), "the state after the step"),
    ("adapter", ("adapter/",), "the trained adapter"),
)

#: Of these, what only a step leaves.
_OF_A_STEP = ("checkpoint", "adapter")


def run_exhibits(
    sessions: RankSessions | None, findings: Sequence[Finding], *, ends_with_gradient: bool
) -> tuple[Exhibit, ...]:
    """What can be shown of a run; `sessions` is None where the records could not be read."""
    shown: list[Exhibit] = [_chain(findings, ends_with_gradient=ends_with_gradient)]
    if sessions is not None:
        shown += [_placement(sessions), timeline_of(sessions), *_measures(sessions)]
    return tuple(shown)


def _chain(findings: Sequence[Finding], *, ends_with_gradient: bool) -> Chain:
    links = (_link(name, places, note, findings) for name, places, note in _LINKS)
    # What is not there is intact for nobody; that something of it is there all the same has a finding.
    absent = _OF_A_STEP if ends_with_gradient else ()
    return Chain(
        title="What binds what",
        links=tuple(link for link in links if link.name not in absent or link.state is not LinkState.INTACT),
    )


def _link(name: str, places: tuple[str, ...], note: str, findings: Sequence[Finding]) -> Link:
    mine = [fault for fault in findings if fault.file is not None and fault.file.startswith(places)]
    roots = [fault for fault in mine if fault.cause is None]
    if roots:
        return Link(name=name, note=f"{roots[0].id}: {roots[0].file}", state=LinkState.BROKEN)
    if mine:
        return Link(name=name, note=f"{mine[0].id} follows from an earlier fault", state=LinkState.FOLLOWS)
    return Link(name=name, note=note, state=LinkState.INTACT)


def _placement(sessions: RankSessions) -> Placement:
    return Placement(
        ranks=tuple(
            PlacedRank(
                rank=session.rank,
                node=session.placement.observed_node_ip,
                slot=session.placement.observed_slot,
                device=session.placement.observed_accelerator,
                as_planned=(session.placement.planned_node_ip, session.placement.planned_slot)
                == (session.placement.observed_node_ip, session.placement.observed_slot),
            )
            for session in sessions.ranks
        )
    )


def timeline_of(sessions: RankSessions) -> Timeline:
    """Phases of all ranks in seconds since the first began; a time that cannot be read is left out."""
    spans = [
        (session.rank, record.phase, parse_time(record.started_at), parse_time(record.ended_at))
        for session in sessions.ranks
        for record in session.phases
    ]
    known = [(rank, phase, begin, end) for rank, phase, begin, end in spans if begin is not None and end is not None]
    first = min((begin for _, _, begin, _ in known), default=None)
    return Timeline(
        bars=tuple(
            PhaseBar(
                rank=rank,
                phase=phase,
                begin_s=(begin - first).total_seconds(),
                end_s=max((end - first).total_seconds(), (begin - first).total_seconds()),
            )
            for rank, phase, begin, end in known
            if first is not None
        )
    )


def _measures(sessions: RankSessions) -> Iterator[Measures]:
    """The slowest rank's time and the largest rank's memory, by phase."""
    bars = timeline_of(sessions)
    slowest = bars.slowest()
    if slowest:
        yield Measures(
            title="Time by phase",
            note="of the slowest rank, by its own clock",
            rows=tuple(Measure(label=phase, value=value, shown=f"{value:.3f} s") for phase, value in slowest.items()),
        )
    load = expert_load(sessions)
    if load is not None:
        rows = (("busiest expert", float(load.most)), ("mean expert", load.mean))
        yield Measures(
            title="Expert load",
            note=f"tokens of the captured prompt, over all layers, as ranks report; {load}",
            rows=tuple(Measure(label=label, value=value, shown=f"{value:,.1f}") for label, value in rows),
        )
    peaks: dict[str, int] = {}
    for session in sessions.ranks:
        for record in session.phases:
            peak = record.evidence.peak_memory_bytes
            if peak is not None:
                peaks[record.phase] = max(peaks.get(record.phase, 0), peak)
    if peaks:
        yield Measures(
            title="Memory by phase",
            note="high-water mark so far of the largest rank, as it reports",
            rows=tuple(
                Measure(label=phase, value=float(peak), shown=f"{peak / 1e6:,.0f} MB") for phase, peak in peaks.items()
            ),
        )
