"""The loss against transcriptions of the published formulas, the oracle, and finite differences.

The transcriptions work on probabilities and Python floats, token by token, as the papers write them; the code
under test works on tensors of log-probs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mint2m_trainer.grpo import (
    Aggregation,
    Clip,
    LossError,
    Reference,
    Scores,
    drift,
    group_advantages,
    token_loss,
    token_weights,
    unscored_tokens,
)

Rows = list[list[float]]


def deepseekmath_objective(
    policy: Rows, old: Rows, reference: Rows, rewards: list[float], epsilon: float, beta: float
) -> float:
    """arXiv 2402.03300: eq. 3 with eq. 4, and the group's normalized rewards of section 4.1.2 (standard deviation
    of the sample). Maximized, so the loss is its negative."""
    G = len(rewards)
    mean = sum(rewards) / G
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (G - 1))
    total = 0.0
    for i in range(G):
        advantage = (rewards[i] - mean) / std
        inner = 0.0
        for t in range(len(policy[i])):
            pi, pi_old, pi_ref = policy[i][t], old[i][t], reference[i][t]
            clipped = min(max(pi / pi_old, 1 - epsilon), 1 + epsilon)
            kl = pi_ref / pi - math.log(pi_ref / pi) - 1
            inner += min(pi / pi_old * advantage, clipped * advantage) - beta * kl
        total += inner / len(policy[i])
    return total / G


def dapo_objective(policy: Rows, old: Rows, advantages: list[float], low: float, high: float) -> float:
    """arXiv 2503.14476, eq. 8: token mean over the whole group, decoupled clip, no KL."""
    total, tokens = 0.0, 0
    for i, row in enumerate(policy):
        tokens += len(row)
        for t in range(len(row)):
            r = row[t] / old[i][t]
            total += min(r * advantages[i], min(max(r, 1 - low), 1 + high) * advantages[i])
    return total / tokens


def dr_grpo_objective(policy: Rows, old: Rows, advantages: list[float], epsilon: float, budget: int) -> float:
    """arXiv 2503.20783, section 3.2 and listing 1: sums over tokens divided by a constant, then a mean over G."""
    total = 0.0
    for i, row in enumerate(policy):
        for t in range(len(row)):
            r = row[t] / old[i][t]
            total += min(r * advantages[i], min(max(r, 1 - epsilon), 1 + epsilon) * advantages[i]) / budget
    return total / len(policy)


def dual_clip_gain(r: float, advantage: float, epsilon: float, c: float) -> float:
    """arXiv 1912.09729, eq. 5: for a negative advantage the gain is bounded from below by c * A."""
    gain = min(r * advantage, min(max(r, 1 - epsilon), 1 + epsilon) * advantage)
    return max(gain, c * advantage) if advantage < 0 else gain


def a_group(lengths: list[int], seed: int) -> tuple[Rows, Rows, Rows]:
    """Probabilities of policy, old and reference, up to a factor e apart: both clips get tokens."""
    generator = torch.Generator().manual_seed(seed)

    def rows() -> list[torch.Tensor]:
        return [torch.rand(n, generator=generator, dtype=torch.float64) for n in lengths]

    policy = [0.05 + 0.9 * row for row in rows()]
    old = [(p * torch.exp(row - 0.5)).clamp(max=1.0) for p, row in zip(policy, rows(), strict=True)]
    reference = [(p * torch.exp(row - 0.5)).clamp(max=1.0) for p, row in zip(policy, rows(), strict=True)]
    return tuple([row.tolist() for row in group] for group in (policy, old, reference))  # type: ignore[return-value]


def log(row: list[float]) -> torch.Tensor:
    return torch.tensor(row, dtype=torch.float64).log()


def group_loss(
    policy: Rows,
    old: Rows,
    advantages: torch.Tensor,
    clip: Clip,
    weights: tuple[float, ...],
    reference: Rows | None,
    beta: float,
) -> float:
    """The code under test, one response at a time, as the trainer calls it."""
    total = 0.0
    for g in range(len(policy)):
        against = None
        if reference is not None:
            against = Reference(logp=log(reference[g]), beta=beta, estimator="k3")
        scores = Scores(policy=log(policy[g]), old=log(old[g]))
        total += weights[g] * token_loss(scores, advantages[g], clip, against).loss.sum().item()
    return total


@pytest.mark.parametrize("seed", range(5))
def test_sequence_mean_with_kl_is_the_objective_of_deepseekmath(seed: int) -> None:
    policy, old, reference = a_group([7, 3, 11], seed)
    rewards = [1.0, -1.0, 0.25]
    advantages = group_advantages(torch.tensor(rewards, dtype=torch.float64), eps=0.0)
    weights = token_weights([7, 3, 11], Aggregation.SEQUENCE_MEAN, norm_tokens=None)
    clip = Clip(low=0.2, high=0.2, dual=None)

    ours = group_loss(policy, old, advantages, clip, weights, reference, beta=0.04)

    theirs = -deepseekmath_objective(policy, old, reference, rewards, 0.2, 0.04)
    assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_token_mean_with_two_clips_is_the_objective_of_dapo(seed: int) -> None:
    policy, old, _ = a_group([7, 3, 11], seed)
    advantages = torch.tensor([1.3, -0.8, -0.1], dtype=torch.float64)
    weights = token_weights([7, 3, 11], Aggregation.TOKEN_MEAN, norm_tokens=None)
    clip = Clip(low=0.2, high=0.28, dual=None)

    ours = group_loss(policy, old, advantages, clip, weights, None, beta=0.0)

    assert ours == pytest.approx(-dapo_objective(policy, old, advantages.tolist(), 0.2, 0.28), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_sequence_sum_norm_is_the_objective_of_dr_grpo(seed: int) -> None:
    policy, old, _ = a_group([7, 3, 11], seed)
    rewards = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    advantages = rewards - rewards.mean()  # Dr. GRPO does not divide by the standard deviation
    weights = token_weights([7, 3, 11], Aggregation.SEQUENCE_SUM_NORM, norm_tokens=64)
    clip = Clip(low=0.2, high=0.2, dual=None)

    ours = group_loss(policy, old, advantages, clip, weights, None, beta=0.0)

    assert ours == pytest.approx(-dr_grpo_objective(policy, old, advantages.tolist(), 0.2, 64), rel=1e-12)


def test_dual_clip_bounds_only_the_gain_of_a_negative_advantage() -> None:
    ratios = [0.3, 0.9, 1.0, 1.5, 2.9, 3.1, 40.0]
    policy = torch.tensor(ratios, dtype=torch.float64).log()
    clip = Clip(low=0.2, high=0.2, dual=3.0)
    for advantage in (-0.7, 0.7):
        ours = token_loss(
            Scores(policy=policy, old=torch.zeros_like(policy)),
            torch.tensor(advantage, dtype=torch.float64),
            clip,
            None,
        ).loss
        theirs = [-dual_clip_gain(r, advantage, 0.2, 3.0) for r in ratios]
        torch.testing.assert_close(ours, torch.tensor(theirs, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("case", ["indexshare", "yarn"])
@pytest.mark.parametrize("label", ["ratio1", "active_clip"])
def test_loss_kl_and_clip_counts_are_those_of_the_oracle(shared: Callable[[str], Path], case: str, label: str) -> None:
    folder = shared("oracle") / case
    expected = json.loads((folder / "expected.json").read_text())
    rollout = json.loads((folder / "rollout.json").read_text())
    tensors = load_file(folder / "expected.safetensors")
    grpo = expected["case"]["grpo"]
    beta = expected[label]["kl_beta"]
    clip = Clip(low=grpo["clip_low"], high=grpo["clip_high"], dual=None)
    advantages = group_advantages(torch.tensor(rollout["rewards"], dtype=torch.float64), grpo["advantage_eps"])
    lengths = [len(response) for response in rollout["responses"]]
    weights = token_weights(lengths, "token_mean", norm_tokens=None)

    loss, kl, low, high = 0.0, 0.0, 0, 0
    for g in range(len(lengths)):
        policy = tensors[f"{label}.logprobs.{g}"]
        old = policy if label == "ratio1" else torch.tensor(rollout["old_logprobs"][g], dtype=torch.float64)
        logp = torch.tensor(rollout["ref_logprobs"][g], dtype=torch.float64)
        reference = Reference(logp=logp, beta=beta, estimator="k3") if beta else None
        result = token_loss(Scores(policy=policy, old=old), advantages[g], clip, reference)
        loss += weights[g] * result.loss.sum().item()
        kl += weights[g] * drift(policy, logp, "k3").sum().item()
        low += int(result.clipped_low.sum())
        high += int(result.clipped_high.sum())

    assert advantages.tolist() == pytest.approx(expected["advantages"], rel=1e-14)
    assert loss == pytest.approx(expected[label]["loss"], abs=1e-13)
    assert kl == pytest.approx(expected[label]["kl_k3_token_mean"], rel=1e-12)
    assert (low, high) == (expected[label]["clipped_low_tokens"], expected[label]["clipped_high_tokens"])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gradient_of_every_estimator_and_clip_is_that_of_finite_differences(estimator: str) -> None:
    generator = torch.Generator().manual_seed(1)
    old = -torch.rand(40, generator=generator, dtype=torch.float64) - 0.1
    policy = (old + torch.linspace(-1.7, 1.7, 40, dtype=torch.float64)).requires_grad_()
    advantage = torch.randn(40, generator=generator, dtype=torch.float64)
    reference = Reference(logp=old - 0.3, beta=0.1, estimator=estimator)  # type: ignore[arg-type]
    clip = Clip(low=0.2, high=0.3, dual=2.5)

    def loss(policy: torch.Tensor) -> torch.Tensor:
        return token_loss(Scores(policy=policy, old=old), advantage, clip, reference).loss

    assert torch.autograd.gradcheck(loss, (policy,), eps=1e-7, atol=1e-6)


def test_k1_and_k3_average_to_the_kl_divergence() -> None:
    """Schulman 2020: both are unbiased. The expectation is taken exactly, over a vocabulary of 11."""
    generator = torch.Generator().manual_seed(3)
    policy = torch.randn(11, generator=generator, dtype=torch.float64).log_softmax(-1)
    reference = torch.randn(11, generator=generator, dtype=torch.float64).log_softmax(-1)
    kl = torch.nn.functional.kl_div(reference, policy, reduction="sum", log_target=True).item()
    for estimator in ("k1", "k3"):
        mean = (policy.exp() * drift(policy, reference, estimator)).sum().item()  # type: ignore[arg-type]
        assert mean == pytest.approx(kl, rel=1e-12)
    assert drift(policy, reference, "k2").tolist() == pytest.approx(
        [(p - r) ** 2 / 2 for p, r in zip(policy.tolist(), reference.tolist(), strict=True)]
    )


def test_ratio_is_exactly_one_and_nothing_is_clipped_on_policy() -> None:
    policy = -torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 30
    reference = Reference(logp=policy.clone(), beta=0.1, estimator="k3")
    clip = Clip(low=0.0, high=0.0, dual=None)

    result = token_loss(Scores(policy=policy, old=policy.clone()), torch.tensor(-1.0), clip, reference)

    assert torch.equal(result.ratio, torch.ones(1000))
    assert result.kl is not None
    assert torch.equal(result.kl, torch.zeros(1000))
    assert not result.clipped_low.any()
    assert not result.clipped_high.any()


def test_gradient_flows_through_the_policy_only() -> None:
    policy, old, logp, advantage = (torch.rand(4, requires_grad=True) for _ in range(4))
    reference = Reference(logp=logp, beta=0.1, estimator="k3")

    result = token_loss(Scores(policy=policy, old=old), advantage, Clip(low=0.2, high=0.2, dual=None), reference)
    result.loss.sum().backward()

    assert policy.grad is not None
    assert old.grad is None
    assert logp.grad is None
    assert advantage.grad is None
    assert not result.ratio.requires_grad


def test_advantages_of_one_value_per_token_equal_the_value_of_the_response() -> None:
    scores = Scores(policy=log([0.5, 0.2, 0.9]), old=log([0.3, 0.3, 0.8]))
    clip = Clip(low=0.2, high=0.2, dual=None)
    one = torch.tensor(-0.4, dtype=torch.float64)

    assert torch.equal(token_loss(scores, one, clip, None).loss, token_loss(scores, one.repeat(3), clip, None).loss)


def test_equal_rewards_give_no_advantage_even_where_their_mean_rounds() -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1], dtype=torch.float64)
    assert (rewards - rewards.mean()).abs().max() > 0  # what the division by eps would blow up

    assert torch.equal(group_advantages(rewards, eps=1e-12), torch.zeros(3, dtype=torch.float64))


def test_a_response_without_scored_tokens_leaves_numerator_and_denominator() -> None:
    assert token_weights([0, 4, 2], Aggregation.SEQUENCE_MEAN, norm_tokens=None) == (0.0, 1 / 8, 1 / 4)
    assert token_weights([0, 4, 2], Aggregation.TOKEN_MEAN, norm_tokens=None)[1:] == (1 / 6, 1 / 6)


@pytest.mark.parametrize(("response", "old", "unscored"), [(5, 5, 0), (5, 4, 1), (1, 0, 1)])
def test_one_missing_old_score_leaves_the_first_token_out(response: int, old: int, unscored: int) -> None:
    assert unscored_tokens(response_tokens=response, old_logprobs=old) == unscored


@pytest.mark.parametrize(("response", "old"), [(5, 3), (5, 6), (0, 0)])
def test_any_other_number_of_old_scores_is_refused(response: int, old: int) -> None:
    with pytest.raises(LossError):
        unscored_tokens(response_tokens=response, old_logprobs=old)


def test_shapes_and_dtypes_that_would_broadcast_are_refused_with_both_named() -> None:
    policy, clip = torch.zeros(3), Clip(low=0.2, high=0.2, dual=None)
    with pytest.raises(LossError, match=r"shape \[3\] of the policy, got \[1\]"):
        token_loss(Scores(policy=policy, old=torch.zeros(1)), torch.tensor(1.0), clip, None)
    with pytest.raises(LossError, match=r"float32 of the policy, got torch\.float64"):
        token_loss(Scores(policy=policy, old=policy.double()), torch.tensor(1.0), clip, None)
    with pytest.raises(LossError, match="advantages"):
        token_loss(Scores(policy=policy, old=policy), torch.zeros(2), clip, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(low=1.5, high=0.2, dual=None),
        lambda: Clip(low=0.2, high=-0.1, dual=None),
        lambda: Clip(low=0.2, high=0.2, dual=1.0),
        lambda: Reference(logp=torch.zeros(1), beta=0.0, estimator="k3"),
        lambda: group_advantages(torch.ones(1), eps=1e-6),
        lambda: token_weights([0, 0], Aggregation.TOKEN_MEAN, norm_tokens=None),
        lambda: token_weights([3, 3], Aggregation.SEQUENCE_SUM_NORM, norm_tokens=None),
        lambda: token_weights([3], Aggregation.TOKEN_MEAN, norm_tokens=None),
    ],
)
def test_constants_without_a_loss_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(LossError):
        make()
