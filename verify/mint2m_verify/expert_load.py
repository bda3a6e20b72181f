"""How evenly the router spread the prompt over the experts, from what each rank's router counted during capture.

The rule: a rank counts the choices of the rows it holds, and every row makes equally many, so a rank's counts add up to
a multiple of its rows, the same multiple on every rank. Which experts they went to is the ranks' word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mint2m_verify import phases
from mint2m_verify.documents import PhaseEvidence, RankSessions, RunProfile
from mint2m_verify.memory_plan import held_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Tokens of all ranks that the busiest expert got, over all layers, and the mean of all experts."""

    busiest: int
    most: int
    mean: float

    def __str__(self) -> str:
        return f"busiest expert {self.busiest} has {self.most / self.mean:.3f} of the mean load"


def expert_load(sessions: RankSessions) -> ExpertLoad | None:
    """The load by all ranks' counts; None where a rank lacks them, or they are none of one model."""
    each = [seen.expert_tokens for _, _, seen in _captures(sessions)]
    counts = [tokens for tokens in each if tokens is not None]
    if not counts or len(counts) < len(each) or len({len(tokens) for tokens in counts}) > 1:
        return None
    totals = [sum(tokens) for tokens in zip(*counts, strict=True)]
    most = max(totals)
    return None if most == 0 else ExpertLoad(busiest=totals.index(most), most=most, mean=sum(totals) / len(totals))


def miscounted(sessions: RankSessions, profile: RunProfile) -> Iterator[tuple[str, str, str]]:
    """Where counts are not those of the rows that the rank holds: pointer, expected, actual."""
    first: tuple[int, int] | None = None  # experts, and choices a row, as on the first rank that holds rows
    present = [seen.expert_tokens is not None for _, _, seen in _captures(sessions)]
    for where, rank, seen in _captures(sessions):
        tokens, rows = seen.expert_tokens, held_rows(profile, rank)
        if tokens is None:
            if any(present):
                yield where, "counts, as on other ranks", "absent"
            continue
        if seen.resumed_chunks:
            yield where, "absent, since an earlier execution captured a part", f"{len(tokens)} counts"
        choices = sum(tokens)
        if not rows:
            if choices:
                yield where, "0 choices: the rank holds no row", str(choices)
            continue
        shape = len(tokens), choices // rows
        first = first or shape
        if choices % rows or not choices:
            yield where, f"a multiple of {rows} rows", str(choices)
        elif shape != first:
            yield where, f"{first[1]} of {first[0]} experts a row, as on other ranks", f"{shape[1]} of {shape[0]}"


def _captures(sessions: RankSessions) -> Iterator[tuple[str, int, PhaseEvidence]]:
    for index, session in enumerate(sessions.ranks):
        for number, record in enumerate(session.phases):
            if record.phase == phases.CAPTURE_PREFIX:
                yield f"/ranks/{index}/phases/{number}/evidence/expert_tokens", session.rank, record.evidence
