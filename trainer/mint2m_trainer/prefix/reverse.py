"""The reverse pass: chunks recomputed from last to first, each differentiated against its rows' gradient.

After all responses went backward, the pages hold dL/d(row). The last chunk's rows are made again with autograd and
backward runs from them, adding to adapters and to earlier pages; then the next chunk's gradient is complete, and
so on. Nothing larger than one chunk is ever on the graph, and the result is the gradient of the whole sequence.

Each recomputed row must equal its stored row bit for bit, or the gradient would belong to another function than
the one whose log-probs were scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mint2m_trainer.comm.collectives import return_rows
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.model.seam import Passage, Tape
from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.layout import Layout, Share, Span
from mint2m_trainer.prefix.store import ChunkRows, PrefixError, RowStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseReport:
    """What the reverse pass did; `row_difference` is the largest |recomputed - stored|, zero or it aborted."""

    chunks: int
    backward_calls: int
    rows_compared: int
    row_difference: float
    gradient_pages_released: int


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
) -> ReverseReport:
    """Reverse all chunks; see the module.

    Raises:
        PrefixError: a recomputed row differs, naming chunk, layer and the largest difference.
    """
    compared, backwards, released, largest = 0, 0, 0, 0.0
    for done, span in enumerate(reversed(chunks), start=1):
        share = layout.share(span)
        stored = store.chunk_rows(span)
        gradients = [
            _own(store.take_grad(layer, span), share, comm, Tag(phase=phase, chunk=span.index, layer=layer))
            for layer in range(len(stored.rows))
        ]
        store.release(span)  # attention of this chunk must see only what came before it
        released += len(stored.rows)
        passage = recompute(span, decisions.replayer(span.index, share.rows))
        rows, difference = _compare(passage, stored, span)
        compared, largest = compared + rows, max(largest, difference)
        made = [layer.local for layer in passage.layers]
        torch.autograd.backward(made, [grad.to(row.dtype) for row, grad in zip(made, gradients, strict=True)])
        backwards += 1
        progress(done, len(chunks))
    decisions.finish()
    return ReverseReport(
        chunks=len(chunks),
        backward_calls=backwards,
        rows_compared=compared,
        row_difference=largest,
        gradient_pages_released=released,
    )


def _own(grad: Tensor, share: Share, comm: Comm, tag: Tag) -> Tensor:
    """This rank's rows of the ranks' summed gradient, [T, D]; zero for a ghost."""
    mine = return_rows(grad, share.counts, comm, tag, "pages")
    return mine if share.count else mine.new_zeros(share.rows, grad.shape[1])


def _compare(passage: Passage, stored: ChunkRows, span: Span) -> tuple[int, float]:
    """Bitwise comparison of every row and key of a chunk; returns the rows covered and the largest difference."""
    if len(passage.layers) != len(stored.rows):
        raise PrefixError(f"chunk {span.index} made rows in {len(passage.layers)} of {len(stored.rows)} layers")
    compared, largest = 0, 0.0
    for layer, (made, rows, keys) in enumerate(zip(passage.layers, stored.rows, stored.keys, strict=True)):
        pairs = [(made.rows, rows)]
        if made.keys is not None and keys is not None:
            pairs.append((made.keys, keys))
        for new, old in pairs:
            difference = float((new - old).abs().max()) if new.numel() else 0.0
            largest = max(largest, difference)
            if not torch.equal(_bits(new), _bits(old)):
                raise PrefixError(
                    f"chunk {span.index} layer {layer}: recomputed rows differ from the stored by {difference:g}"
                )
        compared += rows.shape[0]
    return compared, largest


def _bits(x: Tensor) -> Tensor:
    """The tensor's bytes, so that NaN equals itself and -0.0 is not +0.0."""
    return x.contiguous().view(torch.uint8)
