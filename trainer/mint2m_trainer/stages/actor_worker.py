"""The actor stage on one rank: the policy materialized, every tensor named by its bytes, no step taken."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from mint2m_trainer import evidence
from mint2m_trainer.cluster.messages import Rendezvous
from mint2m_trainer.stages.records import PhaseLog
from mint2m_trainer.stages.task import StageTask
from mint2m_trainer.update import RankInputs, Update
from mint2m_verify.chain.recompute import actor as places
from mint2m_verify.documents.validation import LoadedTensor, LoadedTensors, StageName
from mint2m_verify.files import write_atomic

_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}


def rank_inputs(task: StageTask, rendezvous: Rendezvous, folder: Path, *, baseline: bool = False) -> RankInputs:
    """An update's inputs on this rank; its own files go to `folder`, which is no part of the evidence."""
    if task.profile is None or task.rollout is None:
        raise RuntimeError("this stage has no fixture")
    return RankInputs(
        rank=task.rank,
        world_size=task.world_size,
        master_address=rendezvous.address,
        master_port=rendezvous.port,
        run_dir=folder,
        snapshot=task.snapshot,
        adapter=task.adapter,
        profile=task.profile,
        rollout=task.rollout,
        plan_sha256=task.plan_sha256,
        execution_id=task.execution_id,
        image_digest=task.plan.image_digest,
        baseline=baseline,
    )


class ActorWorker:
    """Runs the phases of an update up to materialization."""

    def __init__(self, task: StageTask) -> None:
        self._task = task
        self._folder = tempfile.TemporaryDirectory(prefix="mint2m-actor-")
        self._update: Update | None = None

    def run(self, _label: str, rendezvous: Rendezvous, progress: Callable[[str, int, int], None]) -> tuple[str, ...]:
        """Materialize, then list every tensor of this rank."""
        task = self._task
        update = self._update = Update(rank_inputs(task, rendezvous, Path(self._folder.name)))
        log = PhaseLog(task, "actor", "actor")
        log.run(update, places.PHASES, progress)
        held = loaded_tensors(update, task.stage, task.execution_id, task.rank)
        path = task.own(places.tensors_file(task.rank))
        write_atomic(task.root / path, held.encode())
        return log.write(places.phases_file(task.rank)), path

    def close(self) -> None:
        """End the groups and drop what the update wrote for itself."""
        if self._update is not None:
            self._update.close()
        self._folder.cleanup()


def loaded_tensors(update: Update, stage: StageName, execution_id: str, rank: int) -> LoadedTensors:
    """What this rank holds once it is materialized."""
    policy, optimizer = update.policy, update.optimizer
    return LoadedTensors(
        stage=stage,
        execution_id=execution_id,
        rank=rank,
        base=_listed(evidence.base_tensors(policy.inner)),
        adapter=_listed(dict(policy.trainable())),
        optimizer=optimizer.check(),
        optimizer_steps=optimizer.steps_taken,
    )


def _listed(tensors: Mapping[str, Tensor]) -> tuple[LoadedTensor, ...]:
    return tuple(
        LoadedTensor(
            name=name,
            dtype=_DTYPES[tensors[name].dtype],
            shape=tuple(tensors[name].shape),
            sha256=_digest(tensors[name]),
        )
        for name in sorted(tensors)
    )


def _digest(tensor: Tensor) -> str:
    plain = tensor.detach().contiguous().cpu()
    return hashlib.sha256(memoryview(plain.view(-1).view(torch.uint8).numpy())).hexdigest()
