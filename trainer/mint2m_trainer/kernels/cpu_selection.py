"""Index scores and exact top-k of the CPU, fused: a score lives in a buffer of 256 and is kept only if it may count.

The rule: a candidate is one 64-bit integer, `score bits, made to sort | 2^32 - 1 - position`, and a larger integer
precedes. The whole order (score descending, position ascending) is then one comparison, no two candidates are equal,
and what is kept does not depend on how keys were cut into blocks nor on the order of the blocks. Scores are made by
`lanes`, the same bits wherever a key lies.

Per query a pool takes whatever beats the k-th best known so far; a full pool is cut back to the k best, which raises
the bar. Over random scores that happens about log(S / k) times, so the cost is that of scoring.
"""

from __future__ import annotations

import numpy as np

from mint2m_trainer.kernels.compiled import compiled
from mint2m_trainer.kernels.lanes import (
    LANES,
    LANES_OF_BITS,
    PANEL_ROWS,
    bits_of,
    collect_above,
    float_of,
    score_first,
    score_next,
    transpose8,
)

#: Keys scored together: [W, 256] of a narrow indexer stays in the first-level cache.
TILE_KEYS = 256
#: Positions share 64 bits with the score.
POSITION_LIMIT = 0xFFFFFFFF
#: Equal ranges of values that `keep_largest` counts in.
RANGES = 256
#: Sums of magnitudes below this cannot overflow float32 in any order of rounding.
SAFE_SUM = 1e38

