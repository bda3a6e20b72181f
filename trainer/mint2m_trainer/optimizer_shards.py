"""Optimizer state of replicated parameters, dealt over ranks: each tensor's moments lie with one rank.

The rule: every replicated parameter is updated by exactly one rank, all ranks agree on which, and all receive the
result before the step ends. Without it a parameter would be stepped twice, or by nobody, and replicas would part.

This is ZeRO stage 1 (arXiv 1910.02054) by whole tensors. Gradients stay whole on every rank, so the update is bit
for bit that of the plain optimizer; only the moments are divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class Shards:
    """Which rank of a group steps which replicated tensor.

    Args:
        sizes: elements of each replicated parameter by name; equal on every rank.
        group: the ranks that hold the replicas; None for one rank alone.
    """

    def __init__(self, sizes: Mapping[str, int], group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._rank = 0 if group is None else dist.get_rank(group)
        loads = [0] * (1 if group is None else dist.get_world_size(group))
        owner: dict[str, int] = {}
        # Largest first to the least loaded, the lower rank and the earlier name on a tie: the same deal everywhere.
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            owner[name] = loads.index(min(loads))
            loads[owner[name]] += sizes[name]
        self._owner = owner

    def owns(self, name: str) -> bool:
        """Whether this rank steps the replicated parameter `name`."""
        return self._owner[name] == self._rank

    def times_held(self, held: Sequence[str], device: torch.device) -> dict[str, int]:
        """How many ranks hold each replicated parameter in their live optimizer; a collective."""
        names = sorted(self._owner)
        mine = set(held)
        counts = torch.tensor([int(name in mine) for name in names], dtype=torch.int64, device=device)
        if self._group is not None:
            dist.all_reduce(counts, group=self._group)
        return dict(zip(names, counts.tolist(), strict=True))

    @torch.no_grad()
    def spread(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrites each tensor, on every rank, with its owner's; one broadcast a rank."""
        if self._group is None:
            return
        for rank in range(dist.get_world_size(self._group)):
            parts = [tensors[name] for name in sorted(self._owner) if self._owner[name] == rank]
            if not parts:
                continue
            flat = torch.cat([part.detach().reshape(-1) for part in parts])
            dist.broadcast(flat, src=dist.get_global_rank(self._group, rank), group=self._group)
            for part, value in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(value.view_as(part))
