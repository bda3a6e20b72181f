"""Attention that brings the queries to the rows: route `lse`.

Queries of all ranks travel in rounds. Each rank attends with them to the chosen rows that it holds, and the owner of
a query merges the partial outputs by their log-sum-exp, in the order of ranks:

    L = log Σ_r exp(l_r),        out = Σ_r exp(l_r - L) out_r.

Backward needs no merging of rows: with the merged output and L, each rank's part of the softmax gradient is complete
in itself, so the gradient of a row is made where the row lies and never travels. Partial outputs are float32 or
float64, whatever the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mint2m_trainer.comm.collectives import collect_rows, send_rows
from mint2m_trainer.comm.packing import collect_packed
from mint2m_trainer.kernels.interface import EMPTY
from mint2m_trainer.model.seam import Passage
from mint2m_trainer.model.selection import rounds
from mint2m_trainer.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """One round's queries and what they chose of this rank's rows."""

    first: int  # this rank's first query of the round
    parts: tuple[int, ...]  # queries of each rank, n in all
    asking: Tensor  # [m] which of the n queries chose a row of this rank
    held: Tensor  # [Uh] ascending local ids of prefix rows
    own: Tensor  # [Uo] ascending rows of the pass
    idx: Tensor  # [m, K'] into held, then own
    ok: Tensor  # [m, K']


class MergeReach:
    """`Reach` by merging partial attention; which rows are asked of whom is settled once per choice."""

    def __init__(self, chosen: Tensor, passage: Passage, spec: ModelSpec, page_dtype: torch.dtype, layer: int) -> None:
        """`chosen` [T, K] positions, -1 in an empty slot, at least one a query."""
        # Not the passage itself: it leads to this object, and a cycle through the graph is never collected.
        self._prefix, self._comm, self._tag, self._places = (
            passage.prefix,
            passage.comm,
            passage.tag(layer),
            passage.places,
        )
        self._kernels = passage.kernels
        self._exact = torch.float64 if page_dtype == torch.float64 else torch.float32
        self._scale, self._value_width = spec.softmax_scale, spec.kv_rank
        self._rounds = tuple(self._round(chosen, first, parts) for first, parts in rounds(passage.share.counts))

    def _round(self, chosen: Tensor, first: int, parts: tuple[int, ...]) -> _Round:
        comm, own = self._comm, self._places.own
        mine = chosen[first : first + parts[comm.rank]]
        every = collect_rows(mine, parts, comm, self._tag, "choices")  # [n, K]
        owner, local = self._places.locate(every.clamp(min=0))
        here = (every >= 0) & (owner == comm.rank)  # [n, K]
        asking = here.any(-1).nonzero().squeeze(1)  # [m]
        here, local = here[asking], local[asking]
        # Slots of this rank first, in their order, and no more columns than the fullest query needs.
        order = here.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        order = order[:, : int(here.sum(-1).max()) if asking.numel() else 0]  # [m, K']
        ok, local = here.gather(-1, order), local.gather(-1, order)
        ids, place = local[ok].unique(return_inverse=True)  # ascending
        idx = torch.zeros_like(local)
        idx[ok] = place
        held = int((ids < own).sum())
        return _Round(first=first, parts=parts, asking=asking, held=ids[:held], own=ids[held:] - own, idx=idx, ok=ok)

    def attend(self, q: Tensor, local: Tensor, layer: int) -> Tensor:
        prefix = self._prefix
        # Without an input that asks for gradient autograd would not come back, and the pages would miss theirs.
        anchor = torch.zeros((), requires_grad=prefix is not None and prefix.keeps_gradient)
        return _MergedAttention.apply(q, local, anchor, self, layer)

    def forward(self, q: Tensor, local: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Merged output [T, H, R] and log-sum-exp [T, H]; a ghost's are zero."""
        out = q.new_zeros(*q.shape[:2], self._value_width, dtype=self._exact)
        lse = q.new_zeros(q.shape[:2], dtype=self._exact)
        for part in self._rounds:
            mine = slice(part.first, part.first + part.parts[self._comm.rank])
            out[mine], lse[mine] = self._forward_round(q[mine], local, part, layer)
        return out, lse

    def _forward_round(self, q: Tensor, local: Tensor, part: _Round, layer: int) -> tuple[Tensor, Tensor]:
        comm, tag, heads = self._comm, replace(self._tag, layer=layer), q.shape[1]
        every = collect_rows(q, part.parts, comm, tag, "attend.queries")  # [n, H, D]
        partial = q.new_zeros(every.shape[0], heads, self._value_width + 1, dtype=self._exact)
        partial[..., -1] = EMPTY
        if part.asking.numel():
            asking = every[part.asking].to(self._exact)  # [m, H, D]
            found, score = self._kernels.attend(
                asking, self._table(local, part, layer), part.idx, part.ok, self._scale, self._value_width
            )
            partial[part.asking] = torch.cat([found, score.unsqueeze(-1)], dim=-1)
        count = part.parts[comm.rank]
        back = send_rows(
            partial, received=[count] * comm.size, sent=part.parts, comm=comm, tag=tag, name="attend.partial"
        ).view(comm.size, count, heads, self._value_width + 1)
        lse = back[..., -1].logsumexp(0)  # [count, H]; finite, since every query chose a row somewhere
        out = torch.zeros_like(back[0, ..., :-1])
        for one in back:  # the order of ranks
            out += (one[..., -1:] - lse.unsqueeze(-1)).exp() * one[..., :-1]
        return out, lse

    def backward(
        self, q: Tensor, local: Tensor, layer: int, out: Tensor, lse: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of q [T, H, D] and of this rank's rows of the pass [T, D]; prefix rows get theirs here."""
        grad_q, grad_local = torch.zeros_like(q), torch.zeros_like(local)
        for part in self._rounds:
            mine = slice(part.first, part.first + part.parts[self._comm.rank])
            mixed = (q[mine], out[mine], lse[mine], grad[mine].to(self._exact))
            grad_q[mine] = self._backward_round(mixed, local, grad_local, part, layer).to(q.dtype)
        return grad_q, grad_local

    def _backward_round(
        self, mixed: tuple[Tensor, ...], local: Tensor, grad_local: Tensor, part: _Round, layer: int
    ) -> Tensor:
        comm, tag = self._comm, replace(self._tag, layer=layer)
        q, out, lse, grad = collect_packed(mixed, part.parts, comm, tag, "attend.gradient")
        partial = q.new_zeros(q.shape, dtype=self._exact)  # [n, H, D]
        if part.asking.numel():
            partial[part.asking], grad_rows = self._kernels.attend_backward(
                q[part.asking].to(self._exact),
                self._table(local, part, layer),
                part.idx,
                part.ok,
                self._scale,
                out[part.asking],
                lse[part.asking],
                grad[part.asking],
            )
            held = part.held.numel()
            if self._prefix is not None and held:
                self._prefix.add_grad(layer, part.held, grad_rows[:held])
            grad_local.index_add_(0, part.own, grad_rows[held:])
        count = part.parts[comm.rank]
        back = send_rows(
            partial, received=[count] * comm.size, sent=part.parts, comm=comm, tag=tag, name="attend.query-gradient"
        ).view(comm.size, count, *q.shape[1:])
        total = torch.zeros_like(back[0])
        for one in back:  # the order of ranks
            total += one
        return total

    def _table(self, local: Tensor, part: _Round, layer: int) -> Tensor:
        """This rank's chosen rows of a round, [Uh + Uo, D]."""
        rows = local.index_select(0, part.own)
        prefix = self._prefix
        if prefix is None or not part.held.numel():
            return rows
        return torch.cat([prefix.rows(layer, part.held).to(self._exact), rows])


class _MergedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, local: Tensor, anchor: Tensor, reach: MergeReach, layer: int) -> Tensor:
        out, lse = reach.forward(q, local, layer)
        ctx.save_for_backward(q, local, out, lse)
        ctx.reach, ctx.layer = reach, layer
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, local, out, lse = ctx.saved_tensors
        grad_q, grad_local = ctx.reach.backward(q, local, ctx.layer, out, lse, grad)
        return grad_q, grad_local, None, None, None
