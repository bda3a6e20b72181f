"""Which rows each query attends to, over the rows of all ranks.

Every rank scores the queries of all ranks against its own keys and keeps its best; the owner of a query merges the
ranks' candidates by (score descending, position ascending). The result is a function of the scores alone, whoever
held which row. Queries travel in rounds, so that nothing grows with prefix times chunk.

Within a rank local ids ascend with positions, so its own top-k may break ties by local id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mint2m_trainer.comm.packing import collect_packed, send_packed
from mint2m_trainer.kernels import Candidates, KeyBlock
from mint2m_trainer.model.indexer import IndexQuery
from mint2m_trainer.model.seam import Passage

#: Queries of all ranks together in one round.
ROUND_QUERIES = 512


class SelectionError(Exception):
    """An index score is not a number, so there is no order to select by."""


def rounds(counts: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Rounds over the ranks' queries: (first query of each rank, queries of each rank), the same on every rank."""
    each = max(ROUND_QUERIES // len(counts), 1)
    for start in range(0, max(counts), each):
        yield start, tuple(min(max(count - start, 0), each) for count in counts)


@torch.no_grad()
def choose_rows(query: IndexQuery, keys: Tensor, passage: Passage, *, layer: int, top_k: int) -> Tensor:
    """Positions of the selected rows, [T, K], best first, -1 in an empty slot.

    A ghost's query is nobody's: it is given the span's first row, so that its attention has something to look at.

    Args:
        query: of this rank's rows, a ghost's included.
        keys: this rank's keys of the pass, [count, W].
        top_k: rows a query keeps; K is less where fewer exist.
    """
    share, comm = passage.share, passage.comm
    kept = min(top_k, share.span.stop)
    if share.count == 0:
        ghost = torch.full((1, kept), -1, dtype=torch.int64, device=keys.device)
        ghost[0, 0] = share.span.start
    chosen: list[Tensor] = []
    for start, parts in rounds(share.counts):
        mine = slice(start, start + parts[comm.rank])
        gathered = (query.q[mine], query.weights[mine])
        q, weights = collect_packed(gathered, parts, comm, passage.tag(layer), "queries")  # [n, H, W], [n, H]
        visible = _visible(passage, start, parts)  # [n]
        found = passage.kernels.topk(q, weights, _blocks(passage, keys, layer), visible - 1, kept)
        chosen.append(_owned(found, parts, passage, layer, kept))
    return torch.cat(chosen) if share.count else ghost


def _blocks(passage: Passage, keys: Tensor, layer: int) -> Iterator[KeyBlock]:
    """This rank's keys in local ids: those of the prefix, then those of the pass."""
    if passage.prefix is not None:
        yield from passage.prefix.keys(layer)
    yield KeyBlock(start=passage.places.own, keys=keys)


def _visible(passage: Passage, start: int, parts: Sequence[int]) -> Tensor:
    """How many of this rank's rows each gathered query may look at, [n]; a prefix of its local ids."""
    share = passage.share
    offsets, offset = [], 0
    for count in share.counts:
        offsets.append(offset)
        offset += count
    device = passage.positions.device
    first = [torch.arange(o + start, o + start + n, device=device) for o, n in zip(offsets, parts, strict=True)]
    own = (torch.cat(first) + 1 - share.offset).clamp(min=0, max=share.count)  # [n], rows of the pass
    return passage.places.own + own


def _owned(found: Candidates, parts: Sequence[int], passage: Passage, layer: int, kept: int) -> Tensor:
    """The merged choice of this rank's queries of a round, [n, K] positions."""
    comm, mine = passage.comm, parts[passage.comm.rank]
    empty = found.positions < 0
    positions = passage.places.positions(found.positions.clamp(min=0)).masked_fill(empty, -1)  # [n, K]
    if comm.size == 1:
        return positions
    scores, positions = send_packed(
        (found.scores, positions),
        received=[mine] * comm.size,
        sent=parts,
        comm=comm,
        tag=passage.tag(layer),
        name="candidates",
    )
    shape = (comm.size, mine, kept)
    return merge_candidates(scores.view(shape), positions.view(shape), kept)


def merge_candidates(scores: Tensor, positions: Tensor, k: int) -> Tensor:
    """The k best of all ranks' candidates by (score descending, position ascending): positions [T, k].

    Args:
        scores: [ranks, T, k_local]; `-inf` in an empty slot, real scores are finite.
        positions: [ranks, T, k_local]; -1 in an empty slot.

    Raises:
        SelectionError: a score is not a number.
    """
    if bool(torch.isnan(scores).any()):
        raise SelectionError("an index score is not a number")
    flat = (scores + 0.0).transpose(0, 1).flatten(1)  # [T, ranks * k_local]; -0.0 becomes +0.0
    where = positions.transpose(0, 1).flatten(1)
    # Two stable sorts, least significant key first: position ascending, then score descending.
    by_position = where.argsort(dim=-1, stable=True)
    flat, where = flat.gather(-1, by_position), where.gather(-1, by_position)
    return where.gather(-1, flat.argsort(dim=-1, descending=True, stable=True)[:, :k])
