"""Value and gradient of the group's loss against the published formulas, in Python floats, for every option.

The transcription below is of the formulas as printed, and its slope is worked out by hand from them; a test holds the
slope to differences of the transcription, so that an error in one of the two shows. What is tested against it is the
trainer's own way to the loss: `scoring.Group`, one response and a part of its tokens at a time.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch

from mint2m_trainer import grpo
from mint2m_trainer.scoring import Group
from mint2m_verify.documents import Rollout
from mint2m_verify.documents.inputs import GrpoOptions

LENGTHS = (7, 3, 11)
REWARDS = (1.0, -1.0, 0.25)

OPTIONS = GrpoOptions(
    clip_low=0.2,
    clip_high=0.28,
    clip_dual=None,
    kl_beta=0.0,
    kl_estimator="k3",
    advantage_eps=1e-6,
    aggregation="token_mean",
    norm_tokens=None,
    old_source="rollout",
    ref_source="rollout",
)

AGGREGATIONS = (("token_mean", None), ("sequence_mean", None), ("sequence_sum_norm", 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One scored token as the formulas see it."""

    policy: float  # log-probs
    old: float
    ref: float
    advantage: float


def token_objective(token: Token, options: GrpoOptions) -> float:
    """The summand of DeepSeekMath (arXiv 2402.03300) eq. 3 with DAPO's two clips (arXiv 2503.14476, eq. 8), the dual
    clip of arXiv 1912.09729, eq. 5, and, subtracted, beta times Schulman's k1, k2 or k3 of KL(policy || reference)
    ("Approximating KL Divergence", 2020), with r = reference / policy: -log r, (log r)^2 / 2, (r - 1) - log r.
    DeepSeekMath's eq. 4 is k3."""
    ratio, a = math.exp(token.policy) / math.exp(token.old), token.advantage
    clipped = min(max(ratio, 1 - options.clip_low), 1 + options.clip_high)
    gain = min(ratio * a, clipped * a)
    if options.clip_dual is not None and a < 0:
        gain = max(gain, options.clip_dual * a)
    r = math.exp(token.ref) / math.exp(token.policy)
    kl = {"k1": -math.log(r), "k2": math.log(r) ** 2 / 2, "k3": (r - 1) - math.log(r)}[options.kl_estimator]
    return gain - options.kl_beta * kl


def token_slope(token: Token, options: GrpoOptions) -> float:
    """d token_objective / d policy, by hand: d ratio = ratio, and each min, max and clip lets one side through."""
    ratio, a = math.exp(token.policy - token.old), token.advantage
    slope = ratio * a
    if (a > 0 and ratio > 1 + options.clip_high) or (a < 0 and ratio < 1 - options.clip_low):
        slope = 0.0
    if options.clip_dual is not None and a < 0 and ratio > options.clip_dual:
        slope = 0.0
    log_r = token.ref - token.policy
    drift = {"k1": 1.0, "k2": -log_r, "k3": 1.0 - math.exp(log_r)}[options.kl_estimator]
    return slope - options.kl_beta * drift


def aggregate(values: list[list[float]], options: GrpoOptions) -> float:
    """Token sums to the group: DAPO eq. 8; DeepSeekMath eq. 3; Dr. GRPO (arXiv 2503.20783), listing 1."""
    if options.aggregation == "token_mean":
        return sum(map(sum, values)) / sum(map(len, values))
    if options.aggregation == "sequence_mean":
        return sum(sum(row) / len(row) for row in values) / len(values)
    assert options.norm_tokens is not None
    return sum(sum(row) / options.norm_tokens for row in values) / len(values)


def normalized(rewards: tuple[float, ...], eps: float) -> list[float]:
    """DeepSeekMath section 4.1.2, the deviation being the sample's."""
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (deviation + eps) for r in rewards]


def log_probs(seed: int, spread: float) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Policy, old and reference of each response; ratios between exp(-spread) and exp(spread)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> torch.Tensor:
        return torch.rand(count, generator=generator, dtype=torch.float64)

    policy = [-spread - 0.1 - 3 * draw(n) for n in LENGTHS]
    old = [row + spread * (2 * draw(len(row)) - 1) for row in policy]
    ref = [row + spread * (2 * draw(len(row)) - 1) for row in policy]
    return tuple([row.tolist() for row in rows] for rows in (policy, old, ref))  # type: ignore[return-value]


def group_of(
    old: list[list[float]], ref: list[list[float]], options: GrpoOptions, rewards: tuple[float, ...] = REWARDS
) -> Group:
    rollout = Rollout(
        prompt_tokens=(1, 2),
        responses=tuple(tuple(range(n)) for n in LENGTHS),
        rewards=rewards,
        old_logprobs=tuple(map(tuple, old)),
        ref_logprobs=tuple(map(tuple, ref)),
    )
    return Group(rollout, options, torch.float64, torch.device("cpu"))


