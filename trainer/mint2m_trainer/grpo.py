"""The GRPO objective: advantages of a group, loss of each token, weight of each token.

The rule: a loss is a function of one response's tokens, and how responses and tokens are averaged is decided
once, outside it, by weights known before the first backward. Without it the gradient of one response would
depend on the others being in memory, and training on one response at a time could not be exact.

Sources: DeepSeekMath (arXiv 2402.03300) for the ratio, the group advantage and k3; DAPO (arXiv 2503.14476)
for the asymmetric clip and the token mean; Dr. GRPO (arXiv 2503.20783) for the constant norm; dual clip is
arXiv 1912.09729; k1, k2 and k3 are Schulman's estimators of KL(policy || reference).

Legend: R scored tokens of one response, G responses of a group.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from mint2m_verify.documents.inputs import Accumulation

Estimator = Literal["k1", "k2", "k3"]


class Aggregation(enum.StrEnum):
    """How token losses become the loss of the group."""

    TOKEN_MEAN = "token_mean"
    SEQUENCE_MEAN = "sequence_mean"
    SEQUENCE_SUM_NORM = "sequence_sum_norm"


class LossError(ValueError):
    """Arguments that have no GRPO loss: a shape, a count or a constant out of range."""

    def __init__(self, subject: str, *, expected: str, actual: str) -> None:
        super().__init__(f"{subject}: expected {expected}, got {actual}")
        self.subject = subject
        self.expected = expected
        self.actual = actual


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Trust region of the ratio: [1 - low, 1 + high], and the bound of a negative gain."""

    low: float
    high: float
    dual: float | None

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1:
            raise LossError("clip low", expected="0 <= low <= 1", actual=str(self.low))
        if not (0 <= self.high < math.inf):
            raise LossError("clip high", expected="high >= 0, finite", actual=str(self.high))
        if self.dual is not None and not 1 < self.dual < math.inf:
            raise LossError("dual clip", expected="dual > 1, finite", actual=str(self.dual))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probs of the scored tokens, each [R], fp32 or fp64; gradient flows through `policy` only."""

    policy: Tensor
    old: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Reference log-probs [R] and the weight of the drift from them; absent where beta is 0."""

    logp: Tensor
    beta: float
    estimator: Estimator

    def __post_init__(self) -> None:
        if not 0 < self.beta < math.inf:
            raise LossError("beta", expected="beta > 0, finite; without it pass no reference", actual=str(self.beta))
        if self.estimator not in ("k1", "k2", "k3"):
            raise LossError("estimator", expected="k1, k2 or k3", actual=str(self.estimator))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Per token, each [R]. Only `loss` carries gradient; the rest is evidence, detached.

    `clipped_low` is ratio < 1 - low where the advantage is negative, `clipped_high` ratio > 1 + high where it
    is positive: the tokens whose policy gradient the clip removed. `kl` is not yet multiplied by beta.
    """

    loss: Tensor
    ratio: Tensor
    kl: Tensor | None
    clipped_low: Tensor
    clipped_high: Tensor


def token_loss(scores: Scores, advantage: Tensor, clip: Clip, reference: Reference | None) -> TokenLoss:
    """GRPO loss of each scored token; the caller weighs and sums (`token_weights`).

    Args:
        scores: policy and old log-probs, each [R]. R may be 0.
        advantage: [R], or [] for one value per response; same dtype.
        clip: bounds of the ratio; `dual` bounds the gain of a negative advantage from below by dual * A.
        reference: drift penalty, or None where the profile has beta 0.

    Raises:
        LossError: a shape or dtype that does not fit, naming both.
    """
    policy, old = scores.policy, scores.old
    _same(old, policy, "old log-probs")
    if advantage.dim() != 0:
        _same(advantage, policy, "advantages")
    elif advantage.dtype != policy.dtype:
        raise LossError("advantage dtype", expected=str(policy.dtype), actual=str(advantage.dtype))
    old, advantage = old.detach(), advantage.detach()

    low, high = 1.0 - clip.low, 1.0 + clip.high
    difference = policy - old  # [R]
    ratio = torch.exp(difference.detach())  # [R], exactly 1 on policy
    clipped_low = (ratio < low) & (advantage < 0)  # [R]
    clipped_high = (ratio > high) & (advantage > 0)  # [R]
    # min(ratio A, clip(ratio) A), and max(that, dual A) below 0, are A times a ratio that is held at one bound: the
    # one that a further move in the rewarded direction meets. A held token has no policy gradient, and stays off the
    # graph: its ratio may overflow, and 0 * inf would make the whole gradient NaN.
    bound = torch.ones_like(ratio).masked_fill(clipped_low, low).masked_fill(clipped_high, high)  # [R]
    held = clipped_low | clipped_high | (advantage == 0)  # [R]
    if clip.dual is not None:
        # A very unlikely old token with a negative advantage has an unbounded loss without it.
        beyond = (ratio > clip.dual) & (advantage < 0)  # [R]
        bound, held = bound.masked_fill(beyond, clip.dual), held | beyond
    moving = torch.exp(difference.masked_fill(held, 0.0))  # [R]
    gain = torch.where(held, bound, moving) * advantage  # [R]
    loss, kl = -gain, None
    if reference is not None:
        _same(reference.logp, policy, "reference log-probs")
        kl = drift(policy, reference.logp.detach(), reference.estimator)  # [R]
        loss = loss + reference.beta * kl
        kl = kl.detach()
    return TokenLoss(loss=loss, ratio=ratio, kl=kl, clipped_low=clipped_low, clipped_high=clipped_high)


def drift(policy: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """Estimate of KL(policy || reference), [R]; Schulman, "Approximating KL divergence", 2020."""
    difference = reference - policy  # [R]
    match estimator:
        case "k1":
            return -difference
        case "k2":
            return 0.5 * difference.square()
        case "k3":
            return torch.expm1(difference) - difference  # expm1 is exact near 0, where exp(d) - 1 is not
        case _:
            assert_never(estimator)


def group_advantages(rewards: Tensor, eps: float) -> Tensor:
    """(reward - mean) / (sample standard deviation + eps), [G]; equal rewards give exactly 0.

    Equal rewards are decided by comparison: their rounded mean may differ from them, and the difference
    divided by eps would be a large advantage made of nothing.
    """
    if rewards.dim() != 1 or len(rewards) < 2:
        raise LossError("rewards", expected="[G] with G >= 2", actual=str(list(rewards.shape)))
    if not 0 <= eps < math.inf:
        raise LossError("advantage eps", expected="eps >= 0, finite", actual=str(eps))
    if bool((rewards == rewards[0]).all()):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(correction=1) + eps)  # [G]


def token_weights(
    scored: Sequence[int],
    aggregation: Aggregation | str,
    *,
    norm_tokens: int | None,
    accumulation: Accumulation | None = None,
) -> tuple[float, ...]:
    """Weight of each token of response g, so that the loss is sum_g w_g * sum_t loss_gt.

    Args:
        scored: scored tokens of each response, [G]. A response without any leaves numerator and denominator
            of a mean; under `sequence_sum_norm` its sum is 0 and it still counts among the G.
        aggregation: `token_mean` 1 / sum_g R_g (DAPO); `sequence_mean` 1 / (G R_g) (DeepSeekMath);
            `sequence_sum_norm` 1 / (G norm_tokens) (Dr. GRPO).
        norm_tokens: the constant of `sequence_sum_norm`; not read by the others.
        accumulation: the group is one of a step over several prompts. Each sum then goes over the whole step, so that
            the losses of its groups add up to the one loss of all their tokens.
    """
    if len(scored) < 2 or min(scored) < 0:
        raise LossError("scored tokens", expected="counts of at least two responses", actual=str(list(scored)))
    total = sum(scored)
    if total == 0:
        raise LossError("scored tokens", expected="at least one in the group", actual="0")
    kind, groups = Aggregation(aggregation), 1
    responses = sum(1 for count in scored if count)
    if accumulation is not None:
        for subject, whole, own in (
            ("tokens", accumulation.tokens, total),
            ("responses", accumulation.responses, responses),
        ):
            if whole < own:
                raise LossError(f"{subject} of the step", expected=f"at least this group's {own}", actual=str(whole))
        total, responses, groups = accumulation.tokens, accumulation.responses, accumulation.prompts
    match kind:
        case Aggregation.TOKEN_MEAN:
            return tuple(1.0 / total for _ in scored)
        case Aggregation.SEQUENCE_MEAN:
            return tuple(1.0 / (responses * count) if count else 0.0 for count in scored)
        case Aggregation.SEQUENCE_SUM_NORM:
            if norm_tokens is None or norm_tokens < 1:
                raise LossError("norm_tokens", expected="a positive number of tokens", actual=str(norm_tokens))
            return tuple(1.0 / (groups * len(scored) * norm_tokens) for _ in scored)
        case _:
            assert_never(kind)


def unscored_tokens(*, response_tokens: int, old_logprobs: int) -> int:
    """How many leading tokens of a response have no old score: 0, or 1 under the older R-1 contract."""
    if response_tokens < 1:
        raise LossError("response", expected="at least one token", actual=str(response_tokens))
    missing = response_tokens - old_logprobs
    if missing not in (0, 1):
        raise LossError(
            "old log-probs",
            expected=f"{response_tokens} or {response_tokens - 1} entries",
            actual=str(old_logprobs),
        )
    return missing


def _same(value: Tensor, like: Tensor, subject: str) -> None:
    """Refuses what broadcasting or promotion would silently accept."""
    if like.dim() != 1 or value.shape != like.shape:
        raise LossError(subject, expected=f"shape {list(like.shape)} of the policy", actual=str(list(value.shape)))
    if value.dtype != like.dtype or not like.is_floating_point():
        raise LossError(subject, expected=f"dtype {like.dtype} of the policy", actual=str(value.dtype))
