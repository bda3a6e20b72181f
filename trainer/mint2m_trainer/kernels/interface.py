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

        Args:
            q: indexer queries, [T, H, W].
            w: head weights, the scale included, [T, H].
            blocks: disjoint key blocks in any order.
            qpos: position of each query, [T] int64.
            k: slots a query; fewer visible rows leave empty slots at the end.
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
            ok: which slots count, [T, K] bool; at least one a query.

        Returns:
            (out [T, H, value_width], log-sum-exp of the scaled scores [T, H]).
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
        """Gradients of `attend` in q [T, H, D] and rows [S, D].

        Contributions to one row are added in the order of queries, then slots.
        """
        ...
