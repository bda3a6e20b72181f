"""What a device must provide, and the one order of selection.

A candidate precedes another if its score is higher or, at equal score, its position is lower; -0.0 equals +0.0.
Index scores tie often (ReLU leaves many at exactly zero), so an implementation that leaves ties to its sort
trains another model under another layout. Every implementation returns candidates in this order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

#: Score of a slot that holds no candidate. Real scores are finite.
EMPTY = float("-inf")


class KernelError(Exception):
    """What a kernel was given has no result: a score that is not finite, or a type that it does not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBlock:
    """Indexer keys of adjacent rows: `keys` [S, W] of the rows at positions `start`, `start + 1`, …"""

    start: int
    keys: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The best rows of each query, best first.

    `scores` [T, K] with `-inf` in an empty slot; `positions` [T, K] int64 with -1 there.
    """

    scores: Tensor
    positions: Tensor


class Kernels(Protocol):
    """Chosen by device and dtype; every method is a pure function."""

    def topk(self, q: Tensor, w: Tensor, blocks: Iterable[KeyBlock], qpos: Tensor, k: int) -> Candidates:
        """The k rows of highest index score, `sum_h w_h relu(q_h . key)`, at or before each query.

        The bits of a score are part of the interface, so that no cut of the rows and no device selects otherwise:
        operands widened to float32 (float64 in a float64 run), columns and then heads ascending, every sum from +0.0,
        each product rounded before it is added.

        Args:
            q: indexer queries, [T, H, W].
            w: head weights, the scale included, [T, H].
            blocks: disjoint key blocks in any order.
            qpos: position of each query, [T] int64.
            k: slots a query; fewer visible rows leave empty slots at the end.

        Raises:
            KernelError: the score of a visible row is not finite, or a type is not one of this implementation's.
        """
        ...

    def attend(
        self, q: Tensor, rows: Tensor, idx: Tensor, ok: Tensor, scale: float, value_width: int
    ) -> tuple[Tensor, Tensor]:
        """Attention of each query over its own selected rows.

        Args:
            q: absorbed queries, [T, H, D].
            rows: [S, D]; the first `value_width` columns are also the values.
            idx: row of each slot, [T, K] int64; anything valid in an empty slot.
            ok: which slots count, [T, K] bool. A row named by two slots counts twice.

        Returns:
            (out [T, H, value_width], log-sum-exp of the scaled scores [T, H], never below float32). A query without a
            slot that counts has output zero and log-sum-exp `-inf`, so that partial results merge.
        """
        ...

    def attend_backward(
        self,
        q: Tensor,
        rows: Tensor,
        idx: Tensor,
        ok: Tensor,
        scale: float,
        out: Tensor,
        lse: Tensor,
        grad: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of `attend` in q [T, H, D], in q's dtype, and in rows [S, D], never below float32.

        Contributions to one row are added in the order of queries, then slots.
        """
        ...
