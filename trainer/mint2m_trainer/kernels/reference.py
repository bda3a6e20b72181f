"""The torch kernels: exact in the order of selection, tiled over queries, the same on CPU and CUDA.

Nothing of size [T, K, D] or [T, S] outlives its tile. Selection uses `torch.topk` only for the k-th score; which
of the rows that tie with it are kept is decided by position, so the device's own order among ties never shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from mint2m_trainer.kernels.interface import EMPTY, Candidates, KernelError, KeyBlock


class TorchKernels:
    """`Kernels` in plain torch operations."""

    def __init__(self, *, query_tile: int) -> None:
        """`query_tile` queries are scored or attended at once."""
        if query_tile < 1:
            raise ValueError(f"query_tile is at least 1, not {query_tile}")
        self._query_tile = query_tile

    def topk(self, q: Tensor, w: Tensor, blocks: Iterable[KeyBlock], qpos: Tensor, k: int) -> Candidates:
        best: Candidates | None = None
        for block in blocks:
            found = self._topk_block(q, w, block, qpos, k)
            best = found if best is None else merge(best, found, k)
        if best is None:
            return _empty(q, k)
        return best

    def _topk_block(self, q: Tensor, w: Tensor, block: KeyBlock, qpos: Tensor, k: int) -> Candidates:
        queries, rows = q.shape[0], block.keys.shape[0]
        if rows == 0:
            return _empty(q, k)
        column = torch.arange(rows, device=q.device)
        every_row_is_past = bool((qpos.min() >= block.start + rows - 1).item())
        scores = q.new_empty(queries, k, dtype=_score_dtype(q))
        positions = torch.empty(queries, k, dtype=torch.int64, device=q.device)
        for tile in _tiles(queries, self._query_tile):
            score = self._scores(q[tile], w[tile], block.keys)  # [t, S]
            finite = torch.isfinite(score)  # [t, S]
            if not every_row_is_past:
                future = column[None, :] + block.start > qpos[tile][:, None]  # [t, S]
                score.masked_fill_(future, EMPTY)
                finite |= future
            if not bool(finite.all()):
                row = block.start + int(finite.all(0).logical_not().nonzero()[0, 0])
                raise KernelError(f"the index score of row {row} is not finite")
            kept, columns = select(score, min(k, rows))  # [t, min(k, S)] twice
            scores[tile, : kept.shape[1]] = kept
            positions[tile, : kept.shape[1]] = torch.where(kept == EMPTY, -1, columns + block.start)
        scores[:, min(k, rows) :] = EMPTY
        positions[:, min(k, rows) :] = -1
        return Candidates(scores=scores, positions=positions)

    def _scores(self, q: Tensor, w: Tensor, keys: Tensor) -> Tensor:
        """[t, H, W], [t, H], [S, W] -> [t, S]; a device's own way to the same bits goes here."""
        return index_scores(q, w, keys)

    def attend(
        self, q: Tensor, rows: Tensor, idx: Tensor, ok: Tensor, scale: float, value_width: int
    ) -> tuple[Tensor, Tensor]:
        queries, heads, _ = q.shape
        exact = _score_dtype(q)
        out = q.new_empty(queries, heads, value_width)
        lse = q.new_empty(queries, heads, dtype=exact)
        for tile in _tiles(queries, self._query_tile):
            gathered = _gather(rows, idx[tile]).to(exact)  # [t, K, D]; bfloat16 is widened, nothing is rounded to it
            logits = _logits(q[tile].to(exact), gathered, ok[tile], scale)  # [t, H, K]
            lse[tile] = logits.logsumexp(-1)
            weights = _weights(logits, lse[tile])  # [t, H, K]
            out[tile] = torch.bmm(weights, gathered[..., :value_width]).to(q.dtype)
        return out, lse

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
        exact = _score_dtype(q)
        value_width = out.shape[-1]
        grad_q = torch.empty_like(q)
        grad_rows = rows.new_zeros(rows.shape, dtype=exact)
        for tile in _tiles(q.shape[0], self._query_tile):
            gathered = _gather(rows, idx[tile]).to(exact)  # [t, K, D]
            q_tile, grad_out = q[tile].to(exact), grad[tile].to(exact)  # [t, H, D], [t, H, R]
            logits = _logits(q_tile, gathered, ok[tile], scale)  # [t, H, K]
            weights = _weights(logits, lse[tile])  # [t, H, K]
            mean = (grad_out * out[tile].to(exact)).sum(-1, keepdim=True)  # [t, H, 1]
            grad_logits = torch.bmm(grad_out, gathered[..., :value_width].transpose(1, 2))  # [t, H, K]
            grad_logits = (grad_logits - mean) * weights * scale  # [t, H, K]
            grad_q[tile] = torch.bmm(grad_logits, gathered).to(q.dtype)
            grad_gathered = torch.bmm(grad_logits.transpose(1, 2), q_tile)  # [t, K, D]
            grad_gathered[..., :value_width] += torch.bmm(weights.transpose(1, 2), grad_out)
            # An empty slot's index is a placeholder; its weight is zero, so what it adds is zero.
            grad_rows.index_add_(0, idx[tile].reshape(-1), grad_gathered.flatten(0, 1))
        return grad_q, grad_rows


