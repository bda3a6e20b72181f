"""Sparse attention as one autograd operation that keeps no gathered rows.

Saved for backward are the queries, the row table, the choice and the log-sum-exp; each [t, K, D] gather is made
again tile by tile. Differentiating the gather instead would save [T, K, D] a layer: K times the chunk itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mint2m_trainer.kernels.interface import Kernels


class SparseAttention(torch.autograd.Function):
    """`Kernels.attend` with `Kernels.attend_backward` behind it."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        rows: Tensor,
        idx: Tensor,
        ok: Tensor,
        scale: float,
        value_width: int,
        kernels: Kernels,
    ) -> Tensor:
        """See `Kernels.attend`; returns its output, [T, H, value_width]."""
        out, lse = kernels.attend(q, rows, idx, ok, scale, value_width)
        ctx.save_for_backward(q, rows, idx, ok, out, lse)
        ctx.scale, ctx.kernels = scale, kernels
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, rows, idx, ok, out, lse = ctx.saved_tensors
        grad_q, grad_rows = ctx.kernels.attend_backward(q, rows, idx, ok, ctx.scale, out, lse, grad)
        return grad_q, grad_rows, None, None, None, None, None
