"""A parity stage on one rank: both cases, conventional and exact, from the same weights, adapter, fixture and seed.

The rule: a computation's first pass ends with every trainable shard of this rank on disk and the adapter untouched; no
optimizer phase is run before that. Only then does a second pass let the optimizer take its one step, so that the
deltas can be compared as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save

from mint2m_trainer.cluster.messages import Rendezvous
from mint2m_trainer.stages.actor_worker import rank_inputs
from mint2m_trainer.stages.records import PhaseLog
from mint2m_trainer.stages.task import StageTask
from mint2m_trainer.update import Update
from mint2m_verify import layout, phases
from mint2m_verify.chain.cases import COMPUTATIONS, Case, Side, export_phases, profile_of
from mint2m_verify.chain.recompute import parity as places
from mint2m_verify.files import write_atomic


class ParityWorker:
    """One computation a label; each has an update of its own, so nothing of one is left in the next."""

    def __init__(self, task: StageTask) -> None:
        self._task = task
        self._update: Update | None = None

    def run(self, label: str, rendezvous: Rendezvous, progress: Callable[[str, int, int], None]) -> tuple[str, ...]:
        """Export one computation, then let its optimizer step."""
        case, side = next(item for item in COMPUTATIONS if f"{item[0]}.{item[1]}" == label)
        with tempfile.TemporaryDirectory(prefix="mint2m-parity-") as folder:
            return self._compute(case, side, rendezvous, Path(folder), progress)

    def close(self) -> None:
        """End the groups of a computation that did not end by itself."""
        if self._update is not None:
            self._update.close()
            self._update = None

    def _compute(
        self,
        case: Case,
        side: Side,
        rendezvous: Rendezvous,
        folder: Path,
        progress: Callable[[str, int, int], None],
    ) -> tuple[str, ...]:
        task = self._task
        if task.profile is None:
            raise RuntimeError("this stage has no fixture")
        profile = profile_of(case, task.profile)
        inputs = rank_inputs(task, rendezvous, folder, baseline=side == "conventional")
        update = self._update = Update(replace(inputs, profile=profile))
        try:
            files = self._export(update, case, side, folder, export_phases(profile, side), progress)
            return (*files, *self._step(update, case, side, progress))
        finally:
            self.close()

    def _export(
        self,
        update: Update,
        case: Case,
        side: Side,
        folder: Path,
        wanted: tuple[str, ...],
        progress: Callable[[str, int, int], None],
    ) -> tuple[str, ...]:
        """First pass: every trainable shard of this rank, before any step."""
        task = self._task
        log = PhaseLog(task, case, side)
        log.run(update, wanted, progress)
        shards = {name: p.main_grad.detach().cpu().contiguous() for name, p in update.policy.trainable()}
        path = task.own(places.shard_file(case, side, task.rank))
        write_atomic(task.root / path, save(dict(sorted(shards.items()))))
        files = [path, log.write(places.phases_file(case, side, task.rank, step=False))]
        if task.rank == 0:
            # Rank 0's own copy of the update's scores; `folder` is gone after the computation.
            scores = task.own(places.scores_file(case, side))
            write_atomic(task.root / scores, (folder / layout.SCORES).read_bytes())
            files.append(scores)
        return tuple(files)

    def _step(
        self, update: Update, case: Case, side: Side, progress: Callable[[str, int, int], None]
    ) -> tuple[str, ...]:
        """Second pass: the optimizer's one step on the exported gradient."""
        task = self._task
        log = PhaseLog(task, case, f"{side}-step")
        log.run(update, (phases.OPTIMIZER_STEP,), progress)
        stepped = update.policy.adapter_tensors("stepped")  # a collective: every rank takes part
        files = [log.write(places.phases_file(case, side, task.rank, step=True))]
        if task.rank == 0:
            path = task.own(places.stepped_file(case, side))
            write_atomic(task.root / path, save({name: t.float().contiguous() for name, t in stepped.items()}))
            files.append(path)
        return tuple(files)
