"""The collectives stage on one rank: every operation once, with payloads that only this execution has.

No model is loaded and megatron's groups are not opened: what is shown is that these processes reach each other through
this backend, and that what arrives is what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from safetensors.torch import save
from torch import Tensor

from mint2m_trainer import compat
from mint2m_trainer.cluster.messages import Rendezvous
from mint2m_trainer.comm import flight
from mint2m_trainer.stages.task import StageTask
from mint2m_verify.chain.collective_cases import WIDTH, payload
from mint2m_verify.chain.recompute.nccl import BARRIER, rank_file
from mint2m_verify.files import write_atomic


class CollectiveWorker:
    """Opens the world's group, runs the operations, and ends the group."""

    def __init__(self, task: StageTask) -> None:
        self._task = task

    def run(self, label: str, rendezvous: Rendezvous, progress: Callable[[str, int, int], None]) -> tuple[str, ...]:
        """All operations, in one order on every rank; the results are this rank's file."""
        store = self._open(rendezvous)
        results = {name: tensor.cpu().contiguous() for name, tensor in self._operations().items()}
        results[BARRIER] = torch.tensor([float(_barrier(store))], dtype=torch.float64)
        progress(label, 1, 1)
        path = self._task.own(rank_file(self._task.rank))
        write_atomic(self._task.root / path, save(results))
        return (path,)

    def close(self) -> None:
        """End the group; harmless twice."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _open(self, rendezvous: Rendezvous) -> dist.Store:
        """The world's group on the planned backend, and the store that it meets through."""
        task = self._task
        if torch.cuda.is_available():
            torch.cuda.set_device(task.rank % torch.cuda.device_count())
        flight.prepare()
        timeout = timedelta(seconds=task.plan.timeouts_s.start)
        store = dist.TCPStore(
            rendezvous.address, rendezvous.port, task.world_size, is_master=task.rank == 0, timeout=timeout
        )
        dist.init_process_group(
            compat.backend(), store=store, rank=task.rank, world_size=task.world_size, timeout=timeout
        )
        if dist.get_backend() != task.plan.backend:
            raise RuntimeError(f"the plan's backend is {task.plan.backend}, this is {dist.get_backend()}")
        return store

    def _operations(self) -> Mapping[str, Tensor]:
        world, mine = self._task.world_size, self._sent
        gathered = [torch.empty_like(mine("all-gather")) for _ in range(world)]
        dist.all_gather(gathered, mine("all-gather"))
        reduced = mine("all-reduce").clone()
        dist.all_reduce(reduced)
        exchanged = torch.empty_like(mine("all-to-all"))
        dist.all_to_all_single(exchanged, mine("all-to-all"))
        return {
            "all-gather": torch.stack(gathered),  # [world, world, WIDTH]
            "all-reduce": reduced,  # [world, WIDTH]
            "reduce-scatter": self._reduce_scatter(mine("reduce-scatter")),  # [WIDTH]
            "all-to-all": exchanged,  # [world, WIDTH]
        }

    def _reduce_scatter(self, sent: Tensor) -> Tensor:
        part = sent.new_empty(WIDTH)
        dist.reduce_scatter_tensor(part, sent.reshape(-1))
        return part

    def _sent(self, operation: str) -> Tensor:
        task = self._task
        values = payload(operation, task.rank, world_size=task.world_size, execution_id=task.execution_id)
        return torch.from_numpy(values).to(compat.device())


def _barrier(store: dist.Store) -> int:
    """Ranks that had arrived, counted once the barrier has let this rank through."""
    store.add("arrived", 1)
    dist.barrier()
    return int(store.add("arrived", 0))