def index_scores(q: Tensor, w: Tensor, keys: Tensor) -> Tensor:
    """`sum_h w_h relu(q_h . key)`, [T, S], never below float32; a negative zero comes out positive.

    Source: DeepSeek-V3.2, equation 1. Column by column and head by head, ascending, each sum from +0.0, every product
    rounded before it is added: a matrix product would be faster, but rounds a row of a short block otherwise than the
    same row of a long one (MKL does below 16 rows), and then which keys are kept would depend on the layout.
    """
    exact = _score_dtype(q)
    q, w, transposed = q.to(exact), w.to(exact), keys.to(exact).t().contiguous()  # [W, S]
    total = torch.zeros(q.shape[0], keys.shape[0], dtype=exact, device=q.device)
    dot, product = torch.empty_like(total), torch.empty_like(total)
    for head in range(q.shape[1]):
        dot.zero_()
        for column in range(q.shape[2]):
            dot.add_(torch.mul(q[:, head, column : column + 1], transposed[column], out=product))
        # Two operations, not `addcmul`, which may round once.
        total.add_(torch.mul(dot.relu_(), w[:, head : head + 1], out=product))
    # The sum starts at +0.0, and +0.0 + -0.0 is +0.0.
    return total


def select(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best columns of each row of `scores` [T, S], by (score descending, column ascending), k <= S.

    Returns:
        (scores [T, k], columns [T, k]), best first.
    """
    scores = scores + 0.0  # -0.0 becomes +0.0, so the two never compare by bit pattern
    # One more than is kept: only where it ties with the last kept can the device's order among ties show.
    best, columns = torch.topk(scores, min(k + 1, scores.shape[-1]), dim=-1)  # [T, k + 1], best first
    last, columns = best[:, k - 1 : k], columns[:, :k].clone()  # [T, 1], [T, k]
    tied = (best[:, k:] == last).any(-1)  # [T]
    if bool(tied.any()):
        columns[tied] = _select_tied(scores[tied], last[tied], k)
    columns = columns.sort(dim=-1).values  # ascending columns, so that the stable sort below keeps them so
    kept = scores.gather(-1, columns)
    order = kept.argsort(dim=-1, descending=True, stable=True)
    return kept.gather(-1, order), columns.gather(-1, order)


def _select_tied(scores: Tensor, last: Tensor, k: int) -> Tensor:
    """The columns kept where ties cross the cut-off, [T, k] ascending: all above it, then the lowest at it."""
    above, at = scores > last, scores == last  # [T, S]
    room = k - above.sum(-1, keepdim=True)  # [T, 1]
    kept = above | (at & (at.cumsum(-1) <= room))  # [T, S], exactly k a row
    return kept.nonzero()[:, 1].view(scores.shape[0], k)


def merge(one: Candidates, other: Candidates, k: int) -> Candidates:
    """The k best of two candidate sets of disjoint rows, in the same order whichever comes first."""
    scores = torch.cat([one.scores, other.scores], dim=-1)
    positions = torch.cat([one.positions, other.positions], dim=-1)
    # Two stable sorts, least significant key first: position ascending, then score descending.
    by_position = positions.argsort(dim=-1, stable=True)
    scores, positions = scores.gather(-1, by_position), positions.gather(-1, by_position)
    by_score = scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
    return Candidates(scores=scores.gather(-1, by_score), positions=positions.gather(-1, by_score))


def _empty(q: Tensor, k: int) -> Candidates:
    return Candidates(
        scores=torch.full((q.shape[0], k), EMPTY, dtype=_score_dtype(q), device=q.device),
        positions=torch.full((q.shape[0], k), -1, dtype=torch.int64, device=q.device),
    )


def _score_dtype(q: Tensor) -> torch.dtype:
    """Scores, weights and row gradients are float32, or float64 in a float64 run."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _gather(rows: Tensor, idx: Tensor) -> Tensor:
    """[S, D], [t, K] -> [t, K, D]."""
    return rows.index_select(0, idx.reshape(-1)).view(*idx.shape, rows.shape[1])


def _logits(q: Tensor, gathered: Tensor, ok: Tensor, scale: float) -> Tensor:
    """Scaled scores, [t, H, K], `-inf` in empty slots."""
    logits = torch.bmm(q, gathered.transpose(1, 2)) * scale  # [t, H, K]
    return logits.masked_fill_(~ok.unsqueeze(1), EMPTY)


def _weights(logits: Tensor, lse: Tensor) -> Tensor:
    """softmax from its log-sum-exp, [t, H, K]; zero where a query has no row, not NaN."""
    return (logits - lse.masked_fill(lse == EMPTY, 0.0).unsqueeze(-1)).exp_()


def _tiles(queries: int, size: int) -> Iterator[slice]:
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))
