"""A backend that waits instead of computing, for `bench_driver.py`: each phase takes a known time and leaves files.

The rule: it can never be taken for an update. It calls itself `fake` where evidence names a communication backend and
leaves out weights, adapter and most else that the verifier requires; it writes the files that a receipt binds, so that
all of the driver's own work is done, and the run that comes of it is refused. It imports no torch: a rank is small.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mint2m_trainer.comm.ledger import Ledger, Position, Tag
from mint2m_trainer.rank_inputs import RankInputs
from mint2m_verify import layout, phases
from mint2m_verify.documents import PhaseEvidence, Scores
from mint2m_verify.documents.records import ResponseScores
from mint2m_verify.elsewhere import HashedElsewhere
from mint2m_verify.files import write_atomic

#: Where `bench_driver.py` says how long a phase takes; the local Ray hands the environment on.
PHASE_SECONDS = "BENCH_PHASE_SECONDS"

#: Of the files that rank 0 writes, and of each rank's part of the checkpoint: what the tiny model's have.
ADAPTER_BYTES, SHARD_BYTES = 128 << 10, 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOutcome:
    evidence: PhaseEvidence
    files: tuple[str, ...]
    hashed: tuple[HashedElsewhere, ...] = ()


class TimedUpdate:
    """All phases of one rank, each of which sleeps."""

    def __init__(self, inputs: RankInputs) -> None:
        self.phases = phases.expected_phases(inputs.profile)
        self._inputs, self._ledger = inputs, Ledger()
        self._seconds = float(os.environ[PHASE_SECONDS])

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> TimedOutcome:
        self._ledger.record(Tag(phase=phase), "fake", 0)
        progress(phase, 0, 1)
        time.sleep(self._seconds)
        progress(phase, 1, 1)
        files = tuple(self._files(phase))
        summary = self._ledger.summary()
        counts: dict[str, Any] = {"collectives": summary.calls, "ledger_sha256": summary.digest}
        if phase == phases.INITIALIZE:
            counts["backend"] = "fake"
        elif phases.response_of(phase) is not None or phase == phases.PREFIX_BACKWARD:
            counts["backward_calls"] = 1
        elif phase == phases.FINALIZE:
            counts["finalize_calls"] = 1
        elif phase == phases.OPTIMIZER_STEP:
            counts["optimizer_steps"] = 1
        return TimedOutcome(evidence=PhaseEvidence(**counts), files=files)

    def position(self) -> Position | None:
        return self._ledger.position

    def flight(self) -> None:
        """There are no collectives."""

    def close(self) -> None:
        """Nothing is held."""

    def _files(self, phase: str) -> list[str]:
        rank = self._inputs.rank
        wanted: dict[str, bytes] = {}
        if phase == phases.CHECKPOINT:
            wanted = {f"checkpoint/__{rank}_0.distcp": os.urandom(SHARD_BYTES)}
        if rank == 0:
            if phase == phases.MATERIALIZE:
                wanted |= _adapter("artifacts/adapter-before")
            elif phase == phases.FINALIZE:
                wanted |= {layout.GRADIENT: os.urandom(ADAPTER_BYTES), layout.SCORES: self._scores()}
            elif phase == phases.CHECKPOINT:
                wanted |= _adapter("adapter") | {layout.OPTIMIZER_AFTER: os.urandom(2 * ADAPTER_BYTES)}
        for path, raw in wanted.items():
            place = self._inputs.run_dir / path
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, raw)
        return sorted(wanted)

    def _scores(self) -> bytes:
        """Zeros, which no loss comes of: as many as an update writes, for the driver reads them."""
        rollout = self._inputs.rollout
        responses = tuple(
            ResponseScores(
                response=number,
                tokens=tokens,
                first_scored=0,
                policy=(0.0,) * len(tokens),
                old=(0.0,) * len(tokens),
                ref=None,
                loss=(0.0,) * len(tokens),
                clipped_low=0,
                clipped_high=0,
            )
            for number, tokens in enumerate(rollout.responses)
        )
        return Scores(
            plan_sha256=self._inputs.plan_sha256,
            execution_id=self._inputs.execution_id,
            rewards=rollout.rewards,
            advantages=tuple(0.0 for _ in rollout.rewards),
            old_source=self._inputs.profile.grpo.old_source,
            ref_source=None,
            responses=responses,
            loss=0.0,
            kl=None,
            clipped_low=0,
            clipped_high=0,
            scored_tokens=sum(map(len, rollout.responses)),
            gradient_norm=0.0,
            clip_coefficient=0.0,
        ).encode()


def _adapter(folder: str) -> dict[str, bytes]:
    config = b'{"fake":true}\n'
    return {f"{folder}/adapter_config.json": config, f"{folder}/adapter_model.safetensors": os.urandom(ADAPTER_BYTES)}
