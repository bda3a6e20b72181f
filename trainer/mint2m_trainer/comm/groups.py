"""The process groups of one update: context parallel = expert parallel = world; tensor and pipeline are 1.

`Comm` carries the group, this rank's place in it and the ledger. Opening starts torch.distributed and megatron's
parallel state, closing ends both; the two are paired by the owner of the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from mint2m_trainer import compat  # first: it must precede megatron
from mint2m_trainer.comm import flight
from mint2m_trainer.comm.ledger import Ledger, Tag
from mint2m_trainer.comm.together import together

from megatron.core import parallel_state  # isort: skip

T = TypeVar("T")


class CommError(Exception):
    """Ranks did not take the same collective steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """One rank's view of the context-parallel group."""

    group: dist.ProcessGroup
    rank: int
    size: int
    ledger: Ledger

    def agree(self, phase: str) -> None:
        """Compare the ranks' ledgers.

        Raises:
            CommError: naming the ranks whose sequence differs from rank 0's.
        """
        mine = bytes.fromhex(self.ledger.digest())
        local = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(compat.device())
        every = [torch.empty_like(local) for _ in range(self.size)]
        dist.all_gather(every, local, group=self.group)
        others = [rank for rank, digest in enumerate(every) if not torch.equal(digest, every[0])]
        if others:
            raise CommError(f"{phase}: collectives of ranks {others} differ from rank 0")
        self.ledger.record(Tag(phase=phase), "agree", local.numel())

    def together(self, phase: str, act: Callable[[], T] | None) -> T | None:
        """See `comm.together`: this rank's part of the work, which fails on every rank if it fails on one."""
        self.ledger.record(Tag(phase=phase), "faults", 0)
        return together(act, group=self.group)


def open_comm(
    *, rank: int, world_size: int, master_address: str, master_port: int, ledger: Ledger, timeout_seconds: float
) -> Comm:
    """Start torch.distributed and megatron's groups on this rank.

    Raises:
        CommError: a process group is open already; two updates never share one.
    """
    if dist.is_initialized():
        raise CommError("torch.distributed is initialized already")
    if not 0 <= rank < world_size:
        raise CommError(f"rank {rank} is outside a world of {world_size}")
    compat.make_deterministic()
    flight.prepare()
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        compat.backend(),
        init_method=f"tcp://{master_address}:{master_port}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_seconds),
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        context_parallel_size=world_size,
        expert_model_parallel_size=world_size,
    )
    group = parallel_state.get_context_parallel_group()
    return Comm(group=group, rank=rank, size=world_size, ledger=ledger)


def close_comm() -> None:
    """End what `open_comm` started; harmless when nothing is open.

    Drop the `Comm` and the model before, and collect cycles, which modules that keep their groups lie in: a Gloo group
    that outlives its peers keeps its sockets, and a thread that spins on them until the process ends.
    """
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
