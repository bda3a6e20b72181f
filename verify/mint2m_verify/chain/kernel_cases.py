"""Adversarial inputs for the hot kernels, and what float64 says they must give.

The rule: inputs are a function of the execution and the case alone, in integer arithmetic up to one scaling, so the
verifier makes them itself and a stage cannot choose easy ones or bring another execution's results. Selection is tried
on small integers, whose scores are exact in every dtype: ties are then real ties, and the right order is one. Sizes
cross what an implementation may cut at: 4 to 64 rows of a block, 256 keys of a tile, 16,384 keys of a pack.

Legend: T queries, S rows, H heads, W key width, D row width, R value width, K slots a query.
Sources: index score as in DeepSeek-V3.2, equation 1; attention as in `mint2m_trainer.kernels.interface`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mint2m_verify.documents.inputs import RunProfile

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

#: What a model computes in, as run profiles name it.
Dtype: TypeAlias = Literal["float32", "bfloat16", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopkCase:
    """Sizes of one selection; `spread` is the largest integer of a key, 0 makes every score zero: all tie."""

    queries: int
    rows: int
    heads: int
    width: int
    keep: int
    spread: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendCase:
    """Sizes of one attention; `scale` is the softmax scale, `empty` how many slots count for nothing.

    The last `without` queries have no slot that counts: their output is zero and their log-sum-exp `-inf`.
    """

    queries: int
    rows: int
    heads: int
    width: int
    value_width: int
    slots: int
    scale: float
    empty: int
    repeated: bool = False
    without: int = 0


TOPK: Mapping[str, TopkCase] = {
    "all-tie": TopkCase(queries=9, rows=40, heads=2, width=4, keep=7, spread=0, blocks=3),
    "few-values": TopkCase(queries=33, rows=257, heads=3, width=5, keep=16, spread=1, blocks=4),
    "many-values": TopkCase(queries=17, rows=300, heads=4, width=16, keep=32, spread=7, blocks=2),
    "more-slots-than-rows": TopkCase(queries=6, rows=5, heads=1, width=3, keep=9, spread=2, blocks=2),
    "one-row": TopkCase(queries=3, rows=1, heads=2, width=2, keep=1, spread=3, blocks=1),
    "one-slot": TopkCase(queries=21, rows=64, heads=2, width=8, keep=1, spread=2, blocks=5),
    "many-tiles": TopkCase(queries=18, rows=3001, heads=3, width=9, keep=130, spread=2, blocks=6),
    "two-packs": TopkCase(queries=5, rows=16_501, heads=1, width=3, keep=6, spread=1, blocks=3),
}

ATTEND: Mapping[str, AttendCase] = {
    "plain": AttendCase(queries=13, rows=64, heads=4, width=24, value_width=16, slots=12, scale=0.2, empty=0),
    "one-slot": AttendCase(queries=7, rows=9, heads=2, width=8, value_width=8, slots=1, scale=1.0, empty=0),
    "empty-slots": AttendCase(queries=19, rows=40, heads=3, width=12, value_width=4, slots=16, scale=0.3, empty=3),
    "sharp": AttendCase(queries=11, rows=50, heads=2, width=16, value_width=8, slots=10, scale=3.0, empty=2),
    "same-row-often": AttendCase(
        queries=31, rows=3, heads=2, width=8, value_width=8, slots=3, scale=0.5, empty=0, repeated=True
    ),
    "many-blocks": AttendCase(queries=9, rows=210, heads=5, width=23, value_width=17, slots=150, scale=0.2, empty=3),
    "nothing-counts": AttendCase(
        queries=10, rows=20, heads=3, width=10, value_width=6, slots=5, scale=0.4, empty=1, without=4
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopkInputs:
    """q [T, H, W], w [T, H], keys [S, W], positions of queries [T], first row of each block."""

    q: F64
    w: F64
    keys: F64
    qpos: I64
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendInputs:
    """q [T, H, D], rows [S, D], idx [T, K], ok [T, K], grad of the output [T, H, R]; floats exact in float32."""

    q: F64
    rows: F64
    idx: I64
    ok: npt.NDArray[np.bool_]
    grad: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class TopkResult:
    """scores [T, K], `-inf` in empty slots; positions [T, K], -1 there."""

    scores: F64
    positions: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendResult:
    """out [T, H, R], log-sum-exp [T, H], gradients of q [T, H, D] and rows [S, D].

    `q_terms` and `rows_terms` are the largest sums of absolute terms in the two gradients. A softmax that is nearly one
    slot leaves gradients of almost nothing out of terms that cancel, and rounding is of the size of the terms.
    """

    out: F64
    lse: F64
    grad_q: F64
    grad_rows: F64
    q_terms: float
    rows_terms: float


def topk_inputs(name: str, execution_id: str) -> TopkInputs:
    """The inputs of selection case `name`: integers, so that every score is exact."""
    case, draw = TOPK[name], _Draws(f"topk/{name}", execution_id)
    bounds = sorted({0, *(int(n) for n in draw.integers((case.blocks - 1,), 1, max(case.rows, 2)) if n < case.rows)})
    return TopkInputs(
        q=draw.integers((case.queries, case.heads, case.width), -3, 4).astype(np.float64),
        w=draw.integers((case.queries, case.heads), -2, 3).astype(np.float64),
        keys=draw.integers((case.rows, case.width), -case.spread, case.spread + 1).astype(np.float64),
        qpos=draw.integers((case.queries,), 0, 2 * case.rows),
        starts=tuple(bounds),
    )


def planned_dtypes(profiles: Iterable[RunProfile]) -> tuple[Dtype, ...]:
    """What kernels are tried in: the dtypes of a plan's profiles; float32 for a plan that has none."""
    return tuple(sorted({profile.model.dtype for profile in profiles})) or ("float32",)


