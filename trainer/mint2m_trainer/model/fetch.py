"""Attention that brings the chosen rows to the queries: route `fetch`.

The union of the rows that this rank's queries chose comes from its owners by all-to-all, each row once. The table is
not kept for backward but fetched again, so that no layer's table outlives the layer. The gradient of a row goes back
the same way and is added by its owner in the order of ranks, float32 or float64 all along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mint2m_trainer.comm.collectives import exchange_counts, send_rows
from mint2m_trainer.model.seam import Passage
from mint2m_trainer.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one rank asks of this one: ascending local ids of prefix rows, and ascending rows of the pass."""

    held: Tensor
    own: Tensor

    @property
    def count(self) -> int:
        """Rows asked for."""
        return self.held.numel() + self.own.numel()


class FetchReach:
    """`Reach` by fetching; the exchange is settled once and serves every layer that shares the choice."""

    def __init__(self, chosen: Tensor, passage: Passage, spec: ModelSpec, page_dtype: torch.dtype, layer: int) -> None:
        """`chosen` [T, K] positions, -1 in an empty slot, at least one a query."""
        # Not the passage itself: it leads to this object, and a cycle through the graph is never collected.
        self._prefix, self._comm, self._tag, self._page_dtype = (
            passage.prefix,
            passage.comm,
            passage.tag(layer),
            page_dtype,
        )
        self.scale, self.value_width, self.kernels = spec.softmax_scale, spec.kv_rank, passage.kernels
        comm, places, tag = passage.comm, passage.places, self._tag
        self.ok = chosen >= 0  # [T, K]
        used = torch.zeros(passage.share.span.stop, dtype=torch.bool, device=chosen.device)
        used[chosen[self.ok]] = True
        positions = used.nonzero().squeeze(1)  # [U] ascending
        owner, local = places.locate(positions)
        order = owner.argsort(stable=True)  # by owner, then position: what arrives is in this order
        place = torch.zeros(used.numel(), dtype=torch.int64, device=chosen.device)
        place[positions[order]] = torch.arange(positions.numel(), device=chosen.device)
        self.idx = place[chosen.clamp(min=0)].masked_fill(~self.ok, 0)  # [T, K]
        self._wanted = tuple(torch.bincount(owner, minlength=comm.size).tolist())
        counts = exchange_counts(self._wanted, comm, tag, "rows.asked")
        ids = send_rows(local[order], received=counts, sent=self._wanted, comm=comm, tag=tag, name="rows.asked")
        self._asked = tuple(_asked(part, places.own) for part in ids.split(list(counts)))

    def attend(self, q: Tensor, local: Tensor, layer: int) -> Tensor:
        prefix = self._prefix
        # Without an input that asks for gradient autograd would not come back, and the pages would miss theirs.
        anchor = torch.zeros((), requires_grad=prefix is not None and prefix.keeps_gradient)
        return _FetchedAttention.apply(q, local, anchor, self, layer)

    def fetch(self, local: Tensor, layer: int, name: str) -> Tensor:
        """The table of rows that this rank's queries chose, [U, D]; a collective."""
        rows = local.to(self._page_dtype)  # exact: the values are of that dtype already
        parts = []
        for asked in self._asked:
            if self._prefix is not None and asked.held.numel():
                parts.append(self._prefix.rows(layer, asked.held))
            parts.append(rows.index_select(0, asked.own))
        return send_rows(
            torch.cat(parts),
            received=self._wanted,
            sent=[asked.count for asked in self._asked],
            comm=self._comm,
            tag=replace(self._tag, layer=layer),
            name=name,
        )

    def give_back(self, grad: Tensor, local: Tensor, layer: int) -> Tensor:
        """Return the table's gradient [U, D] to the rows' owners; gives that of this rank's rows of the pass, [T, D].

        A collective. Each owner adds what comes from rank 0, then from rank 1, and so on.
        """
        counts = [asked.count for asked in self._asked]
        received = send_rows(
            grad,
            received=counts,
            sent=self._wanted,
            comm=self._comm,
            tag=replace(self._tag, layer=layer),
            name="rows.gradient",
        )
        total = torch.zeros_like(local)
        for asked, part in zip(self._asked, received.split(counts), strict=True):
            held = asked.held.numel()
            if self._prefix is not None and held:
                self._prefix.add_grad(layer, asked.held, part[:held])
            total.index_add_(0, asked.own, part[held:].to(total.dtype))
        return total


class _FetchedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, local: Tensor, anchor: Tensor, reach: FetchReach, layer: int) -> Tensor:
        table = reach.fetch(local, layer, "rows.fetch")
        out, lse = reach.kernels.attend(q, table, reach.idx, reach.ok, reach.scale, reach.value_width)
        ctx.save_for_backward(q, local, out, lse)
        ctx.reach, ctx.layer = reach, layer
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, local, out, lse = ctx.saved_tensors
        reach, layer = ctx.reach, ctx.layer
        table = reach.fetch(local, layer, "rows.fetch-again")
        grad_q, grad_table = reach.kernels.attend_backward(q, table, reach.idx, reach.ok, reach.scale, out, lse, grad)
        return grad_q, reach.give_back(grad_table, local, layer), None, None, None


def _asked(ids: Tensor, own: int) -> Asked:
    """Ascending local ids, cut where the rows of the pass begin."""
    held = int((ids < own).sum())
    return Asked(held=ids[:held], own=ids[held:] - own)
