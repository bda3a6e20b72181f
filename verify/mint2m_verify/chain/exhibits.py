"""The exhibits of a promotion chain: its stages with the first that breaks, and the gradient's distance by family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mint2m_verify.chain import places
from mint2m_verify.chain.numbers import CASES, Number
from mint2m_verify.documents.validation import StageName
from mint2m_verify.exhibits import Chain, Exhibit, Link, LinkState, Measure, Measures
from mint2m_verify.finding import Finding
from mint2m_verify.recompute.parity import Family

#: What each stage shows, in a few words.
_NOTES: Mapping[StageName, str] = {
    "doctor": "every prerequisite, looked at",
    "kernel": "hot kernels against float64",
    "nccl": "collectives between all ranks",
    "actor": "every loaded tensor by digest",
    "parity-32k": "conventional against exact gradient",
    "parity-64k": "the same, twice as long",
    "scale-2m": "one whole update",
}


def chain_exhibits(
    wanted: Sequence[StageName], numbers: Mapping[StageName, Sequence[Number]], findings: Sequence[Finding]
) -> tuple[Exhibit, ...]:
    """What can be shown; `numbers` are those of the stages that could be judged."""
    plan = Link(name="plan", note="signed before the run", state=LinkState.INTACT)
    about_plan = [fault for fault in findings if fault.file in (places.PLAN, places.PLAN_SEAL)]
    links = (_link(plan, about_plan), *(_stage(stage, numbers, findings) for stage in wanted))
    return (Chain(title="Promotion chain", links=links), *_families(numbers))


def _stage(stage: StageName, numbers: Mapping[StageName, Sequence[Number]], findings: Sequence[Finding]) -> Link:
    state = LinkState.INTACT if stage in numbers else LinkState.UNJUDGED
    mine = [fault for fault in findings if stage in (fault.stage, places.stage_of(fault.file or ""))]
    return _link(Link(name=stage, note=_NOTES[stage], state=state), mine)


def _link(link: Link, faults: Sequence[Finding]) -> Link:
    """The link, broken by the first fault that follows from no other."""
    roots = [fault for fault in faults if fault.cause is None]
    if roots:
        return Link(name=link.name, note=f"{roots[0].id}: {roots[0].file or ''}", state=LinkState.BROKEN)
    if faults:
        return Link(name=link.name, note=f"{faults[0].id} follows from an earlier fault", state=LinkState.FOLLOWS)
    return link


def _families(numbers: Mapping[StageName, Sequence[Number]]) -> Iterator[Measures]:
    """Relative L2 of each family of adapter tensors, exact against conventional, with its cosine."""
    for stage, found in numbers.items():
        values = {number.name: number.value for number in found}
        rows = []
        for case in CASES:
            for family in Family:
                distance = values.get(f"{case}.{family.value}.relative_l2")
                cosine = values.get(f"{case}.{family.value}.cosine")
                if distance is not None and cosine is not None:
                    shown = f"{distance:.3g} (1 - cosine: {1 - cosine:.2g})"
                    rows.append(Measure(label=f"{case} {family.value}", value=distance, shown=shown))
        if rows:
            yield Measures(
                title=f"{stage}: gradient parity by family",
                note="relative L2 of exact against conventional, computed again from the shards",
                rows=tuple(rows),
            )
