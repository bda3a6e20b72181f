"""Phases of an update as a stage's raw artifacts: one chained record a rank and computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.stages.task import StageTask
from mint2m_trainer.update import Update
from mint2m_verify.chain.recompute.phases import phases_seed
from mint2m_verify.documents.records import PhaseRecord, chain_start
from mint2m_verify.documents.validation import RankPhases
from mint2m_verify.files import write_atomic

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class PhaseLog:
    """Runs phases of an update on this rank and writes them down, each naming the one before."""

    task: StageTask
    case: str
    side: str
    records: list[PhaseRecord] = field(default_factory=list)

    def run(self, update: Update, phases: Sequence[str], progress: Progress) -> None:
        """Run the next phases of `update`, in order."""
        for phase in phases:
            started_at = utc_now()
            outcome = update.run(phase, progress)
            self.records.append(
                PhaseRecord(
                    sequence=len(self.records),
                    phase=phase,
                    started_at=started_at,
                    ended_at=utc_now(),
                    previous_sha256=self._previous(),
                    files=(),
                    evidence=outcome.evidence,
                )
            )

    def write(self, name: str) -> str:
        """Write the record below the stage's tree; returns its path relative to the work directory."""
        task = self.task
        path = task.own(name)
        document = RankPhases(
            stage=task.stage,
            execution_id=task.execution_id,
            validation_plan_sha256=task.plan_sha256,
            rank=task.rank,
            case=self.case,
            side=self.side,
            phases=tuple(self.records),
        )
        write_atomic(task.root / path, document.encode())
        return path

    def _previous(self) -> str:
        if self.records:
            return self.records[-1].record_sha256()
        seed = phases_seed(self.case, self.side, self.task.plan_sha256)
        return chain_start(execution_id=self.task.execution_id, plan_sha256=seed, rank=self.task.rank)
