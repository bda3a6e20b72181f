"""From a stage's raw artifacts to its judged numbers: one way, for who writes a bundle and who checks it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.chain.numbers import Number, judge
from mint2m_verify.chain.places import PLACES
from mint2m_verify.chain.recompute import actor, doctor, kernel, nccl, parity, scale
from mint2m_verify.chain.recompute.evidence import Evidence, Recomputation
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.validation import JudgedNumber, StageName, StageRecord, StageValidation
from mint2m_verify.finding import Finding

_RECOMPUTE: Mapping[StageName, Callable[[Evidence], Recomputation]] = {
    "doctor": doctor.recompute,
    "kernel": kernel.recompute,
    "nccl": nccl.recompute,
    "actor": actor.recompute,
    "parity-32k": parity.recompute,
    "parity-64k": parity.recompute,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The numbers again, and each beside its bounds."""

    numbers: tuple[Number, ...]
    judged: tuple[JudgedNumber, ...]


def recompute(evidence: Evidence, root: Path) -> Generator[Finding, None, Judged]:
    """The stage's numbers from its artifacts below `root`, judged by the plan."""
    stage = evidence.planned.stage
    if stage == "scale-2m":
        numbers = yield from scale.recompute(evidence, root)
    else:
        numbers = yield from _RECOMPUTE[stage](evidence)
    judged = yield from judge(numbers, evidence.planned, file=PLACES[stage].record)
    return Judged(numbers=numbers, judged=judged)


def validation_of(
    record: StageRecord, references: tuple[FileRef, FileRef, FileRef], judged: Judged, plan_sha256: str
) -> StageValidation:
    """`Y-validation.json` of a stage; `references` are of the record, the ranks and the artifacts."""
    return StageValidation(
        stage=record.stage,
        run_id=record.run_id,
        execution_id=record.execution_id,
        validation_plan_sha256=plan_sha256,
        record=references[0],
        ranks=references[1],
        artifacts=references[2],
        numbers=judged.judged,
    )