def ours(group: Group, policy: list[list[float]], cut: int) -> tuple[float, list[list[float]]]:
    """Loss and gradient as two ranks make them: the tokens of a response before `cut`, and the rest."""
    total, gradient = 0.0, []
    for g, row in enumerate(policy):
        logp = torch.tensor(row, dtype=torch.float64, requires_grad=True)
        edge = min(cut, len(row))
        for part in (slice(0, edge), slice(edge, len(row))):
            loss = group.loss_of(g, logp[part], part)
            loss.total.backward()
            total += float(loss.total.detach())
        assert logp.grad is not None
        gradient.append(logp.grad.tolist())
    return total, gradient


def theirs(rows: list[list[Token]], options: GrpoOptions) -> tuple[float, list[list[float]]]:
    """The negative objective and its gradient in each scored token's log-prob."""
    loss = -aggregate([[token_objective(token, options) for token in row] for row in rows], options)
    gradient = []
    for g, row in enumerate(rows):
        unit = [[0.0] * len(other) for other in rows]
        slopes = []
        for t, token in enumerate(row):
            unit[g][t] = 1.0
            slopes.append(-aggregate(unit, options) * token_slope(token, options))
            unit[g][t] = 0.0
        gradient.append(slopes)
    return loss, gradient


def tokens(
    policy: list[list[float]], old: list[list[float]], ref: list[list[float]], advantages: list[float]
) -> list[list[Token]]:
    return [
        [Token(policy=p, old=o, ref=r, advantage=a) for p, o, r in zip(*rows, strict=True)]
        for *rows, a in zip(policy, old, ref, advantages, strict=True)
    ]


@pytest.mark.parametrize(("aggregation", "norm"), AGGREGATIONS)
@pytest.mark.parametrize("dual", [None, 1.7])
@pytest.mark.parametrize(("beta", "estimator"), [(0.0, "k3"), (0.3, "k1"), (0.3, "k2"), (0.3, "k3")])
def test_loss_and_gradient_are_the_published_ones(
    aggregation: str, norm: int | None, dual: float | None, beta: float, estimator: str
) -> None:
    options = replace(
        OPTIONS,
        aggregation=aggregation,  # type: ignore[arg-type]
        norm_tokens=norm,
        clip_dual=dual,
        kl_beta=beta,
        kl_estimator=estimator,  # type: ignore[arg-type]
    )
    seen: set[str] = set()
    for seed, cut in itertools.product(range(4), (0, 3, 20)):
        policy, old, ref = log_probs(seed, spread=0.9)
        loss, gradient = ours(group_of(old, ref, options), policy, cut)
        rows = tokens(policy, old, ref, normalized(REWARDS, options.advantage_eps))
        want, slopes = theirs(rows, options)
        assert loss == pytest.approx(want, rel=1e-12, abs=1e-14)
        for mine, right in zip(gradient, slopes, strict=True):
            assert mine == pytest.approx(right, rel=1e-11, abs=1e-14)
        for token in itertools.chain(*rows):
            ratio = math.exp(token.policy - token.old)
            if token.advantage > 0 and ratio > 1.28:
                seen.add("high")
            elif token.advantage < 0 and ratio < 0.8:
                seen.add("low")
            elif token.advantage < 0 and ratio > 1.7:
                seen.add("dual")
            else:
                seen.add("free")
    assert seen == {"high", "low", "dual", "free"}  # every branch of the formula was met


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_slope_worked_out_by_hand_is_that_of_the_transcription(estimator: str) -> None:
    options = replace(OPTIONS, clip_dual=1.7, kl_beta=0.3, kl_estimator=estimator)  # type: ignore[arg-type]
    policy, old, ref = log_probs(9, spread=0.9)
    h = 1e-6
    for token in itertools.chain(*tokens(policy, old, ref, [1.3, -0.8, 0.0])):
        up = token_objective(replace(token, policy=token.policy + h), options)
        down = token_objective(replace(token, policy=token.policy - h), options)
        assert (up - down) / (2 * h) == pytest.approx(token_slope(token, options), abs=1e-8)


def test_on_policy_gradient_is_deepseekmaths_coefficient() -> None:
    """arXiv 2402.03300, eq. 21: where old = policy the coefficient of d log p is A + beta (ref / policy - 1)."""
    options = replace(OPTIONS, aggregation="sequence_mean", kl_beta=0.04, clip_low=0.1, clip_high=0.1)
    policy, _, ref = log_probs(3, spread=0.5)

    _, gradient = ours(group_of(policy, ref, options), policy, cut=2)

    advantages = normalized(REWARDS, options.advantage_eps)
    for g, row in enumerate(policy):
        right = [
            -(advantages[g] + 0.04 * (math.exp(ref[g][t] - p) - 1)) / (len(policy) * len(row))
            for t, p in enumerate(row)
        ]
        assert gradient[g] == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize(("aggregation", "norm"), AGGREGATIONS)
