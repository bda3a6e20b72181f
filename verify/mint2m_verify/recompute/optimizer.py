"""The one AdamW step again, from the exported gradient, the adapter before it and the moments it went on from.

The rule: each operation is done in the dtype and order of `torch.optim.AdamW` for single tensors, so that the weights
must agree to 1 ulp; and the moments are compared too. After one step from zero state the update is nearly lr * sign(g)
whatever the gradient's size, so a test of the weights alone is blind to a scaled gradient or a dropped clip. The
moments are not: they are (1 - beta1) g and (1 - beta2) g^2. Where earlier moments and the gradient nearly cancel, the
result's own last place is finer than what went into it, so each sum is judged by its largest term.

Sources: Loshchilov and Hutter, arXiv 1711.05101; order as in PyTorch `_single_tensor_adamw`; the clip coefficient as in
`torch.nn.utils.clip_grad_norm_`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mint2m_verify.documents import OptimizerContract
from mint2m_verify.recompute.tensors import Floats
from mint2m_verify.sums import total

#: Added to the norm in the clip coefficient.
NORM_EPS = 1e-6

#: From so many times the smallest normal number on, one that a device flushes to zero is below a part in a million.
_LEAST_PRECISE = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The moments of one parameter, and how many steps led to them."""

    exp_avg: Floats
    exp_avg_sq: Floats
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """One parameter after the step, in the parameter's dtype.

    `terms` are the larger of each two that `exp_avg` is the sum of, without sign, and `reach` is what the step would
    have been with it alone.
    """

    parameter: Floats
    exp_avg: Floats
    exp_avg_sq: Floats
    terms: Floats
    reach: Floats


def gradient_norm(gradients: Iterable[Floats]) -> float:
    """L2 norm over all tensors, summed in float64."""
    return math.sqrt(total(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients))


def clip_coefficient(norm: float, clip: float) -> float:
    """min(1, clip / (norm + 1e-6)): what the gradient is multiplied by."""
    return min(1.0, clip / (norm + NORM_EPS))


def adamw(
    parameter: Floats, gradient: Floats, coefficient: float, contract: OptimizerContract, *, state: State | None
) -> Stepped:
    """Parameter and moments after one step.

    Args:
        parameter, gradient: of one shape and dtype, float32 or float64.
        coefficient: the clip coefficient.
        contract: the optimizer's constants.
        state: what the step goes on from, of the same shape and dtype; None is zero state.
    """
    kind = parameter.dtype.type
    # Scalars are rounded to the tensor's dtype first, as torch's kernels do.
    clipped = gradient * kind(coefficient)
    decayed = parameter * kind(1 - contract.lr * contract.weight_decay)
    number = 1 if state is None else state.steps + 1
    begin = np.zeros_like(clipped) if state is None else state.exp_avg
    exp_avg = _lerp(begin, clipped, 1 - contract.beta1)
    exp_avg_sq = kind(1 - contract.beta2) * clipped * clipped
    if state is not None:
        exp_avg_sq = state.exp_avg_sq * kind(contract.beta2) + exp_avg_sq
    step_size = contract.lr / (1 - contract.beta1**number)
    correction = math.sqrt(1 - contract.beta2**number)
    denominator = np.sqrt(exp_avg_sq) / kind(correction) + kind(contract.eps)
    moved = kind(-step_size) * exp_avg / denominator
    terms = np.maximum(np.abs(begin) * kind(contract.beta1), np.abs(clipped) * kind(1 - contract.beta1))
    return Stepped(
        parameter=decayed + moved,
        exp_avg=exp_avg,
        exp_avg_sq=exp_avg_sq,
        terms=terms,
        reach=kind(step_size) * terms / denominator,
    )


def first_step(parameter: Floats, gradient: Floats, coefficient: float, contract: OptimizerContract) -> Stepped:
    """`adamw` from zero state."""
    return adamw(parameter, gradient, coefficient, contract, state=None)


def ulp_distance(want: Floats, have: Floats, before: Floats, reach: Floats | None = None) -> tuple[float, float]:
    """Largest differences in units of the last place: of weights that began at zero, and of all others.

    The unit is that of the largest of the weight before, the weight after and the step: where weight and step nearly
    cancel, the result's own last place is far finer than what went into it.

    Args:
        reach: that of `Stepped`; None where the step began at zero state, and is as large as its reach.
    """
    if want.size == 0:
        return 0.0, 0.0
    scale = np.spacing(np.maximum(np.maximum(np.abs(want), np.abs(before)), _step_size(want, before, reach)))
    distance = _difference(want, have) / scale.astype(np.float64)
    fresh = before == 0
    return float(np.max(distance[fresh], initial=0.0)), float(np.max(distance[~fresh], initial=0.0))


def within_rounding(want: Floats, have: Floats, before: Floats, reach: Floats | None = None) -> bool:
    """Whether every weight is the wanted one to 1 ulp of the weight, plus 2 ulp of the step itself.

    The second part is for weights that begin at zero, where the step is all there is: torch's vectorized square root
    on a CPU is itself up to 1 ulp off, which the division carries on. `reach` is as in `ulp_distance`.
    """
    weight = np.spacing(np.maximum(np.abs(want), np.abs(before))).astype(np.float64)
    step = np.spacing(_step_size(want, before, reach)).astype(np.float64)
    return bool(np.all(_difference(want, have) <= weight + 2 * step))


def relative_difference(want: Floats, have: Floats, terms: Floats | None = None) -> float:
    """Largest elementwise difference, relative to the wanted value or, below it, to the least one that is precise.

    Args:
        terms: the largest term of each sum, without sign; None where the value is no sum.
    """
    if want.size == 0:
        return 0.0
    w, h = want.astype(np.float64), have.astype(np.float64)
    size = np.abs(w) if terms is None else np.maximum(np.abs(w), terms.astype(np.float64))
    # The floor is the dtype's, since the tensor's own would let one huge element hide what all others are.
    floor = float(np.finfo(want.dtype).tiny) * _LEAST_PRECISE
    return float(np.max(np.abs(h - w) / np.maximum(size, floor)))


def _step_size(want: Floats, before: Floats, reach: Floats | None) -> Floats:
    step: Floats = np.abs(want - before)
    return step if reach is None else np.maximum(step, reach)


def _difference(want: Floats, have: Floats) -> Floats:
    wide: Floats = np.abs(have.astype(np.float64) - want.astype(np.float64))
    return wide


def _lerp(begin: Floats, end: Floats, weight: float) -> Floats:
    """torch.lerp(begin, end, weight): below 0.5 it goes on from the beginning, from there back from the end.

    The product and the sum are one fused operation on most of a tensor: here both are done in float64 and rounded once.
    """
    kind = end.dtype.type
    span = (end - begin).astype(np.float64)
    if weight < 0.5:
        return (begin.astype(np.float64) + np.float64(kind(weight)) * span).astype(end.dtype)
    return (end.astype(np.float64) - span * np.float64(kind(1) - kind(weight))).astype(end.dtype)
