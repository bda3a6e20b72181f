"""The GRPO numbers again: advantages, token losses, clip counts, drift and the aggregated loss.

The rule: everything is computed in float64 from the log-probs and rewards, and the recorded numbers must agree to the
rounding of the dtype they were made in. A count at the very edge of the clip may fall either way by rounding, so a
count is held against the range that rounding allows, never against a single number that a rounding could refute.

Sources: DeepSeekMath (arXiv 2402.03300) for ratio, advantage and k3; DAPO (arXiv 2503.14476) for the asymmetric clip
and the token mean; Dr. GRPO (arXiv 2503.20783) for the constant norm; dual clip is arXiv 1912.09729.
Legend: R scored tokens of one response, G responses of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from mint2m_verify.documents.inputs import Accumulation, GrpoOptions

Vector: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRange:
    """How many tokens are clipped: at least `sure`, and at most `possible` with those at the edge."""

    sure: int
    possible: int

    def holds(self, count: int) -> bool:
        return self.sure <= count <= self.possible

    def __str__(self) -> str:
        return str(self.sure) if self.sure == self.possible else f"{self.sure} to {self.possible}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """Of one response, each [R] float64. `slack` bounds what rounding in the run's dtype can have moved a loss by,
    `ratio_slack` and `kl_slack` the same for ratio and drift.
    """

    loss: Vector
    ratio: Vector
    kl: Vector | None
    slack: Vector
    ratio_slack: Vector
    kl_slack: Vector
    clipped_low: CountRange
    clipped_high: CountRange


def machine_epsilon(dtype: str) -> float:
    """Spacing of the dtype in which a run computes its losses; log-probs are float32 at least."""
    return float(np.finfo(np.float64 if dtype == "float64" else np.float32).eps)


def group_advantages(rewards: Sequence[float], eps: float) -> Vector:
    """(reward - mean) / (sample standard deviation + eps), [G]; equal rewards give exactly 0."""
    values = np.asarray(rewards, dtype=np.float64)
    if np.all(values == values[0]):
        return np.zeros_like(values)
    advantages: Vector = (values - values.mean()) / (values.std(ddof=1) + eps)
    return advantages


def token_losses(
    *,
    policy: Sequence[float],
    old: Sequence[float],
    reference: Sequence[float] | None,
    advantage: float | Sequence[float],
    options: GrpoOptions,
    epsilon: float,
) -> TokenLosses:
    """The losses of one response's scored tokens.

    Args:
        policy, old, reference: log-probs, each [R]; `reference` is None where `kl_beta` is 0.
        advantage: of the response, or of each token, [R].
        epsilon: machine epsilon of the run's arithmetic.
    """
    new, before = np.asarray(policy, dtype=np.float64), np.asarray(old, dtype=np.float64)
    each: Vector = np.broadcast_to(np.asarray(advantage, dtype=np.float64), new.shape)  # [R]
    difference = new - before  # [R]
    with np.errstate(over="ignore"):
        ratio = np.exp(difference)  # [R]
    low, high = 1.0 - options.clip_low, 1.0 + options.clip_high
    gain = np.minimum(ratio * each, np.clip(ratio, low, high) * each)  # [R]
    if options.clip_dual is not None:
        gain = np.where(each < 0, np.maximum(gain, options.clip_dual * each), gain)
    loss, kl = -gain, None
    kl_moved = np.zeros_like(loss)
    # exp of a rounded difference is off by the difference's own rounding; each product and sum adds one more.
    uncertain = 4 * epsilon * (2 + np.abs(new) + np.abs(before))  # [R], relative, of the ratio
    ratio_slack = uncertain * ratio
    # A ratio that is surely past its bound no longer moves the loss. If it did here, a ratio of 1e300 would lend its
    # own rounding to a loss of 1, and any loss would be near enough.
    bound = np.where(each > 0, high, np.inf if options.clip_dual is None else options.clip_dual)  # [R]
    saturated = ratio * (1 - uncertain) > bound  # [R]
    moved = np.where(saturated, 0.0, np.abs(each) * ratio_slack)
    if reference is not None:
        anchor = np.asarray(reference, dtype=np.float64)
        kl = drift(new, anchor, options.kl_estimator)
        loss = loss + options.kl_beta * kl
        distance = anchor - new
        slope = _drift_slope(distance, options.kl_estimator)
        kl_moved = np.abs(distance) + 2 * np.abs(kl) + slope * (3 + np.abs(distance) + np.abs(anchor) + np.abs(new))
        moved = moved + 4 * epsilon * options.kl_beta * kl_moved
    edge = 4 * epsilon * (1 + np.abs(difference)) * np.maximum(ratio, 1.0)  # [R]
    return TokenLosses(
        loss=loss,
        ratio=ratio,
        kl=kl,
        slack=moved + 4 * epsilon * (1 + np.abs(loss)),
        ratio_slack=ratio_slack + 4 * epsilon,
        kl_slack=4 * epsilon * kl_moved,
        clipped_low=_count(low - ratio, edge, active=each < 0),
        clipped_high=_count(ratio - high, edge, active=each > 0),
    )


def drift(policy: Vector, reference: Vector, estimator: str) -> Vector:
    """Schulman's estimates of KL(policy || reference), [R]."""
    difference = reference - policy
    match estimator:
        case "k1":
            return -difference
        case "k2":
            return 0.5 * np.square(difference)
        case "k3":
            return np.expm1(difference) - difference
        case _:
            raise ValueError(f"the schema let an estimator pass: {estimator}")


def _drift_slope(difference: Vector, estimator: str) -> Vector:
    """|d estimate / d difference|, [R]: how far a rounding of the difference moves the estimate."""
    match estimator:
        case "k1":
            return np.ones_like(difference)
        case "k2":
            return np.abs(difference)
        case _:
            slope: Vector = np.abs(np.expm1(difference))
            return slope


def token_weights(
    scored: Sequence[int], options: GrpoOptions, accumulation: Accumulation | None = None
) -> tuple[float, ...]:
    """Weight of each token of response g, [G], so that the group's loss is the sum of weighted token losses.

    `token_mean` 1 / sum R_g; `sequence_mean` 1 / (G' R_g) over the G' responses with a scored token;
    `sequence_sum_norm` 1 / (G norm_tokens). All 0 where nothing is scored. In a step over several prompts each sum goes
    over all of them: R_g and G' are the step's, and G is that of every group together.
    """
    total, nonempty, groups = sum(scored), sum(1 for count in scored if count), 1
    if accumulation is not None:
        total, nonempty, groups = accumulation.tokens, accumulation.responses, accumulation.prompts
    match options.aggregation:
        case "token_mean":
            return tuple(1.0 / total if total else 0.0 for _ in scored)
        case "sequence_mean":
            return tuple(1.0 / (nonempty * count) if count else 0.0 for count in scored)
        case "sequence_sum_norm":
            norm = groups * len(scored) * options.norm_tokens if options.norm_tokens else 0
            return tuple(1.0 / norm if norm else 0.0 for _ in scored)
        case _:
            assert_never(options.aggregation)


def _count(beyond: Vector, edge: Vector, *, active: npt.NDArray[np.bool_]) -> CountRange:
    return CountRange(sure=int(np.sum(active & (beyond > edge))), possible=int(np.sum(active & (beyond > -edge))))
