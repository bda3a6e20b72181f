"""Canonical LoRA: one adapter for each projection of the Hugging Face model, never merged.

Megatron fuses gate and up into one weight; the adapters stay apart, each adding to its own rows, so that names and
gradients are those of a PEFT adapter. The update `s (x A^T) B^T` is computed in the adapter's dtype and only its
sum with the base output is cast: merging into a bfloat16 weight would round the adapter away.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mint2m_trainer.faults import InputError


class LoraError(InputError):
    """An adapter does not fit the model."""


class Lora(nn.Module):
    """A [rank, in] and B [out, rank] of one projection; rows [start, start + out) of its fused weight."""

    def __init__(
        self,
        *,
        name: str,
        rows: slice,
        columns: int,
        rank: int,
        alpha: float,
        base: nn.Parameter,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.projection = name
        self.rows = rows
        self.scale = alpha / rank
        self.enabled = True
        self.A = nn.Parameter(torch.zeros(rank, columns, dtype=dtype, device=base.device))
        self.B = nn.Parameter(torch.zeros(rows.stop - rows.start, rank, dtype=dtype, device=base.device))
        for parameter in (self.A, self.B):
            # Megatron keeps expert gradients apart by this mark; without it they are summed over EP ranks.
            parameter.allreduce = getattr(base, "allreduce", True)

    def forward(self, x: Tensor) -> Tensor:
        """The adapter's part of the output, [..., out], in the adapter's dtype."""
        down = torch.nn.functional.linear(x.to(self.A.dtype), self.A)  # [..., rank]
        return torch.nn.functional.linear(down, self.B) * self.scale


class AdaptedOutput:
    """A forward hook that adds a module's adapters to its output."""

    def __init__(self, adapters: Sequence[Lora], rows: int) -> None:
        self._adapters = tuple(adapters)  # in order of rows
        edges = [0, *(edge for adapter in adapters for edge in (adapter.rows.start, adapter.rows.stop)), rows]
        self._whole = edges[::2] == edges[1::2]

    def __call__(self, _module: nn.Module, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> Any:
        if not self._adapters[0].enabled:
            return output
        x, (base, bias) = inputs[0], output
        if self._whole:
            added = [adapter(x) for adapter in self._adapters]
            return (base + (added[0] if len(added) == 1 else torch.cat(added, dim=-1))).to(base.dtype), bias
        total = base.to(torch.promote_types(base.dtype, self._adapters[0].A.dtype))
        parts, end = [], 0
        for adapter in self._adapters:
            parts.append(total[..., end : adapter.rows.start])
            parts.append(total[..., adapter.rows] + adapter(x))
            end = adapter.rows.stop
        parts.append(total[..., end:])
        return torch.cat(parts, dim=-1).to(base.dtype), bias


def fresh_a(name: str, *, seed: int, rank: int, columns: int) -> Tensor:
    """A new A, [rank, columns] float32: Kaiming-uniform with a = sqrt(5), as PEFT starts one.

    It is drawn from the seed and the projection's global name, so it is the same under every layout; one
    generator for all would depend on the order of building.
    """
    mixed = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(mixed[:8], "big") >> 1)
    bound = math.sqrt(6 / ((1 + 5) * columns))
    return (torch.rand(rank, columns, generator=generator, dtype=torch.float32) * 2 - 1) * bound