_SIGN = np.uint32(0x80000000)
_ALL = np.uint32(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_EMPTY = np.float32(-np.inf)


@compiled
def pack(score: np.float32, position: int) -> np.uint64:
    """A finite score and a position below `POSITION_LIMIT` as one integer that sorts as candidates do."""
    bits = np.uint32(bits_of(score))
    ordered = bits ^ (_ALL if bits & _SIGN else _SIGN)
    return (np.uint64(ordered) << _SHIFT) | np.uint64(POSITION_LIMIT - position)


@compiled
def score_of(packed: np.uint64) -> np.float32:
    """The score in a candidate."""
    ordered = np.uint32(packed >> _SHIFT)
    return float_of(np.int32(ordered ^ (_SIGN if ordered & _SIGN else _ALL)))


@compiled
def pack_keys(keys, rows, panels, largest):  # type: ignore[no-untyped-def]
    """Lay out keys for scoring.

    Args:
        keys: [n, W] float32, of which the first `rows` count.
        panels: out, [tiles * W * 256]: for each tile its keys transposed, zero where there is none.
        largest: out, [W] float32: the greatest magnitude of each column; NaN where a key is NaN.
    """
    width = keys.shape[1]
    flat = keys.reshape(-1)
    largest[:] = 0.0
    for tile in range((rows + TILE_KEYS - 1) // TILE_KEYS):
        start, base = tile * TILE_KEYS, tile * TILE_KEYS * width
        count = min(TILE_KEYS, rows - start)
        if count < TILE_KEYS:
            panels[base : base + TILE_KEYS * width] = 0.0
        whole_rows, whole_columns = count - count % LANES, width - width % LANES
        for row in range(0, whole_rows, LANES):
            for column in range(0, whole_columns, LANES):
                transpose8(
                    flat,
                    (start + row) * width + column,
                    width,
                    panels,
                    base + column * TILE_KEYS + row,
                    TILE_KEYS,
                )
        for row in range(count):
            for column in range(0 if row >= whole_rows else whole_columns, width):
                panels[base + column * TILE_KEYS + row] = keys[start + row, column]
        for column in range(width):
            greatest = bits_of(largest[column])  # magnitudes sort by their bits, NaN above infinity
            for row in range(base + column * TILE_KEYS, base + (column + 1) * TILE_KEYS):
                greatest = max(greatest, bits_of(panels[row]) & np.int32(0x7FFFFFFF))
            largest[column] = float_of(greatest)


@compiled
def scan(q, w, qpos, panels, positions, largest, k, held, counts, pools, scores):  # type: ignore[no-untyped-def]
    """Score every query against packed keys and keep the k best of these and of those held.

    Args:
        q, w, qpos: [U, H, W] float32, [U, H] float32, [U] int64; U is T rounded up to a multiple of 4, and a query that
            is only padding has qpos -1.
        panels, largest: of `pack_keys`; positions: [n] int64 of its keys.
        held: in and out, [T, k] uint64 candidates in any order; counts: in and out, [T] how many.
        pools: scratch, [queries at once, k + room + 257] uint64, cut back past `k + room`.
        scores: scratch, [4 * 256] float32.

    Returns:
        -1, or the position of a visible row whose score is not finite; `held` is then of no use.
    """
    queries, heads, width = q.shape
    flat_q, flat_w = q.reshape(-1), w.reshape(-1)
    rows = positions.size
    tiles = (rows + TILE_KEYS - 1) // TILE_KEYS
    first, last = np.empty(tiles, np.int64), np.empty(tiles, np.int64)
    for tile in range(tiles):
        part = positions[tile * TILE_KEYS : min((tile + 1) * TILE_KEYS, rows)]
        first[tile], last[tile] = part.min(), part.max()
    group, full = pools.shape[0], pools.shape[1] - TILE_KEYS - 1
    offsets = np.empty(TILE_KEYS + LANES, np.uint8)
    spare, histogram = np.empty(pools.shape[1], np.uint64), np.empty(RANGES, np.int32)
    fill, bar = np.empty(group, np.int64), np.empty(group, np.uint64)
    safe = np.empty(group, np.bool_)
    for start in range(0, queries, group):
        members = min(group, queries - start)
        for i in range(members):
            t = start + i
            fill[i], bar[i] = counts[t] if t < held.shape[0] else 0, np.uint64(0)
            smallest = ~np.uint64(0)
            for slot in range(fill[i]):
                pools[i, slot] = held[t, slot]
                smallest = min(smallest, held[t, slot])
            if fill[i] == k:
                bar[i] = smallest
            bound = 0.0
            for head in range(heads):
                dot = 0.0
                for column in range(width):
                    dot += abs(np.float64(q[t, head, column])) * np.float64(largest[column])
                bound += abs(np.float64(w[t, head])) * dot + dot
            safe[i] = bound < SAFE_SUM  # False for NaN
        for tile in range(tiles):
            at, count = tile * TILE_KEYS, min(TILE_KEYS, rows - tile * TILE_KEYS)
            padded = count + (-count) % LANES
            for panel in range(0, members, PANEL_ROWS):
                t = start + panel
                if first[tile] > max(max(qpos[t], qpos[t + 1]), max(qpos[t + 2], qpos[t + 3])):
                    continue
                for head in range(heads):
                    q_at, w_at, step = (t * heads + head) * width, t * heads + head, heads * width
                    if head == 0:
                        score_first(
                            flat_q, q_at, step, panels, at * width, TILE_KEYS, width, scores, 0, TILE_KEYS, TILE_KEYS,
                            flat_w, w_at, heads,
                        )  # fmt: skip
                    else:
                        score_next(
                            flat_q, q_at, step, panels, at * width, TILE_KEYS, width, scores, 0, TILE_KEYS, TILE_KEYS,
                            flat_w, w_at, heads,
                        )  # fmt: skip
                for row_of_panel in range(PANEL_ROWS):
                    i, line = panel + row_of_panel, row_of_panel * TILE_KEYS
                    seen = qpos[start + i]
                    if first[tile] > seen:
                        continue
                    if last[tile] > seen:
                        for row in range(count):
                            if positions[at + row] > seen:
                                scores[line + row] = _EMPTY
                    if not safe[i]:
                        for row in range(count):
                            if positions[at + row] <= seen and not np.isfinite(scores[line + row]):
                                return positions[at + row]
                    for row in range(count, padded):
                        scores[line + row] = _EMPTY
                    near = collect_above(scores, line, padded, _edge(bar[i], first[tile]), LANES_OF_BITS, offsets)
                    used, least = fill[i], bar[i]
                    for n in range(near):
                        row = np.int64(offsets[n])
                        candidate = pack(scores[line + row], positions[at + row])
                        pools[i, used] = candidate  # past the end of the pool until it counts
                        used += np.int64(candidate > least)
                    if used > full:
                        bar[i] = keep_largest(pools[i], used, k, spare, histogram)
                        used = k
                    fill[i] = used
        for i in range(min(members, held.shape[0] - start)):
            if fill[i] > k:
                keep_largest(pools[i], fill[i], k, spare, histogram)
                fill[i] = k
            counts[start + i] = fill[i]
            for slot in range(fill[i]):
                held[start + i, slot] = pools[i, slot]
    return np.int64(-1)


@compiled
def _edge(bar, first):  # type: ignore[no-untyped-def]
    """The score that a candidate of a tile must exceed to have a chance against the k-th best, `bar`.

    At equal score only a lower position precedes, and the tile's lowest is `first`.
    """
    if bar == np.uint64(0):
        return _EMPTY
    score = score_of(bar)
    if first > POSITION_LIMIT - np.int64(bar & _LOW):
        return score
    return np.nextafter(score, _EMPTY)


@compiled
def keep_largest(values, count, k, spare, histogram):  # type: ignore[no-untyped-def]
    """Move the k largest of `values[:count]`, all different, to the front in any order; returns the least of them.

    One pass counts values in 256 equal ranges, one keeps those above the range that the k-th lies in; only that range
    is searched by comparisons. Where all lie in it (many equal scores), that is a plain quickselect of everything.

    `spare` is scratch of `count` values, `histogram` of `RANGES` counts.
    """
    least, greatest = values[0], values[0]
    for slot in range(1, count):
        least, greatest = min(least, values[slot]), max(greatest, values[slot])
    shift = np.uint64(0)
    while (greatest - least) >> shift >= np.uint64(RANGES):
        shift += np.uint64(1)
    histogram[:] = 0
    for slot in range(count):
        histogram[(values[slot] - least) >> shift] += 1
    cut, above = RANGES - 1, 0
    while above + histogram[cut] < k:
        above += histogram[cut]
        cut -= 1
    front, inside = 0, 0
    for slot in range(count):  # without a branch on the data
        value = values[slot]
        place = np.int64((value - least) >> shift)
        values[front] = value
        front += np.int64(place > cut)
        spare[inside] = value
        inside += np.int64(place == cut)
    kth = _largest_first(spare, inside, k - above)
    for slot in range(k - above):
        values[above + slot] = spare[slot]
    return kth


@compiled
def _largest_first(values, count, k):  # type: ignore[no-untyped-def]
    """Quickselect: the k largest of `values[:count]` to the front; returns the least of them, now at k - 1."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        # The median of three goes to the end as the pivot.
        if values[low] < values[middle]:
            values[low], values[middle] = values[middle], values[low]
        if values[low] < values[high]:
            values[low], values[high] = values[high], values[low]
        if values[high] < values[middle]:
            values[high], values[middle] = values[middle], values[high]
        pivot, border = values[high], low
        for here in range(low, high):  # without a branch on the data
            value = values[here]
            values[here] = values[border]
            values[border] = value
            border += np.int64(value > pivot)
        values[high] = values[border]
        values[border] = pivot
        if border == k - 1:
            break
        if border < k - 1:
            low = border + 1
        else:
            high = border - 1
    return values[k - 1]


@compiled
def unpack(held, counts, scores):  # type: ignore[no-untyped-def]
    """Turn sorted candidates into results, in place.

    Args:
        held: in, [T, k] uint64 ascending, the last `counts[t]` of them candidates; out, positions as int64, best first.
        scores: out, [T, k] float32, best first.
    """
    queries, k = held.shape
    line = np.empty(k, np.uint64)
    for t in range(queries):
        count = counts[t]
        for slot in range(count):
            line[slot] = held[t, k - 1 - slot]
        for slot in range(count):
            scores[t, slot] = score_of(line[slot])
            held[t, slot] = np.uint64(POSITION_LIMIT) - (line[slot] & _LOW)
        for slot in range(count, k):
            scores[t, slot] = _EMPTY
            held[t, slot] = ~np.uint64(0)  # -1 as int64
