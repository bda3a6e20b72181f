"""GRPO numbers against sums worked out by hand and against the published oracle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mint2m_verify.documents.inputs import GrpoOptions
from mint2m_verify.recompute.grpo import (
    CountRange,
    drift,
    group_advantages,
    machine_epsilon,
    token_losses,
    token_weights,
)

OPTIONS = GrpoOptions(
    clip_low=0.2,
    clip_high=0.3,
    clip_dual=None,
    kl_beta=0.0,
    kl_estimator="k3",
    advantage_eps=0.0,
    aggregation="token_mean",
    norm_tokens=None,
    old_source="rollout",
    ref_source="rollout",
)
EPSILON = machine_epsilon("float64")


def losses(ratios: list[float], advantage: float, **changes: object) -> tuple[list[float], CountRange, CountRange]:
    """Losses of tokens with these ratios: old log-probs are 1 below 0 and the policy's follow from the ratio."""
    old = [-1.0] * len(ratios)
    policy = [math.log(ratio) - 1.0 for ratio in ratios]
    result = token_losses(
        policy=policy,
        old=old,
        reference=None,
        advantage=advantage,
        options=replace(OPTIONS, **changes),
        epsilon=EPSILON,
    )
    return list(result.loss), result.clipped_low, result.clipped_high


def test_advantages_use_the_sample_standard_deviation() -> None:
    # mean 1, deviations -3, 0, 3; sample variance (9 + 0 + 9) / 2 = 9
    assert group_advantages([-2.0, 1.0, 4.0], 0.0).tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-15)


def test_epsilon_is_added_to_the_deviation_and_not_to_the_variance() -> None:
    # deviations -1, 1; sample deviation sqrt(2); divided by sqrt(2) + 0.5
    assert group_advantages([0.0, 2.0], 0.5).tolist() == pytest.approx(
        [-1 / (math.sqrt(2) + 0.5), 1 / (math.sqrt(2) + 0.5)]
    )


def test_equal_rewards_are_no_signal_whatever_their_rounding() -> None:
    assert group_advantages([0.1, 0.1, 0.1], 1e-12).tolist() == [0.0, 0.0, 0.0]


def test_a_good_token_gains_up_to_the_upper_clip_and_no_further() -> None:
    found, low, high = losses([1.0, 1.2, 1.5, 0.5], 2.0)
    assert found == pytest.approx([-2.0, -2.4, -2.6, -1.0])
    assert (low, high) == (CountRange(sure=0, possible=0), CountRange(sure=1, possible=1))


def test_a_bad_token_is_pushed_down_to_the_lower_clip_and_no_further() -> None:
    found, low, high = losses([1.0, 0.9, 0.5, 1.5], -2.0)
    assert found == pytest.approx([2.0, 1.8, 1.6, 3.0])
    assert (low, high) == (CountRange(sure=1, possible=1), CountRange(sure=0, possible=0))


def test_the_dual_clip_bounds_the_loss_of_a_bad_token() -> None:
    found, _, _ = losses([5.0], -2.0, clip_dual=3.0)
    assert found == pytest.approx([6.0])
    found, _, _ = losses([5.0], 2.0, clip_dual=3.0)
    assert found == pytest.approx([-2.6])  # good tokens are not touched by it


def test_a_ratio_at_the_edge_of_the_clip_may_count_either_way() -> None:
    _, _, high = losses([1.3], 1.0)
    assert high.holds(0) and high.holds(1) and not high.holds(2)


def test_the_estimators_are_schulmans() -> None:
    policy, reference = np.array([-1.0]), np.array([-1.5])  # log(reference / policy) = -0.5
    assert drift(policy, reference, "k1")[0] == pytest.approx(0.5)
    assert drift(policy, reference, "k2")[0] == pytest.approx(0.125)
    assert drift(policy, reference, "k3")[0] == pytest.approx(math.exp(-0.5) - 1 + 0.5)


def test_the_drift_enters_the_loss_with_its_weight() -> None:
    result = token_losses(
        policy=[-1.0],
        old=[-1.0],
        reference=[-1.5],
        advantage=2.0,
        options=replace(OPTIONS, kl_beta=0.1),
        epsilon=EPSILON,
    )
    assert result.loss[0] == pytest.approx(-2.0 + 0.1 * (math.exp(-0.5) - 0.5))


def test_weights_of_the_three_aggregations() -> None:
    scored = (2, 0, 3)
    assert token_weights(scored, OPTIONS) == pytest.approx((1 / 5, 1 / 5, 1 / 5))
    mean = token_weights(scored, replace(OPTIONS, aggregation="sequence_mean"))
    assert mean == pytest.approx((1 / 4, 0.0, 1 / 6))  # two responses have a token
    norm = token_weights(scored, replace(OPTIONS, aggregation="sequence_sum_norm", norm_tokens=10))
    assert norm == pytest.approx((1 / 30, 1 / 30, 1 / 30))  # all three count


@pytest.mark.parametrize("case", ["indexshare", "yarn"])
def test_the_oracle_gives_the_same_loss_and_counts(shared: Callable[[str], Path], case: str) -> None:
    """Log-probs, loss, clip counts and drift of an independent float64 implementation."""
    from safetensors.numpy import load_file

    folder = shared("oracle") / case
    expected = json.loads((folder / "expected.json").read_text())["active_clip"]
    rollout = json.loads((folder / "rollout.json").read_text())
    constants = json.loads((shared("oracle") / "cases" / f"{case}.json").read_text())["grpo"]
    tensors = load_file(folder / "expected.safetensors")
    beta = expected["kl_beta"]
    options = replace(
        OPTIONS,
        clip_low=constants["clip_low"],
        clip_high=constants["clip_high"],
        advantage_eps=constants["advantage_eps"],
        kl_beta=beta,
    )
    advantages = group_advantages(rollout["rewards"], options.advantage_eps)
    results = [
        token_losses(
            policy=tensors[f"active_clip.logprobs.{g}"].astype(np.float64).tolist(),
            old=rollout["old_logprobs"][g],
            reference=rollout["ref_logprobs"][g] if beta else None,
            advantage=float(advantages[g]),
            options=options,
            epsilon=machine_epsilon("float32"),
        )
        for g in range(len(advantages))
    ]
    total = sum(len(result.loss) for result in results)
    assert sum(float(result.loss.sum()) for result in results) / total == pytest.approx(expected["loss"], abs=1e-6)
    assert sum(result.clipped_low.sure for result in results) == expected["clipped_low_tokens"]
    assert sum(result.clipped_high.sure for result in results) == expected["clipped_high_tokens"]
    drifts = sum(float(result.kl.sum()) for result in results if result.kl is not None) / total
    assert drifts == pytest.approx(expected["kl_k3_token_mean"] if beta else 0.0, abs=1e-6)
