"""The policy on one rank: base from a snapshot, adapter from a directory or fresh, wrapped for gradients.

Also the way back: adapter, gradient and optimizer state by PEFT name, with the experts of all ranks. Names are
global, so what is gathered on two ranks is what one rank would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mint2m_trainer import compat  # noqa: F401  # first: it must precede megatron
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.contract.positions import LongPositions
from mint2m_trainer.model.glm import Bounds, LoraPlan, PrefixModel, build_model
from mint2m_trainer.model.lora import LoraError, fresh_a
from mint2m_trainer.model.names import projection_names
from mint2m_trainer.model.position import AngleDtype
from mint2m_trainer.model.snapshot import load_snapshot
from mint2m_trainer.model.spec import ModelSpec, read_spec
from mint2m_trainer.peft import Adapter, read_adapter, tensor_name

from megatron.core.distributed import DistributedDataParallel  # isort: skip
from megatron.core.distributed import DistributedDataParallelConfig  # isort: skip


#: In the names of the experts' projections, each of which one rank holds.
_EXPERT = ".mlp.experts."


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """What the policy is made of; `adapter` None makes a fresh one from `seed`, `positions` None the snapshot's own."""

    snapshot: Path
    adapter: Path | None
    families: tuple[str, ...]
    rank: int
    alpha: float
    seed: int
    dtype: str
    angle_dtype: AngleDtype
    bounds: Bounds
    positions: LongPositions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A materialized policy."""

    inner: PrefixModel
    wrapped: DistributedDataParallel
    comm: Comm
    rank: int
    alpha: float

    def trainable(self) -> Sequence[tuple[str, nn.Parameter]]:
        """This rank's adapter parameters by PEFT name, in a fixed order."""
        return tuple(
            (tensor_name(adapter.projection, side), parameter)
            for adapter in self.inner.adapters()
            for side, parameter in (("A", adapter.A), ("B", adapter.B))
        )

    def adapter_tensors(self, phase: str) -> Mapping[str, Tensor]:
        """The whole adapter, on every rank; a collective."""
        return self.gather({name: p.detach() for name, p in self.trainable()}, phase)

    def gradient_tensors(self, phase: str) -> Mapping[str, Tensor]:
        """The whole finalized gradient, on every rank; a collective."""
        return self.gather({name: p.main_grad for name, p in self.trainable()}, phase)

    def local_gradients(self) -> Sequence[tuple[str, Tensor]]:
        """This rank's own gradient so far by PEFT name, before any reduction."""
        return tuple((name, p.main_grad) for name, p in self.trainable())

    def replicated_gradient_bytes(self) -> int:
        """Payload of the gradient reduction: what every rank holds; experts' gradients stay where they are."""
        grads = [p.main_grad for _, p in self.trainable() if getattr(p, "allreduce", True)]
        return sum(grad.numel() * grad.element_size() for grad in grads)

    def gather(self, local: Mapping[str, Tensor], phase: str) -> Mapping[str, Tensor]:
        """The union over ranks of tensors by global name, sorted: this rank's own, and the experts of the others.

        What every rank holds does not travel: 32 ranks would each read 32 times the same. A rank whose replica is
        another than the others' has another digest of the whole, and the evidence of all ranks must agree on that.
        """
        mine = {name: tensor.detach().cpu().clone() for name, tensor in local.items()}
        experts = {name: tensor for name, tensor in mine.items() if _EXPERT in name}
        size = sum(tensor.numel() * tensor.element_size() for tensor in experts.values())
        self.comm.ledger.record(Tag(phase=phase), "adapter.gather", size)
        every: list[dict[str, Tensor]] = [{} for _ in range(self.comm.size)]
        if self.comm.size > 1:
            dist.all_gather_object(every, experts, group=self.comm.group)
        union = mine | {name: tensor for tensors in every for name, tensor in tensors.items()}
        return dict(sorted(union.items()))


def materialize(source: PolicySource, comm: Comm) -> Policy:
    """Build, load and wrap the policy on this rank.

    Raises:
        SpecError, SnapshotError: the snapshot is not a model of this family.
        AdapterError, LoraError: the adapter is malformed or not the one planned.
    """
    spec = read_spec(source.snapshot, source.positions)
    planned = family_projections(spec, source.families)
    adapter = None if source.adapter is None else read_adapter(source.adapter)
    if adapter is not None:
        _check_planned(adapter, source, planned)
    inner = build_model(
        spec,
        world_size=comm.size,
        dtype=source.dtype,
        angle_dtype=source.angle_dtype,
        lora=LoraPlan(rank=source.rank, alpha=source.alpha, projections=planned),
        bounds=source.bounds,
    )
    load_snapshot(inner, spec, source.snapshot)
    if adapter is None:
        _start_fresh(inner, source.seed)
    else:
        _start_from(inner, adapter)
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=False,  # adapters are float32 or float64 already, and their gradients are theirs
        overlap_grad_reduce=False,
        use_distributed_optimizer=False,
        average_in_collective=False,
    )
    wrapped = DistributedDataParallel(inner.config, config, inner)
    wrapped.zero_grad_buffer()
    return Policy(inner=inner, wrapped=wrapped, comm=comm, rank=source.rank, alpha=source.alpha)


def family_of(projection: str) -> str:
    """The family of a projection, by its Hugging Face name."""
    if projection == "lm_head":
        return "unembed"
    if ".self_attn." in projection:
        return "attention"
    if _EXPERT in projection:
        return "expert"
    return "shared" if ".mlp.shared_experts." in projection else "dense"


def family_projections(spec: ModelSpec, families: Sequence[str]) -> frozenset[str]:
    """All projections of the model in these families.

    Raises:
        LoraError: a family without any projection in this model.
    """
    every = projection_names(spec)
    empty = set(families) - {family_of(name) for name in every}
    if empty or not families:
        raise LoraError(f"the model has no projection of family {sorted(empty) or 'none given'}")
    return frozenset(name for name in every if family_of(name) in families)


def _check_planned(adapter: Adapter, source: PolicySource, planned: frozenset[str]) -> None:
    if (adapter.rank, adapter.alpha) != (source.rank, source.alpha):
        raise LoraError(
            f"planned rank {source.rank} and alpha {source.alpha:g}, the adapter has "
            f"{adapter.rank} and {adapter.alpha:g}"
        )
    difference = sorted(planned ^ set(adapter.modules))
    if difference:
        raise LoraError(f"adapter and planned families differ in {difference[0]}")


@torch.no_grad()
def _start_fresh(model: PrefixModel, seed: int) -> None:
    """A from its name and the seed, B zero: the policy equals the base."""
    for adapter in model.adapters():
        rank, columns = adapter.A.shape
        adapter.A.copy_(fresh_a(adapter.projection, seed=seed, rank=rank, columns=columns))
        adapter.B.zero_()


@torch.no_grad()
def _start_from(model: PrefixModel, given: Adapter) -> None:
    for adapter in model.adapters():
        for side, parameter in (("A", adapter.A), ("B", adapter.B)):
            tensor = given.tensors[tensor_name(adapter.projection, side)]
            if tensor.shape != parameter.shape:
                name = tensor_name(adapter.projection, side)
                raise LoraError(f"{name}: expected {list(parameter.shape)}, found {list(tensor.shape)}")
            parameter.copy_(tensor)
