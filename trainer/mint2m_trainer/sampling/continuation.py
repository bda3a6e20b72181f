"""Responses under way: their rows beside the pages, and how one new token of each reaches both.

A decoded token leaves in every layer the row that a replay of the finished response would leave there, and on
full-indexer layers its key. They are kept here, a few rows for each response, so that no token is computed twice; the
pages stay as they were captured. The rule: a query sees the whole prefix, wherever its rows lie, and of the responses
only its own. All responses under way have the same length, so that one number is the position of all new tokens.

A response lies whole with one rank, which carries its token through the layers; a rank without a response under way
carries a ghost. Selection is that of a replay: candidates by (score descending, position ascending) over the prefix
and the response's own rows together. The chosen prefix rows are fetched, whichever route replays take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mint2m_trainer.comm.packing import collect_packed, send_packed
from mint2m_trainer.kernels import KeyBlock
from mint2m_trainer.model.fetch import FetchReach
from mint2m_trainer.model.indexer import IndexQuery
from mint2m_trainer.model.seam import Passage
from mint2m_trainer.model.selection import merge_candidates
from mint2m_trainer.model.spec import ModelSpec


class ResponseRows:
    """Rows of this rank's responses: for each layer [n, room, D], and keys [n, room, W] on full-indexer layers."""

    def __init__(self, *, spec: ModelSpec, responses: int, room: int, dtype: torch.dtype, device: torch.device) -> None:
        """`room` is the most tokens of a response; every one leaves a row but the last."""
        self.room = room
        self.rows = tuple(
            torch.zeros(responses, room, spec.row_width, dtype=dtype, device=device) for _ in range(spec.layers)
        )
        self.keys = tuple(
            torch.zeros(responses, room, spec.index_width, dtype=dtype, device=device)
            if spec.full_indexer(layer)
            else None
            for layer in range(spec.layers)
        )

    @property
    def held_bytes(self) -> int:
        """Memory of the cache."""
        tensors = (*self.rows, *(key for key in self.keys if key is not None))
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Continuation:
    """One step of all responses under way on this rank; see `model.seam.Continuation`."""

    def __init__(self, held: ResponseRows, spec: ModelSpec, *, slots: Tensor, length: int) -> None:
        """`slots` [n] are the places in `held` of this rank's responses under way, each of `length` rows so far."""
        self._held, self._spec, self._slots, self._length = held, spec, slots, length

    def reach(self, query: IndexQuery, keys: Tensor, passage: Passage, layer: int) -> ContinuationReach:
        """How this step's queries reach the rows that this full-indexer layer selects; a collective.

        Args:
            query: of this rank's tokens, a ghost included.
            keys: this rank's new keys, [n, W].
        """
        held = self._held.keys[layer]
        if held is None:
            raise RuntimeError(f"layer {layer} keeps no keys of a response")
        held[self._slots, self._length] = keys
        chosen = self._choose(query, held, passage, layer)  # [n, K] positions
        return ContinuationReach(
            chosen, passage, self._held, self._spec, slots=self._slots, length=self._length, layer=layer
        )

    def _choose(self, query: IndexQuery, held: Tensor, passage: Passage, layer: int) -> Tensor:
        """Positions of the selected rows of each query, [n, K], best first, -1 in an empty slot."""
        comm, counts, prefix = passage.comm, passage.share.counts, passage.places.prefix
        mine = counts[comm.rank]
        kept = min(self._spec.index_top_k, prefix + self._length + 1)
        given = (query.q[:mine], query.weights[:mine])
        q, weights = collect_packed(given, counts, comm, passage.tag(layer), "queries")  # [N, H, W], [N, H]
        own = passage.places.own
        last = torch.full((q.shape[0],), own - 1, dtype=torch.int64, device=q.device)  # the prefix, all of it
        found = passage.kernels.topk(q, weights, _prefix_keys(passage, layer, own, held), last, kept)
        empty = found.positions < 0
        positions = passage.places.positions(found.positions.clamp(min=0)).masked_fill(empty, -1)  # [N, K]
        scores, positions = send_packed(
            (found.scores, positions),
            received=[mine] * comm.size,
            sent=counts,
            comm=comm,
            tag=passage.tag(layer),
            name="candidates",
        )
        shape = (comm.size, mine, kept)
        own_scores, own_positions = self._own(query, held, passage, mine, kept)
        return merge_candidates(
            torch.cat([scores.view(shape), own_scores[None]]),
            torch.cat([positions.view(shape), own_positions[None]]),
            kept,
        )

    def _own(self, query: IndexQuery, held: Tensor, passage: Passage, mine: int, kept: int) -> tuple[Tensor, Tensor]:
        """Each query's candidates among the rows of its own response: scores and positions, [n, K]."""
        exact = torch.float64 if query.q.dtype == torch.float64 else torch.float32
        device = query.q.device
        scores = torch.empty(mine, kept, dtype=exact, device=device)
        positions = torch.empty(mine, kept, dtype=torch.int64, device=device)
        last = torch.tensor([self._length], dtype=torch.int64, device=device)
        for n, slot in enumerate(self._slots.tolist()):
            block = KeyBlock(start=0, keys=held[slot, : self._length + 1])
            found = passage.kernels.topk(query.q[n : n + 1], query.weights[n : n + 1], (block,), last, kept)
            scores[n] = found.scores[0]
            positions[n] = torch.where(found.positions[0] < 0, -1, found.positions[0] + passage.places.prefix)
        return scores, positions


