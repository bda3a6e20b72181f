"""Sparse latent attention of the CPU, forward and backward, fused over blocks of 64 selected rows.

The rule: a query's result depends on its own rows in their own order and on nothing else. The rows of its counted
slots are gathered once, 64 at a time, in slot order; products run over D ascending, sums over rows ascending, and the
block's place in the list is fixed by the query alone. So neither the query tile nor what else is in the batch shows.

The softmax is stable: a running maximum is subtracted, and what was summed under a lower one is scaled down. Besides
results there is one block of scratch: rows, rows transposed, and [H, 64] weights.
"""

from __future__ import annotations

import math

import numpy as np

from mint2m_trainer.kernels.compiled import compiled
from mint2m_trainer.kernels.lanes import (
    LANES,
    PANEL_COLUMNS,
    PANEL_ROWS,
    add_row,
    copy_row,
    dot_row,
    exp_row,
    max_row,
    panel_add,
    panel_set,
    scale_row,
    slope_row,
    transpose8,
)

#: Selected rows worked on at once.
BLOCK = 64

_EMPTY = np.float32(-np.inf)


@compiled
def attend(q, rows, idx, ok, scale, out, lse):  # type: ignore[no-untyped-def]
    """Attention of each query over its counted slots.

    Args:
        q: [T, H, D] float32; rows: [S, D] float32, or bfloat16 as uint16; idx: [T, K] int64; ok: [T, K] bool.
        out: result, [T, H, R] float32; lse: result, [T, H] float32, `-inf` where no slot counts.

    Returns:
        -1, or the query whose slot names no row.
    """
    queries, heads, width = q.shape
    value_width = out.shape[2]
    wide, tall = _up(width, PANEL_COLUMNS), _up(heads, PANEL_ROWS)
    columns = _up(value_width, PANEL_COLUMNS)
    flat_q, flat_out = q.reshape(-1), out.reshape(-1)
    ids = np.empty(idx.shape[1], np.int64)
    query = np.zeros(tall * wide, np.float32)
    block, turned = np.zeros(BLOCK * wide, np.float32), np.empty(wide * BLOCK, np.float32)
    weights, total = np.zeros(tall * BLOCK, np.float32), np.empty(tall * columns, np.float32)
    highest, mass = np.empty(heads, np.float32), np.empty(heads, np.float32)
    for t in range(queries):
        count = _counted(idx[t], ok[t], rows.shape[0], ids)
        if count < 0:
            return t
        for head in range(heads):
            copy_row(flat_q, (t * heads + head) * width, query, head * wide, width)
        total[:] = 0.0
        highest[:], mass[:] = _EMPTY, 0.0
        for first in range(0, count, BLOCK):
            m = min(BLOCK, count - first)
            lanes = _up(m, PANEL_COLUMNS)
            _gather(rows, ids, first, m, block, turned, wide)
            for head in range(0, tall, PANEL_ROWS):
                panel_set(query, head * wide, wide, turned, 0, BLOCK, width, weights, head * BLOCK, BLOCK, lanes)
            for head in range(heads):
                at = head * BLOCK
                _scaled(weights, at, m, lanes, scale)
                top = max(highest[head], max_row(weights, at, lanes))
                if top > highest[head] and first > 0:
                    shrink = np.float32(math.exp(np.float64(highest[head]) - np.float64(top)))
                    mass[head] *= shrink
                    scale_row(total, head * columns, columns, shrink)
                highest[head] = top
                mass[head] += exp_row(weights, at, lanes, top)
            for head in range(0, tall, PANEL_ROWS):
                panel_add(weights, head * BLOCK, BLOCK, block, 0, wide, m, total, head * columns, columns, columns)
        for head in range(heads):
            if count == 0:
                lse[t, head] = _EMPTY
                out[t, head, :] = 0.0
                continue
            lse[t, head] = np.float32(np.float64(highest[head]) + math.log(np.float64(mass[head])))
            scale_row(total, head * columns, columns, np.float32(1.0) / mass[head])
            copy_row(total, head * columns, flat_out, (t * heads + head) * value_width, value_width)
    return np.int64(-1)


