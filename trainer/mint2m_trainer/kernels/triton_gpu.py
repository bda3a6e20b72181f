"""Kernels for CUDA in Triton: scores, and sparse attention forward and backward, fused over selected rows.

Scores have the bits that the interface states: products and sums one by one, with contraction to fused multiply-adds
off at every launch. That forgoes tensor cores, which round in an order of their own; selection would then differ from
the CPU's and from a replay's. Selection itself is the reference's, on a tile of scores.

Attention widens bfloat16 and multiplies in float32 ("ieee": no TF32). A row's gradient is not added with atomics, whose
order nobody knows: each query's part is written out for a bounded tile and added in the order of queries, then slots.

Tested under Triton's interpreter (`TRITON_INTERPRET=1` when this module is imported), on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mint2m_trainer.kernels.interface import KernelError
from mint2m_trainer.kernels.reference import TorchKernels

#: Bytes of row gradients that wait to be added.
PENDING_BYTES = 1 << 28
#: Queries and keys of one score program; heads and slots of one attention program (`tl.dot` needs 16 each).
QUERIES, KEYS = 16, 128
HEADS, SLOTS = 16, 32


class TritonKernels(TorchKernels):
    """`Kernels` for float32 and bfloat16 on CUDA."""

    def _scores(self, q: Tensor, w: Tensor, keys: Tensor) -> Tensor:
        _accept(q, keys)
        queries, heads, width = q.shape
        q, w, keys = q.contiguous(), w.to(torch.float32).contiguous(), keys.contiguous()
        total = torch.empty(queries, keys.shape[0], dtype=torch.float32, device=q.device)
        grid = (triton.cdiv(queries, QUERIES), triton.cdiv(keys.shape[0], KEYS))
        _score[grid](
            q, w, keys, total, queries, keys.shape[0], heads, width,
            QUERIES=QUERIES, KEYS=KEYS, enable_fp_fusion=False,
        )  # fmt: skip
        return total

    def attend(
        self, q: Tensor, rows: Tensor, idx: Tensor, ok: Tensor, scale: float, value_width: int
    ) -> tuple[Tensor, Tensor]:
        _accept(q, rows)
        _check(rows, idx, ok)
        queries, heads, width = q.shape
        q, rows, idx, ok = q.contiguous(), rows.contiguous(), idx.contiguous(), ok.to(torch.int8).contiguous()
        out = q.new_empty(queries, heads, value_width)
        lse = torch.empty(queries, heads, dtype=torch.float32, device=q.device)
        _attend[(queries, triton.cdiv(heads, HEADS))](
            q, rows, idx, ok, out, lse, scale, heads, width, value_width, idx.shape[1],
            WIDTH=_power(width), VALUES=_power(value_width), HEADS=HEADS, SLOTS=SLOTS, enable_fp_fusion=False,
        )  # fmt: skip
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
        _accept(q, rows)
        _check(rows, idx, ok)
        queries, heads, width = q.shape
        value_width, slots = out.shape[2], idx.shape[1]
        q, rows, idx, ok = q.contiguous(), rows.contiguous(), idx.contiguous(), ok.to(torch.int8).contiguous()
        grad, lse = grad.contiguous(), lse.contiguous()
        mean = (grad.float() * out.float()).sum(-1)  # [T, H]
        grad_q = torch.empty_like(q)
        grad_rows = torch.zeros(rows.shape, dtype=torch.float32, device=q.device)
        sizes = {"WIDTH": _power(width), "VALUES": _power(value_width), "HEADS": HEADS, "SLOTS": SLOTS}
        _query_gradient[(queries, triton.cdiv(heads, HEADS))](
            q, rows, idx, ok, grad, lse, mean, grad_q, scale, heads, width, value_width, slots,
            **sizes, enable_fp_fusion=False,
        )  # fmt: skip
        tile = max(1, min(self._query_tile, PENDING_BYTES // max(1, slots * width * 4)))
        for start in range(0, queries, tile):
            part = slice(start, start + tile)
            count = q[part].shape[0]
            pending = torch.empty(count, slots, width, dtype=torch.float32, device=q.device)
            _row_gradient[(count, triton.cdiv(slots, SLOTS))](
                q[part], rows, idx[part], ok[part], grad[part], lse[part], mean[part], pending,
                scale, heads, width, value_width, slots, **sizes, enable_fp_fusion=False,
            )  # fmt: skip
            # A slot that does not count points at row 0, say, and adds zero.
            named = torch.where(ok[part] != 0, idx[part], 0)
            grad_rows.index_add_(0, named.reshape(-1), pending.flatten(0, 1))
        return grad_q, grad_rows


def _accept(q: Tensor, rows: Tensor) -> None:
    for tensor in (q, rows):
        if tensor.dtype not in (torch.float32, torch.bfloat16):
            raise KernelError(f"these kernels take float32 or bfloat16, not {tensor.dtype}")
        if tensor.device.type != "cuda" and isinstance(_score, triton.JITFunction):
            raise KernelError(f"a tensor on {tensor.device} is for Triton's interpreter only")


def _check(rows: Tensor, idx: Tensor, ok: Tensor) -> None:
    outside = ok & ((idx < 0) | (idx >= rows.shape[0]))
    if bool(outside.any()):
        query = int(outside.any(-1).nonzero()[0, 0])
        raise KernelError(f"query {query} selects a row outside the {rows.shape[0]} that there are")


def _power(width: int) -> int:
    """Triton's blocks are powers of two, and its products take 16 at least."""
    return max(16, triton.next_power_of_2(width))


