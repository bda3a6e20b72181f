"""Rank records of a stage's computations: the phases that must be there, chained, of this execution, as planned."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain.places import PLAN
from mint2m_verify.chain.recompute.evidence import Evidence
from mint2m_verify.documents.records import PhaseEvidence, PhaseRecord, chain_start
from mint2m_verify.documents.validation import RankPhases
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.phases import required_evidence


def check_rank_phases(
    evidence: Evidence, name: str, *, rank: int, case: str, side: str, wanted: Sequence[str]
) -> Generator[Finding, None, tuple[PhaseEvidence, ...]]:
    """The evidence of each phase of one rank's record, in order; empty where it cannot be read.

    Args:
        name: the record's file, below the stage's tree.
        case, side: which computation of the stage it must be of.
        wanted: the phases, in order; any other is a finding.
    """
    path = f"{evidence.tree}{name}"
    try:
        record = evidence.document(RankPhases, path)
    except FindingError as fault:
        yield fault.finding
        return ()
    stage = evidence.planned.stage
    plan_sha256 = evidence.files[PLAN].entry.sha256
    for member, want, have in (
        ("execution_id", evidence.execution_id, record.execution_id),
        ("validation_plan_sha256", plan_sha256, record.validation_plan_sha256),
        ("rank", str(rank), str(record.rank)),
        ("case", case, record.case),
        ("side", side, record.side),
        ("stage", stage, record.stage),
    ):
        if want != have:
            yield found(
                "chain.execution-mismatch", stage=stage, file=path, pointer=f"/{member}", expected=want, actual=have
            )
    have_phases = [phase.phase for phase in record.phases]
    if have_phases != list(wanted):
        yield found(
            "chain.phases-mismatch",
            stage=stage,
            file=path,
            pointer="/phases",
            expected=", ".join(wanted),
            actual=", ".join(have_phases),
        )
    yield from _chained(record, plan_sha256, path)
    for place, phase in enumerate(record.phases):
        yield from _complete(evidence, phase, path, f"/phases/{place}/evidence")
    return tuple(phase.evidence for phase in record.phases)


def _chained(record: RankPhases, plan_sha256: str, path: str) -> Iterator[Finding]:
    seed = phases_seed(record.case, record.side, plan_sha256)
    want = chain_start(execution_id=record.execution_id, plan_sha256=seed, rank=record.rank)
    for place, phase in enumerate(record.phases):
        if phase.previous_sha256 != want:
            yield found(
                "chain.phases-mismatch",
                stage=record.stage,
                file=path,
                pointer=f"/phases/{place}/previous_sha256",
                expected=want,
                actual=phase.previous_sha256,
            )
        want = phase.record_sha256()


def _complete(evidence: Evidence, phase: PhaseRecord, path: str, where: str) -> Iterator[Finding]:
    stage, seen = evidence.planned.stage, phase.evidence
    for member in required_evidence(phase.phase):
        if getattr(seen, member) is None:
            yield found(
                "session.evidence-missing", stage=stage, file=path, pointer=f"{where}/{member}", expected=member
            )
    for name, want, have in (
        ("runtime_identity_sha256", evidence.plan.runtime_identity.sha256, seen.runtime_identity_sha256),
        ("source_sha256", evidence.plan.source_sha256, seen.source_sha256),
        ("backend", evidence.plan.backend, seen.backend),
        ("world_size", evidence.world_size, seen.world_size),
    ):
        if have is not None and have != want:
            yield found(
                "session.identity-mismatch",
                stage=stage,
                file=path,
                pointer=f"{where}/{name}",
                expected=str(want),
                actual=str(have),
            )


def phases_seed(case: str, side: str, plan_sha256: str) -> str:
    """What takes the place of a plan's digest at the start of a computation's chain."""
    return sha256_hex(f"{case}\n{side}\n{plan_sha256}".encode())
