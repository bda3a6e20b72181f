"""The fast kernels of the CPU: `lanes` under selection and attention, one thread, bounded scratch.

Takes float32 and bfloat16; bfloat16 is widened, which is exact, and every sum is float32. Anything else is refused:
`choose_kernels` gives float64 to the torch kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mint2m_trainer.kernels import cpu_attention as attention
from mint2m_trainer.kernels import cpu_selection as selection
from mint2m_trainer.kernels.interface import Candidates, KernelError, KeyBlock
from mint2m_trainer.kernels.lanes import PANEL_ROWS

#: Keys packed at once. Every pack costs a pass over the kept candidates, so many are kept apart by more keys.
PACK_KEYS = 1 << 14
PACKED_PER_KEPT = 16
#: Queries that share a tile of keys while it is in the first-level cache; a multiple of 4.
QUERIES_AT_ONCE = 16
#: A pool holds k and room for as many again, at least this.
POOL_ROOM = 128


class CpuKernels:
    """`Kernels` compiled for this processor."""

    def __init__(self, *, query_tile: int) -> None:
        """`query_tile` queries are copied and converted at once."""
        if query_tile < 1:
            raise ValueError(f"query_tile is at least 1, not {query_tile}")
        self._query_tile = query_tile

    def topk(self, q: Tensor, w: Tensor, blocks: Iterable[KeyBlock], qpos: Tensor, k: int) -> Candidates:
        _accept(q, "q")
        queries = q.shape[0]
        scores = torch.empty(queries, k, dtype=torch.float32)
        positions = torch.zeros(queries, k, dtype=torch.int64)
        if k == 0 or queries == 0:
            return Candidates(scores=scores, positions=positions)
        held = positions.numpy().view(np.uint64)  # the candidates live where the positions will
        counts = np.zeros(queries, np.int64)
        pools = np.empty((QUERIES_AT_ONCE, k + max(k, POOL_ROOM) + selection.TILE_KEYS + 1), np.uint64)
        line = np.empty(PANEL_ROWS * selection.TILE_KEYS, np.float32)
        for pack in _packs(blocks, q.shape[2], max(PACK_KEYS, PACKED_PER_KEPT * k)):
            for part in _parts(queries, self._query_tile):
                wide = _padded(q[part], 0.0), _padded(w[part], 0.0), _padded(qpos[part], -1)
                fault = selection.scan(
                    *wide, pack.panels, pack.positions, pack.largest, k, held[part], counts[part], pools, line
                )
                if fault >= 0:
                    raise KernelError(f"the index score of row {fault} is not finite")
        for part in _parts(queries, self._query_tile):
            held[part].sort(axis=1)
            selection.unpack(held[part], counts[part], scores[part].numpy())
        return Candidates(scores=scores, positions=positions)

    def attend(
        self, q: Tensor, rows: Tensor, idx: Tensor, ok: Tensor, scale: float, value_width: int
    ) -> tuple[Tensor, Tensor]:
        _accept(q, "q")
        queries, heads, _ = q.shape
        table = _table(rows)
        out = q.new_empty(queries, heads, value_width)
        lse = torch.empty(queries, heads, dtype=torch.float32)
        for part in _parts(queries, self._query_tile):
            wide = torch.empty(part.stop - part.start, heads, value_width, dtype=torch.float32)
            fault = attention.attend(
                _wide(q[part]), table, *_slots(idx[part], ok[part]), np.float32(scale), wide.numpy(), lse[part].numpy()
            )
            _all_named(fault, part, rows)
            out[part] = wide
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
        _accept(q, "q")
        _accept(grad, "grad")
        table = _table(rows)
        grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
        grad_rows = torch.zeros(rows.shape, dtype=torch.float32)
        for part in _parts(q.shape[0], self._query_tile):
            wide = torch.empty(part.stop - part.start, *q.shape[1:], dtype=torch.float32)
            fault = attention.attend_backward(
                _wide(q[part]),
                table,
                *_slots(idx[part], ok[part]),
                np.float32(scale),
                _wide(out[part]),
                _wide(lse[part]),
                _wide(grad[part]),
                wide.numpy(),
                grad_rows.numpy(),
            )
            _all_named(fault, part, rows)
            grad_q[part] = wide
        return grad_q, grad_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pack:
    """Keys laid out for scoring, until the next pack: see `cpu_selection.pack_keys`."""

    panels: np.ndarray
    positions: np.ndarray
    largest: np.ndarray


def _packs(blocks: Iterable[KeyBlock], width: int, most: int) -> Iterator[_Pack]:
    """Blocks of any size and order, gathered into packs of up to `most` keys that share their buffers."""
    staged = torch.empty(most, width, dtype=torch.float32)
    positions = np.empty(most, np.int64)
    panels = np.empty(-(-most // selection.TILE_KEYS) * selection.TILE_KEYS * width, np.float32)
    largest = np.empty(width, np.float32)
    count = 0

    def packed() -> _Pack:
        selection.pack_keys(staged.numpy(), count, panels, largest)
        return _Pack(panels=panels, positions=positions[:count], largest=largest)

    for block in blocks:
        _accept(block.keys, "keys")
        rows = block.keys.shape[0]
        if block.keys.shape[1] != width:
            raise KernelError(f"keys are {block.keys.shape[1]} wide and queries {width}")
        if block.start < 0 or block.start + rows > selection.POSITION_LIMIT:
            raise KernelError(f"rows from {block.start} on lie outside 32 bits")
        done = 0
        while done < rows:
            if count == most:
                yield packed()
                count = 0
            taken = min(rows - done, most - count)
            staged[count : count + taken].copy_(block.keys[done : done + taken])
            positions[count : count + taken] = np.arange(block.start + done, block.start + done + taken)
            count, done = count + taken, done + taken
    if count:
        yield packed()


def _padded(values: Tensor, fill: float) -> np.ndarray:
    """A contiguous copy with its first axis filled up to a multiple of 4; floating point becomes float32."""
    count = values.shape[0]
    dtype = torch.float32 if values.is_floating_point() else torch.int64
    out = torch.full((-(-count // PANEL_ROWS) * PANEL_ROWS, *values.shape[1:]), fill, dtype=dtype)
    out[:count].copy_(values)
    return out.numpy()


def _wide(values: Tensor) -> np.ndarray:
    """Contiguous float32, copied only where it is not."""
    return values.detach().to(torch.float32).contiguous().numpy()


def _table(rows: Tensor) -> np.ndarray:
    """Rows as they are kept: float32, or the 16 bits of each bfloat16; never a converted copy of the whole table."""
    _accept(rows, "rows")
    held = rows.detach().contiguous()
    return held.numpy() if held.dtype == torch.float32 else held.view(torch.int16).numpy().view(np.uint16)


def _slots(idx: Tensor, ok: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return idx.to(torch.int64).contiguous().numpy(), ok.contiguous().numpy()


def _all_named(fault: int, part: slice, rows: Tensor) -> None:
    if fault >= 0:
        raise KernelError(f"query {part.start + fault} selects a row outside the {rows.shape[0]} that there are")


def _parts(queries: int, size: int) -> Iterator[slice]:
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))


def _accept(tensor: Tensor, name: str) -> None:
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.bfloat16):
        raise KernelError(
            f"{name} is {tensor.dtype} on {tensor.device}; these kernels take float32 or bfloat16 on a CPU"
        )
