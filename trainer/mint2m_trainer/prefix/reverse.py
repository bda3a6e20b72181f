"""The reverse pass: chunks recomputed from last to first, each differentiated against its rows' gradient.

After all responses went backward, the pages hold dL/d(row). The last chunk's rows are made again with autograd and
backward runs from them, adding to adapters and to earlier pages; then the next chunk's gradient is complete, and
so on. Nothing larger than one chunk is ever on the graph, and the result is the gradient of the whole sequence. A
rank does so for its own rows; gradient of the rows of others went to them while the graph was walked.

Each recomputed row must equal its stored row bit for bit, or the gradient would belong to another function than
the one whose log-probs were scored. The ranks tell each other before anyone goes backward: a rank that stopped alone
would leave the others waiting in their next collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mint2m_trainer import compat
from mint2m_trainer.comm.collectives import collect_rows
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.model.seam import Passage, Tape
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.layout import Layout, Span
from mint2m_trainer.prefix.rows import ChunkRows, PrefixError, RowStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseReport:
    """What the reverse pass did on this rank; `row_difference` is the largest |recomputed - stored| of any rank.

    It is zero, or the pass aborted. `resumed_chunks` of `chunks` were gone through by an earlier execution; all other
    counts are of this one.
    """

    chunks: int
    resumed_chunks: int
    backward_calls: int
    rows_compared: int
    row_difference: float
    gradient_pages_released: int


class Kept(Protocol):
    """Keeps the state of a reverse pass every so often; see `resume.passes`."""

    def resume(self) -> int:
        """Put back the furthest state that every rank keeps; how many chunks were gone through there."""
        ...

    def due(self) -> bool:
        """Whether this rank's clock says that the state should be kept."""
        ...

    def save(self, reversed: int) -> None:
        """Keep the state after `reversed` chunks; a collective."""
        ...


def reverse_prefix(
    *,
    chunks: Sequence[Span],
    store: RowStore,
    decisions: Decisions,
    layout: Layout,
    comm: Comm,
    recompute: Callable[[Span, Tape], Passage],
    progress: Callable[[int, int], None],
    phase: str,
    kept: Kept | None = None,
) -> ReverseReport:
    """Reverse all chunks, from the last state that `kept` has where it has one; see the module. Progress in tokens.

    Raises:
        PrefixError: a recomputed row differs, naming chunk, layer and the largest difference.
        ProgressError, OSError: what is kept does not fit, or cannot be written.
    """
    compared, backwards, released, largest = 0, 0, 0, 0.0
    resumed = 0 if kept is None else kept.resume()
    total = chunks[-1].stop if chunks else 0
    progress(total - chunks[-resumed].start if resumed else 0, total)
    for done, span in enumerate(reversed(chunks[: len(chunks) - resumed]), start=resumed + 1):
        share = layout.share(span)
        stored = store.chunk_rows(span.index)
        gradients = [store.take_grad(layer, span.index) for layer in range(len(stored.rows))]  # each [count, D]
        store.release(span.index)  # attention of this chunk must see only what came before it
        released += len(stored.rows) if share.count else 0
        passage = recompute(span, decisions.replayer(share))
        found = _compare(passage, stored, span)
        due = kept is not None and kept.due()
        said = _agreed(found, comm, Tag(phase=phase, chunk=span.index), span, due=due)
        largest = max(largest, said.difference)
        compared += found.rows
        _backward([layer.local for layer in passage.layers], gradients)
        backwards += 1
        if kept is not None and (said.due or done == len(chunks)):
            kept.save(done)
        progress(total - span.start, total)
    decisions.finish()
    return ReverseReport(
        chunks=len(chunks),
        resumed_chunks=resumed,
        backward_calls=backwards,
        rows_compared=compared,
        row_difference=largest,
        gradient_pages_released=released,
    )


def _backward(made: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Go backward from a chunk's rows [T, D] against their gradient [count, D]; a ghost row's is zero."""
    pairs = []
    for row, grad in zip(made, gradients, strict=True):
        whole = row.new_zeros(row.shape)
        whole[: grad.shape[0]] = grad
        if row.requires_grad:  # rows below the first adapter depend on nothing that trains
            pairs.append((row, whole))
    if pairs:
        torch.autograd.backward([row for row, _ in pairs], [grad for _, grad in pairs])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Rows covered, the largest difference, and the first layer whose bits differ, -1 where none does."""

    rows: int
    difference: float
    layer: int


def _compare(passage: Passage, stored: ChunkRows, span: Span) -> _Compared:
    """Bitwise comparison of every row and key that this rank holds of a chunk."""
    if len(passage.layers) != len(stored.rows):
        raise PrefixError(f"chunk {span.index} made rows in {len(passage.layers)} of {len(stored.rows)} layers")
    compared, largest, first = 0, 0.0, -1
    for layer, (made, rows, keys) in enumerate(zip(passage.layers, stored.rows, stored.keys, strict=True)):
        pairs = [(made.rows, rows)]
        if made.keys is not None and keys is not None:
            pairs.append((made.keys, keys))
        for new, old in pairs:
            held = old.to(new.device)
            if torch.equal(_bits(new), _bits(held)):
                continue
            largest = max(largest, float((new - held).abs().max()))
            first = layer if first < 0 else first
        compared += rows.shape[0]
    return _Compared(rows=compared, difference=largest, layer=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """The largest difference of any rank, and whether rank 0 wants the state kept after this chunk."""

    difference: float
    due: bool


def _agreed(found: _Compared, comm: Comm, tag: Tag, span: Span, *, due: bool) -> _Said:
    """What the ranks say of a chunk; a collective.

    Raises:
        PrefixError: on every rank, where the rows of any rank differ; names the lowest layer, since what differs in one
            makes those above it differ, on other ranks too.
    """
    words = [found.difference, float(found.layer), float(due)]
    mine = torch.tensor([words], dtype=torch.float64, device=compat.device())
    every = collect_rows(mine, [1] * comm.size, comm, tag, "compare").tolist()
    apart = [(int(layer), rank, difference) for rank, (difference, layer, _) in enumerate(every) if layer >= 0]
    if apart:
        layer, rank, difference = min(apart)
        raise PrefixError(
            f"chunk {span.index} layer {layer}: recomputed rows differ from the stored by {difference:g} on rank {rank}"
        )
    return _Said(difference=max(difference for difference, *_ in every), due=bool(every[0][2]))


def _bits(x: Tensor) -> Tensor:
    """The tensor's bytes, so that NaN equals itself and -0.0 is not +0.0."""
    return x.contiguous().view(torch.uint8)
