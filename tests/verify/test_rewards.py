"""The reward rule, by cases written out."""

from __future__ import annotations

import pytest

from mint2m_verify.finding import FindingError
from mint2m_verify.rewards import response_text, reward


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("Answer: 4", 1.0),
        ("Answer: 2", -1.0),
        ("Answer:4", 1.0),
        ("  Answer:   4  \r\n", 1.0),
        ("3 + 1 is 4.\nAnswer: 4\n", 1.0),
        ("Answer: 2\nNo, wait.\nAnswer: 4", 1.0),
        ("Answer: 4\nAnswer: 2", -1.0),
        ("The answer is 4", -1.0),
        ("my Answer: 4", -1.0),
        ("answer: 4", -1.0),
        ("Answer: 4.0", -1.0),
        ("Answer: 4 lanterns", -1.0),
        ("Answer:", -1.0),
        ("Answer: 44", -1.0),
        ("", -1.0),
        ("Answer: 2\u2028Answer: 4", -1.0),  # a line separator of Unicode ends no line here
        ("Answer:\u00a04", -1.0),  # a no-break space is not trimmed
    ],
)
def test_the_last_answer_line_decides(response: str, value: float) -> None:
    assert reward("answer-exact/v1", response, "4") == value


def test_the_ground_truth_is_trimmed_like_the_answer() -> None:
    assert reward("answer-exact/v1", "Answer: 4", " 4\n") == 1.0


@pytest.mark.parametrize("rule", ["answer-exact/v2", "answer-exact", ""])
def test_an_unknown_rule_is_a_finding(rule: str) -> None:
    with pytest.raises(FindingError) as fault:
        reward(rule, "Answer: 4", "4")
    assert fault.value.finding.id == "fixture.reward-rule-unknown"


def test_tokens_are_bytes_and_broken_utf8_matches_nothing() -> None:
    assert response_text("Größe".encode()) == "Größe"
    broken = response_text([*b"Answer: ", 0xFF])
    assert broken == "Answer: \ufffd"
    assert reward("answer-exact/v1", broken, "4") == -1.0


@pytest.mark.parametrize("token", [256, -1, 2**40])
def test_a_token_that_is_no_byte_has_no_text(token: int) -> None:
    with pytest.raises(FindingError) as fault:
        response_text([65, token])
    assert fault.value.finding.id == "fixture.token-not-byte"