class ContinuationReach:
    """`Reach` of one step: prefix rows fetched from their owners, a response's own rows from beside the pages."""

    def __init__(
        self,
        chosen: Tensor,
        passage: Passage,
        held: ResponseRows,
        spec: ModelSpec,
        *,
        slots: Tensor,
        length: int,
        layer: int,
    ) -> None:
        """`chosen` [n, K] positions, of the prefix and of the query's own response; n is 0 on a ghost's rank."""
        self._held, self._slots, self._length = held, slots, length
        self._ghost = chosen.shape[0] == 0
        if self._ghost:
            chosen = torch.full((1, chosen.shape[1]), -1, dtype=torch.int64, device=chosen.device)
        prefix = passage.places.prefix
        self._fetch = FetchReach(chosen.masked_fill(chosen >= prefix, -1), passage, spec, held.rows[layer].dtype, layer)
        self._own = chosen >= prefix  # [T, K]
        flat = slots[:, None] * held.room + (chosen - prefix) if not self._ghost else chosen
        self._places = flat[self._own]  # [own], rows of the flattened cache
        self._ok = self._fetch.ok | self._own
        if self._ghost:
            self._own[0, 0] = self._ok[0, 0] = True  # a ghost looks at its own row, which is nobody's

    def attend(self, q: Tensor, local: Tensor, layer: int) -> Tensor:
        """See `model.seam.Reach`; keeps this step's rows of `layer` on the way."""
        rows = self._held.rows[layer]
        new = local.to(rows.dtype)  # [T, D]; exact: the values are of that dtype already
        if self._ghost:
            beside = new
        else:
            rows[self._slots, self._length] = new
            beside = rows.flatten(0, 1).index_select(0, self._places)  # [own, D]
        fetched = self._fetch.fetch(local, layer, "rows.fetch")  # [U, D]
        idx = self._fetch.idx.clone()  # [T, K]
        idx[self._own] = torch.arange(beside.shape[0], device=idx.device) + fetched.shape[0]
        table = torch.cat([fetched, beside])  # [U + own, D]
        out, _ = self._fetch.kernels.attend(q, table, idx, self._ok, self._fetch.scale, self._fetch.value_width)
        return out


def _prefix_keys(passage: Passage, layer: int, own: int, like: Tensor) -> Iterator[KeyBlock]:
    """This rank's keys of the prefix, in local ids; a block of none ends them, for a rank that holds none."""
    if passage.prefix is not None:
        yield from passage.prefix.keys(layer)
    yield KeyBlock(start=own, keys=like.new_empty(0, like.shape[-1]))


def slots_of(active: Sequence[int], first: int, count: int) -> list[int]:
    """Of the responses under way those that a rank holds, by their place in its cache."""
    return [response - first for response in active if first <= response < first + count]
