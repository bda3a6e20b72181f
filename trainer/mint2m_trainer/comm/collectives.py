"""Collectives that move rows: to all ranks, or each to its own. Backward is a collective too, in the same order.

Nothing is summed here: who receives rows adds them in the order of ranks, so that a gradient does not depend on a
library's reduction tree. Shares may be uneven: every rank passes its own rows and the counts of all. A rank that has
nothing to send or to receive takes part all the same, so no rank waits for another that left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mint2m_trainer import compat
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag


def collect_rows(local: Tensor, counts: Sequence[int], comm: Comm, tag: Tag, name: str) -> Tensor:
    """All ranks' rows in rank order, [sum(counts), ...] on every rank, without autograd.

    Args:
        local: [n, ...]; the first `counts[rank]` rows count, a ghost row behind them does not.
        counts: rows of each rank.
    """
    mine = local[: counts[comm.rank]]
    comm.ledger.record(tag, f"{name}.gather", mine.numel() * mine.element_size())
    if comm.size == 1:
        return mine.contiguous()
    width = max(counts)
    padded = local.new_zeros(width, *local.shape[1:])
    padded[: mine.shape[0]] = mine
    every = [torch.empty_like(padded) for _ in range(comm.size)]
    dist.all_gather(every, padded, group=comm.group)
    return torch.cat([rows[:count] for rows, count in zip(every, counts, strict=True)])


def exchange_counts(sent: Sequence[int], comm: Comm, tag: Tag, name: str) -> tuple[int, ...]:
    """How many rows come from each rank, where this rank will send `sent[r]` rows to rank r."""
    comm.ledger.record(tag, f"{name}.counts", 8 * len(sent))
    if comm.size == 1:
        return tuple(sent)
    mine = torch.tensor(sent, dtype=torch.int64, device=compat.device())
    received = torch.empty_like(mine)
    dist.all_to_all_single(received, mine, group=comm.group)
    return tuple(received.tolist())


def send_rows(x: Tensor, *, received: Sequence[int], sent: Sequence[int], comm: Comm, tag: Tag, name: str) -> Tensor:
    """`exchange_rows` without autograd, for any dtype."""
    return _exchange(x, tuple(received), tuple(sent), comm, tag, name)


def exchange_rows(
    x: Tensor, *, received: Sequence[int], sent: Sequence[int], comm: Comm, tag: Tag, name: str
) -> Tensor:
    """All-to-all of rows, differentiable: `sent[r]` rows of `x` go to rank r, `received[r]` come from it."""
    return _ExchangeRows.apply(x, tuple(received), tuple(sent), comm, tag, name)


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        received: tuple[int, ...],
        sent: tuple[int, ...],
        comm: Comm,
        tag: Tag,
        name: str,
    ) -> Tensor:
        ctx.received, ctx.sent, ctx.comm, ctx.tag, ctx.name = received, sent, comm, tag, name
        return _exchange(x, received, sent, comm, tag, f"{name}.forward")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        back = _exchange(grad, ctx.sent, ctx.received, ctx.comm, ctx.tag, f"{ctx.name}.backward")
        return back, None, None, None, None, None


def _exchange(x: Tensor, received: tuple[int, ...], sent: tuple[int, ...], comm: Comm, tag: Tag, name: str) -> Tensor:
    comm.ledger.record(tag, name, x.numel() * x.element_size())
    if comm.size == 1:
        return x.view_as(x)
    result = x.new_empty(sum(received), *x.shape[1:])
    # As bytes: a backend need not know the dtype of what it only carries.
    dist.all_to_all_single(_bytes(result), _bytes(x.contiguous()), list(received), list(sent), group=comm.group)
    return result


def _bytes(rows: Tensor) -> Tensor:
    """[n, ...] contiguous -> [n, bytes a row] uint8, the same memory."""
    return rows.view(rows.shape[0], math.prod(rows.shape[1:])).view(torch.uint8)