@compiled
def attend_backward(q, rows, idx, ok, scale, out, lse, grad, grad_q, grad_rows):  # type: ignore[no-untyped-def]
    """Gradients of `attend`.

    Args:
        q, rows, idx, ok, out, lse: as there; grad: [T, H, R] float32.
        grad_q: result, [T, H, D] float32; grad_rows: in and out, [S, D] float32, added to by query, then slot.

    Returns:
        -1, or the query whose slot names no row.
    """
    queries, heads, width = q.shape
    value_width = out.shape[2]
    wide, tall = _up(width, PANEL_COLUMNS), _up(heads, PANEL_ROWS)
    depth = 2 * tall
    flat_q, flat_out, flat_grad = q.reshape(-1), out.reshape(-1), grad.reshape(-1)
    flat_grad_q, flat_rows = grad_q.reshape(-1), grad_rows.reshape(-1)
    ids = np.empty(idx.shape[1], np.int64)
    # Queries above output gradients, so that both parts of a row's gradient are one product.
    both = np.zeros(depth * wide, np.float32)
    result = np.zeros(wide, np.float32)
    block, turned = np.zeros(BLOCK * wide, np.float32), np.empty(wide * BLOCK, np.float32)
    # Gradients of the scaled scores above weights, [depth, BLOCK], and the same transposed.
    factors, sideways = np.zeros(depth * BLOCK, np.float32), np.empty(BLOCK * depth, np.float32)
    pull = np.zeros(tall * BLOCK, np.float32)
    query_part, row_part = np.empty(tall * wide, np.float32), np.empty(BLOCK * wide, np.float32)
    mean = np.empty(heads, np.float32)
    for t in range(queries):
        count = _counted(idx[t], ok[t], rows.shape[0], ids)
        if count < 0:
            return t
        for head in range(heads):
            at = t * heads + head
            copy_row(flat_q, at * width, both, head * wide, width)
            copy_row(flat_grad, at * value_width, both, (tall + head) * wide, value_width)
            copy_row(flat_out, at * value_width, result, 0, value_width)
            mean[head] = dot_row(both, (tall + head) * wide, result, 0, wide)
        query_part[:] = 0.0
        for first in range(0, count, BLOCK):
            m = min(BLOCK, count - first)
            lanes = _up(m, PANEL_COLUMNS)
            _gather(rows, ids, first, m, block, turned, wide)
            for head in range(0, tall, PANEL_ROWS):
                at, held = head * BLOCK, (tall + head) * BLOCK
                panel_set(both, head * wide, wide, turned, 0, BLOCK, width, factors, held, BLOCK, lanes)
                panel_set(both, (tall + head) * wide, wide, turned, 0, BLOCK, value_width, pull, at, BLOCK, lanes)
            for head in range(heads):
                at, held = head * BLOCK, (tall + head) * BLOCK
                _scaled(factors, held, m, lanes, scale)
                exp_row(factors, held, lanes, lse[t, head])
                slope_row(factors, at, factors, held, pull, at, lanes, mean[head], scale)
            for head in range(0, tall, PANEL_ROWS):
                panel_add(factors, head * BLOCK, BLOCK, block, 0, wide, m, query_part, head * wide, wide, wide)
            for row in range(0, depth, LANES):
                for slot in range(0, lanes, LANES):
                    transpose8(factors, row * BLOCK + slot, BLOCK, sideways, slot * depth + row, depth)
            for slot in range(0, m, PANEL_ROWS):
                panel_set(sideways, slot * depth, depth, both, 0, wide, depth, row_part, slot * wide, wide, wide)
            for slot in range(m):
                add_row(row_part, slot * wide, flat_rows, ids[first + slot] * width, width)
        for head in range(heads):
            copy_row(query_part, head * wide, flat_grad_q, (t * heads + head) * width, width)
    return np.int64(-1)


@compiled
def _up(value, step):  # type: ignore[no-untyped-def]
    """`value` rounded up to a multiple of `step`."""
    return (value + step - 1) // step * step


@compiled
def _counted(idx, ok, rows, ids):  # type: ignore[no-untyped-def]
    """The rows of the slots that count, in slot order, into `ids`; returns how many, or -1 for one that is no row."""
    count = 0
    for slot in range(idx.size):
        if ok[slot]:
            if idx[slot] < 0 or idx[slot] >= rows:
                return -1
            ids[count] = idx[slot]
            count += 1
    return count


@compiled
def _gather(rows, ids, first, count, block, turned, wide):  # type: ignore[no-untyped-def]
    """`count` rows as float32, [64, wide], and transposed, [wide, 64]; zero beyond rows and columns."""
    width, flat = rows.shape[1], rows.reshape(-1)
    for slot in range(count):
        copy_row(flat, ids[first + slot] * width, block, slot * wide, width)
    lanes = _up(count, PANEL_COLUMNS)
    block[count * wide : lanes * wide] = 0.0
    for slot in range(0, lanes, LANES):
        for column in range(0, wide, LANES):
            transpose8(block, slot * wide + column, wide, turned, column * BLOCK + slot, BLOCK)


@compiled
def _scaled(scores, at, count, lanes, scale):  # type: ignore[no-untyped-def]
    """Scale `count` scores and give the padding up to `lanes` no weight."""
    scale_row(scores, at, lanes, scale)
    for slot in range(at + count, at + lanes):
        scores[slot] = _EMPTY