@triton.jit
def _score(q, w, keys, total, queries, rows, heads, width, QUERIES: tl.constexpr, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """total[t, s] = sum over heads of w relu(sum over columns of q key), each ascending from +0.0."""
    t = (tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)).to(tl.int64)  # [QUERIES]
    s = (tl.program_id(1) * KEYS + tl.arange(0, KEYS)).to(tl.int64)  # [KEYS]
    here, there = t < queries, s < rows
    score = tl.zeros((QUERIES, KEYS), tl.float32)
    for head in range(heads):
        dot = tl.zeros((QUERIES, KEYS), tl.float32)
        for column in range(width):
            one = tl.load(q + (t * heads + head) * width + column, mask=here, other=0.0).to(tl.float32)
            other = tl.load(keys + s * width + column, mask=there, other=0.0).to(tl.float32)
            dot = dot + one[:, None] * other[None, :]
        weight = tl.load(w + t * heads + head, mask=here, other=0.0)  # [QUERIES]
        score = score + tl.where(dot < 0.0, 0.0, dot) * weight[:, None]  # keeps NaN
    tl.store(total + t[:, None] * rows + s[None, :], score, mask=here[:, None] & there[None, :])


@triton.jit
def _named(idx, ok, t, slot, slots):  # type: ignore[no-untyped-def]
    """Rows of slots and which count, [SLOTS] each; row 0 for one that does not."""
    inside = slot < slots
    counts = tl.load(ok + t * slots + slot, mask=inside, other=0) != 0
    return tl.where(counts, tl.load(idx + t * slots + slot, mask=inside, other=0), 0), counts


