"""One draw against its definition: frequencies, cuts, ties and the numbers that pick."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from mint2m_trainer.sampling.draw import draw, policy_logprobs
from mint2m_verify.documents.sampling import SamplingParameters
from mint2m_verify.draws import response_seed, uniform


def parameters(temperature: float = 1.0, top_p: float = 1.0, top_k: int | None = None) -> SamplingParameters:
    return SamplingParameters(temperature=temperature, top_p=top_p, top_k=top_k, stop_tokens=(), max_tokens=1)


#: Probabilities 0.5, 0.25, 0.125, 0.125 at temperature 1, in the order of ids 2, 0, 1, 3.
LOGITS = torch.tensor([math.log(0.25), math.log(0.125), math.log(0.5), math.log(0.125)], dtype=torch.float64)


@pytest.mark.parametrize(
    ("number", "token"), [(0.0, 2), (0.499, 2), (0.501, 0), (0.749, 0), (0.751, 1), (0.874, 1), (0.876, 3), (0.9999, 3)]
)
def test_a_number_picks_by_probability_descending_then_id(number: float, token: int) -> None:
    assert draw(LOGITS, parameters(), number) == token


@pytest.mark.parametrize("number", [0.0, 0.5, 0.999])
def test_temperature_zero_takes_the_best_and_of_equals_the_lowest(number: float) -> None:
    assert draw(torch.tensor([0.0, 3.0, 1.0, 3.0]), parameters(temperature=0.0), number) == 1


def test_temperature_sharpens_by_the_power_of_its_inverse() -> None:
    # At 1/2 the weights are squared: 16, 4, 1, 1 of 22.
    cold = parameters(temperature=0.5)
    assert draw(LOGITS, cold, 16 / 22 - 1e-9) == 2
    assert draw(LOGITS, cold, 16 / 22 + 1e-9) == 0
    assert draw(LOGITS, cold, 20 / 22 + 1e-9) == 1


def test_top_k_leaves_the_best_and_shares_out_the_rest() -> None:
    assert draw(LOGITS, parameters(top_k=2), 2 / 3 - 1e-9) == 2
    assert draw(LOGITS, parameters(top_k=2), 2 / 3 + 1e-9) == 0
    assert draw(LOGITS, parameters(top_k=2), 1 - 1e-12) == 0
    assert draw(LOGITS, parameters(top_k=9), 1 - 1e-12) == 3


@pytest.mark.parametrize(("top_p", "last"), [(0.1, 2), (0.49, 2), (0.51, 0), (0.74, 0), (0.76, 1), (0.88, 3)])
def test_top_p_leaves_the_fewest_that_reach_it_together(top_p: float, last: int) -> None:
    assert draw(LOGITS, parameters(top_p=top_p), 1 - 1e-12) == last


def test_many_draws_have_the_probabilities() -> None:
    counts = [0] * 4
    for token in range(4000):
        counts[draw(LOGITS, parameters(), uniform(5, token))] += 1
    for count, chance in zip(counts, LOGITS.exp().tolist(), strict=True):
        # Five standard deviations of a binomial.
        assert abs(count - 4000 * chance) < 5 * math.sqrt(4000 * chance * (1 - chance))


def test_numbers_and_seeds_are_those_of_the_rule_written_out() -> None:
    raw = hashlib.sha256(b"mint2m.draw/v1\n77\n3").digest()
    assert uniform(77, 3) == (int.from_bytes(raw, "big") >> 203) / 2**53
    raw = hashlib.sha256(b"mint2m.response-seed/v1\n7\n2\n1\n5").digest()
    assert response_seed(7, step=2, attempt=1, response=5) == int.from_bytes(raw, "big") >> 203


def test_log_probs_are_of_the_policy_whatever_shapes_the_draw() -> None:
    logits = torch.stack([LOGITS, LOGITS + 3.0])
    found = policy_logprobs(logits, torch.tensor([2, 3]))
    torch.testing.assert_close(found, torch.tensor([math.log(0.5), math.log(0.125)], dtype=torch.float64))