def test_without_a_first_old_score_the_first_token_is_in_no_sum_and_no_count(
    aggregation: str, norm: int | None
) -> None:
    options = replace(OPTIONS, aggregation=aggregation, norm_tokens=norm, kl_beta=0.1)  # type: ignore[arg-type]
    policy, old, ref = log_probs(5, spread=0.9)
    group = group_of([row[1:] for row in old], [row[1:] for row in ref], options)

    loss, gradient = ours(group, policy, cut=4)

    rows = tokens(
        [row[1:] for row in policy],
        [row[1:] for row in old],
        [row[1:] for row in ref],
        normalized(REWARDS, options.advantage_eps),
    )
    want, slopes = theirs(rows, options)
    assert loss == pytest.approx(want, rel=1e-12)
    for mine, right in zip(gradient, slopes, strict=True):
        assert mine[0] == 0.0
        assert mine[1:] == pytest.approx(right, rel=1e-11)


def test_equal_rewards_leave_no_policy_gradient_and_only_the_drift() -> None:
    policy, old, ref = log_probs(2, spread=0.9)
    equal = (0.1, 0.1, 0.1)
    silent = group_of(old, ref, OPTIONS, rewards=equal)
    assert silent.without_signal
    loss, gradient = ours(silent, policy, cut=3)
    assert loss == 0.0
    assert not any(itertools.chain(*gradient))

    drifting = replace(OPTIONS, kl_beta=0.3)
    loss, gradient = ours(group_of(old, ref, drifting, rewards=equal), policy, cut=3)
    want, slopes = theirs(tokens(policy, old, ref, [0.0] * 3), drifting)
    assert loss == pytest.approx(want, rel=1e-12)
    for mine, right in zip(gradient, slopes, strict=True):
        assert mine == pytest.approx(right, rel=1e-11)


def test_advantages_of_each_token_give_each_token_its_own_slope() -> None:
    options = replace(OPTIONS, clip_dual=1.7, kl_beta=0.3)
    (policy, *_), (old, *_), (ref, *_) = log_probs(6, spread=0.9)
    advantages = [1.3, -0.8, 0.0, -2.0, 0.4, 1.0, -0.1]
    logp = torch.tensor(policy, dtype=torch.float64, requires_grad=True)

    loss = grpo.token_loss(
        grpo.Scores(policy=logp, old=torch.tensor(old, dtype=torch.float64)),
        torch.tensor(advantages, dtype=torch.float64),
        grpo.Clip(low=0.2, high=0.28, dual=1.7),
        grpo.Reference(logp=torch.tensor(ref, dtype=torch.float64), beta=0.3, estimator="k3"),
    ).loss
    loss.sum().backward()

    assert logp.grad is not None
    rows = [Token(policy=p, old=o, ref=r, advantage=a) for p, o, r, a in zip(policy, old, ref, advantages, strict=True)]
    assert loss.tolist() == pytest.approx([-token_objective(token, options) for token in rows], rel=1e-12)
    assert logp.grad.tolist() == pytest.approx([-token_slope(token, options) for token in rows], rel=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ratio_that_overflows_behind_a_clip_leaves_loss_and_gradient_finite(dtype: torch.dtype) -> None:
    """exp(1000) is infinite; behind the upper or the dual clip, or without advantage, the formula never asks for it."""
    policy = torch.tensor([-1.0, -1.0, -1.0, -1.5], dtype=dtype, requires_grad=True)
    old = torch.tensor([-1001.0, -1001.0, -1001.0, -1.5], dtype=dtype)
    advantage = torch.tensor([2.0, -2.0, 0.0, 2.0], dtype=dtype)

    loss = grpo.token_loss(
        grpo.Scores(policy=policy, old=old), advantage, grpo.Clip(low=0.2, high=0.25, dual=3.0), None
    ).loss
    loss.sum().backward()

    assert loss.tolist() == [-2.5, 6.0, 0.0, -2.0]
    assert policy.grad is not None
    assert policy.grad.tolist() == [0.0, 0.0, 0.0, -2.0]


def test_an_unbounded_loss_is_reported_and_not_capped() -> None:
    policy, old = torch.tensor([-1.0]), torch.tensor([-1001.0])
    clip = grpo.Clip(low=0.2, high=0.25, dual=None)
    assert grpo.token_loss(grpo.Scores(policy=policy, old=old), torch.tensor(-2.0), clip, None).loss.tolist() == [
        math.inf
    ]


def test_a_ratio_at_the_edge_of_a_clip_is_not_clipped() -> None:
    """With clip 0 a ratio of exactly 1 keeps its gradient: at an edge the formula's two branches are equal."""
    policy = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor([0.7, -0.3], dtype=torch.float64)
    scores = grpo.Scores(policy=policy, old=policy.detach().clone())

    grpo.token_loss(scores, advantage, grpo.Clip(low=0.0, high=0.0, dual=None), None).loss.sum().backward()

    assert policy.grad is not None
    assert policy.grad.tolist() == [-0.7, 0.3]