def attend_inputs(name: str, execution_id: str, dtype: Dtype = "float32") -> AttendInputs:
    """The inputs of attention case `name`, exact in `dtype`."""
    case, draw = ATTEND[name], _Draws(f"attend/{name}", execution_id)
    idx = np.stack([draw.distinct(case.slots, case.rows, repeated=case.repeated) for _ in range(case.queries)])
    ok = np.ones(idx.shape, dtype=bool)
    if case.empty:
        ok[:, case.slots - case.empty :] = False
        ok[0] = True  # one query uses every slot
    ok[case.queries - case.without :] = False
    q = draw.floats((case.queries, case.heads, case.width))
    rows = draw.floats((case.rows, case.width))
    grad = draw.floats((case.queries, case.heads, case.value_width))
    if dtype == "bfloat16":
        q, rows, grad = _bfloat16(q), _bfloat16(rows), _bfloat16(grad)
    return AttendInputs(q=q, rows=rows, idx=idx, ok=ok, grad=grad)


def topk_reference(inputs: TopkInputs, keep: int) -> TopkResult:
    """Every visible row scored, ordered by (score descending, position ascending), the first `keep` kept."""
    hits = np.maximum(np.einsum("thw,sw->ths", inputs.q, inputs.keys), 0.0)  # [T, H, S]
    score = np.einsum("th,ths->ts", inputs.w, hits) + 0.0  # [T, S]; -0.0 becomes +0.0
    queries, rows = score.shape
    scores = np.full((queries, keep), -np.inf)
    positions = np.full((queries, keep), -1, dtype=np.int64)
    for t in range(queries):
        visible = np.arange(min(int(inputs.qpos[t]) + 1, rows))
        order = visible[np.lexsort((visible, -score[t, visible]))][:keep]
        scores[t, : order.size], positions[t, : order.size] = score[t, order], order
    return TopkResult(scores=scores, positions=positions)


def attend_reference(inputs: AttendInputs, case: AttendCase) -> AttendResult:
    """Softmax attention over the selected rows and its gradient, in float64."""
    gathered = inputs.rows[inputs.idx]  # [T, K, D]
    values = gathered[..., : case.value_width]  # [T, K, R]
    logits = np.einsum("thd,tkd->thk", inputs.q, gathered) * case.scale
    logits = np.where(inputs.ok[:, None, :], logits, -np.inf)
    peak = logits.max(-1, keepdims=True)
    peak = np.where(np.isneginf(peak), 0.0, peak)  # of a query without a slot
    mass = np.exp(logits - peak).sum(-1, keepdims=True)  # [T, H, 1]
    with np.errstate(divide="ignore"):
        lse = peak + np.log(mass)  # [T, H, 1]; -inf where nothing counts
    weights = np.exp(logits - peak) / np.where(mass == 0.0, 1.0, mass)  # [T, H, K]
    out = np.einsum("thk,tkr->thr", weights, values)
    mean = (inputs.grad * out).sum(-1, keepdims=True)
    per_slot = np.einsum("thr,tkr->thk", inputs.grad, values)  # [T, H, K]
    slope = (per_slot - mean) * weights * case.scale
    steep = (np.abs(per_slot) + np.abs(mean)) * weights * case.scale  # [T, H, K]
    value_part = np.einsum("thk,thr->tkr", weights, inputs.grad)
    each = np.einsum("thk,thd->tkd", slope, inputs.q)  # [T, K, D]
    each[..., : case.value_width] += value_part
    grad_rows = np.zeros_like(inputs.rows)
    np.add.at(grad_rows, inputs.idx.reshape(-1), each.reshape(-1, each.shape[-1]))
    return AttendResult(
        out=out,
        lse=lse[..., 0],
        grad_q=np.einsum("thk,tkd->thd", slope, gathered),
        grad_rows=grad_rows,
        q_terms=float(np.einsum("thk,tkd->thd", steep, np.abs(gathered)).max()),
        rows_terms=float(np.einsum("thk,thd->tkd", steep, np.abs(inputs.q)).max() + np.abs(value_part).max()),
    )


def _bfloat16(values: F64) -> F64:
    """Each value, exact in float32, rounded to the nearest bfloat16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    rounded: F64 = bits.view(np.float32).astype(np.float64)
    return rounded


class _Draws:
    """Numbers from a seed's text: raw PCG64 words, which its authors fixed."""

    def __init__(self, case: str, execution_id: str) -> None:
        digest = hashlib.sha256(f"mint2m.kernel-case/v1\n{execution_id}\n{case}".encode()).digest()
        self._words = np.random.PCG64(int.from_bytes(digest, "big"))

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> I64:
        """Integers in [low, high)."""
        count = int(np.prod(shape))
        words = np.asarray(self._words.random_raw(count), dtype=np.uint64) >> np.uint64(32)
        drawn: I64 = (words % np.uint64(high - low)).astype(np.int64).reshape(shape) + low
        return drawn

    def floats(self, shape: tuple[int, ...]) -> F64:
        """Multiples of 2^-12 in [-2, 2): exact in float32."""
        return self.integers(shape, -(1 << 13), 1 << 13).astype(np.float64) / (1 << 12)

    def distinct(self, count: int, below: int, *, repeated: bool) -> I64:
        """`count` numbers below `below`, each once where it is not `repeated`."""
        if repeated:
            return self.integers((count,), 0, below)
        return np.argsort(self.integers((below,), 0, 1 << 31), kind="stable")[:count].astype(np.int64)