@triton.jit
def _block(table, row, column, step, width):  # type: ignore[no-untyped-def]
    """Rows `row` of a table [., step], columns below `width`, widened: [rows, columns], zero beyond."""
    place = table + row[:, None] * step + column[None, :]
    return tl.load(place, mask=(column < width)[None, :] & (row >= 0)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _rounded(x, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """float32 as `kind`; bfloat16 is rounded here, half to even, because Triton's interpreter cuts it off."""
    if kind == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        even = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = tl.where(x == x, even.to(tl.float32, bitcast=True), x)
    return x.to(kind)


@triton.jit
def _attend(
    q, rows, idx, ok, out, lse, scale, heads, width, value_width, slots,
    WIDTH: tl.constexpr, VALUES: tl.constexpr, HEADS: tl.constexpr, SLOTS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """One query and 16 heads; the maximum runs along, and what was summed under a lower one is scaled down."""
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)  # [HEADS]
    column, value = tl.arange(0, WIDTH), tl.arange(0, VALUES)
    at = tl.where(head < heads, t * heads + head, -1)  # [HEADS]
    query = _block(q, at, column, width, width)  # [HEADS, WIDTH]
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    mass = tl.zeros((HEADS,), tl.float32)
    total = tl.zeros((HEADS, VALUES), tl.float32)
    for first in range(0, slots, SLOTS):
        row, counts = _named(idx, ok, t, first + tl.arange(0, SLOTS), slots)
        row = tl.where(counts, row, -1)
        chosen = _block(rows, row, column, width, width)  # [SLOTS, WIDTH]
        score = tl.dot(query, tl.trans(chosen), input_precision="ieee") * scale  # [HEADS, SLOTS]
        score = tl.where(counts[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        still = tl.where(higher == float("-inf"), 0.0, higher)  # nothing counted yet
        weight = tl.exp(score - still[:, None])
        shrink = tl.exp(top - still)
        mass = mass * shrink + tl.sum(weight, 1)
        values = _block(rows, row, value, width, value_width)  # [SLOTS, VALUES]
        total = total * shrink[:, None] + tl.dot(weight, values, input_precision="ieee")
        top = higher
    some = mass != 0.0
    whole = tl.where(some, mass, 1.0)
    inside = head < heads
    tl.store(lse + at, tl.where(some, top + tl.log(whole), float("-inf")), mask=inside)
    place = out + at[:, None] * value_width + value[None, :]
    result = _rounded(total / whole[:, None], out.dtype.element_ty)
    tl.store(place, result, mask=inside[:, None] & (value < value_width)[None, :])


@triton.jit
def _slopes(query, pull, chosen, values, counts, lse, mean, scale):  # type: ignore[no-untyped-def]
    """Weights and gradients of the unscaled scores, [HEADS, SLOTS] each, zero where a slot does not count."""
    score = tl.dot(query, tl.trans(chosen), input_precision="ieee") * scale
    still = tl.where(lse == float("-inf"), 0.0, lse)
    weight = tl.where(counts[None, :], tl.exp(score - still[:, None]), 0.0)
    change = tl.dot(pull, tl.trans(values), input_precision="ieee") - mean[:, None]
    return weight, weight * change * scale


@triton.jit
def _query_gradient(
    q, rows, idx, ok, grad, lse, mean, grad_q, scale, heads, width, value_width, slots,
    WIDTH: tl.constexpr, VALUES: tl.constexpr, HEADS: tl.constexpr, SLOTS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """grad_q of one query and 16 heads, slots ascending."""
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column, value = tl.arange(0, WIDTH), tl.arange(0, VALUES)
    inside = head < heads
    at = tl.where(inside, t * heads + head, -1)
    query = _block(q, at, column, width, width)  # [HEADS, WIDTH]
    pull = _block(grad, at, value, value_width, value_width)  # [HEADS, VALUES]
    log_sum, average = tl.load(lse + at, mask=inside, other=0.0), tl.load(mean + at, mask=inside, other=0.0)
    total = tl.zeros((HEADS, WIDTH), tl.float32)
    for first in range(0, slots, SLOTS):
        row, counts = _named(idx, ok, t, first + tl.arange(0, SLOTS), slots)
        row = tl.where(counts, row, -1)
        chosen = _block(rows, row, column, width, width)  # [SLOTS, WIDTH]
        values = _block(rows, row, value, width, value_width)  # [SLOTS, VALUES]
        _, slope = _slopes(query, pull, chosen, values, counts, log_sum, average, scale)
        total += tl.dot(slope, chosen, input_precision="ieee")
    place = grad_q + at[:, None] * width + column[None, :]
    result = _rounded(total, grad_q.dtype.element_ty)
    tl.store(place, result, mask=inside[:, None] & (column < width)[None, :])


@triton.jit
def _row_gradient(
    q, rows, idx, ok, grad, lse, mean, pending, scale, heads, width, value_width, slots,
    WIDTH: tl.constexpr, VALUES: tl.constexpr, HEADS: tl.constexpr, SLOTS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """What one query adds to the rows of 32 of its slots, heads ascending by sixteens."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    column, value = tl.arange(0, WIDTH), tl.arange(0, VALUES)
    row, counts = _named(idx, ok, t, slot, slots)
    row = tl.where(counts, row, -1)
    chosen = _block(rows, row, column, width, width)  # [SLOTS, WIDTH]
    values = _block(rows, row, value, width, value_width)  # [SLOTS, VALUES]
    total = tl.zeros((SLOTS, WIDTH), tl.float32)
    for first in range(0, heads, HEADS):
        head = first + tl.arange(0, HEADS)
        inside = head < heads
        at = tl.where(inside, t * heads + head, -1)
        query = _block(q, at, column, width, width)  # [HEADS, WIDTH]
        pull = _block(grad, at, value, value_width, value_width)  # [HEADS, VALUES]
        wide_pull = _block(grad, at, column, value_width, value_width)  # [HEADS, WIDTH], zero past the values
        log_sum, average = tl.load(lse + at, mask=inside, other=0.0), tl.load(mean + at, mask=inside, other=0.0)
        weight, slope = _slopes(query, pull, chosen, values, counts, log_sum, average, scale)
        total += tl.dot(tl.trans(slope), query, input_precision="ieee")
        total += tl.dot(tl.trans(weight), wide_pull, input_precision="ieee")
    place = pending + (t * slots + slot)[:, None] * width + column[None, :]
    tl.store(place, total, mask=(slot < slots)[:, None] & (column < width)[None, :])
