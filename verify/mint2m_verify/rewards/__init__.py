"""Reward rules: pure functions of a response's text and the ground truth.

The rule: a reward is never read from a rollout without being computed again from the tokens. Whoever can write
rewards chooses the direction of the update, so trainer and verifier call the same function here.

A rule that is not of this registry is a user's own: a function that a package installs under the entry point group
`mint2m.rewards`, named `plugin:NAME/vN`. Nothing that evidence brings is ever run: an auditor who has not installed
the package cannot compute such a reward, and then it stays the operator's word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from mint2m_verify.finding import FindingError, found
from mint2m_verify.rewards.dapo import dapo_math
from mint2m_verify.rewards.plugins import PLUGIN, find_plugin
from mint2m_verify.rewards.text import answer_exact, exact_match

#: A response's text and the ground truth to a reward.
Rule = Callable[[str, str], float]

RULES: Mapping[str, Rule] = {
    "answer-exact/v1": answer_exact,
    "dapo-math/v1": dapo_math,
    "exact-match/v1": exact_match,
}


def computable(rule: str) -> bool:
    """Whether this installation can compute the rule; False only for a plugin that is not installed here.

    Raises:
        FindingError: `fixture.reward-rule-unknown`.
    """
    return _find(rule) is not None


def reward(rule: str, response: str, ground_truth: str) -> float:
    """The reward of one response.

    Raises:
        FindingError: `fixture.reward-rule-unknown`, `fixture.reward-rule-absent`, `fixture.reward-rule-failed`.
    """
    function = _find(rule)
    if function is None:
        raise FindingError(found("fixture.reward-rule-absent", actual=rule))
    if rule in RULES:
        return function(response, ground_truth)
    return _guarded(rule, function, response, ground_truth)


def response_text(tokens: Sequence[int]) -> str:
    """The text of byte tokens; bytes that are no UTF-8 become U+FFFD, which no ground truth holds.

    Raises:
        FindingError: `fixture.token-not-byte`.
    """
    for position, token in enumerate(tokens):
        if not 0 <= token <= 255:
            raise FindingError(
                found("fixture.token-not-byte", expected="0 to 255", actual=f"{token} at position {position}")
            )
    return bytes(tokens).decode("utf-8", errors="replace")


def _find(rule: str) -> Rule | None:
    if rule in RULES:
        return RULES[rule]
    if PLUGIN.fullmatch(rule) is None:
        expected = f"{' or '.join(sorted(RULES))}, or plugin:NAME/vN"
        raise FindingError(found("fixture.reward-rule-unknown", expected=expected, actual=rule))
    return find_plugin(rule)


def _guarded(rule: str, function: Callable[[str, str], object], response: str, ground_truth: str) -> float:
    """A plugin's answer; whatever goes wrong in it is its fault and told as such."""
    try:
        value = function(response, ground_truth)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError) as fault:
        actual = f"{rule}: {type(fault).__name__}: {fault}"
        raise FindingError(found("fixture.reward-rule-failed", actual=actual)) from fault
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FindingError(found("fixture.reward-rule-failed", expected="a finite number", actual=f"{rule}: {value!r}"))
    return float(value)
