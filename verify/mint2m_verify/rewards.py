"""Reward rules: pure functions of a response's text and the ground truth.

The rule: a reward is never read from a rollout without being computed again from the tokens. Whoever can write
rewards chooses the direction of the update, so trainer and verifier call the same function here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mint2m_verify.finding import FindingError, found

#: Lines are cut at line feeds and trimmed of these; Unicode has more of both, and readers disagree on them.
_BLANK = " \t\r\n"

_ANSWER = "Answer:"


def answer_exact(response: str, ground_truth: str) -> float:
    """`answer-exact/v1`: +1 where the last line that starts with `Answer:` holds the ground truth, else -1.

    Both are trimmed and then compared as they are: `4.0` is not `4`. A response without such a line gets -1.
    """
    for line in reversed(response.split("\n")):
        line = line.strip(_BLANK)
        if line.startswith(_ANSWER):
            return 1.0 if line.removeprefix(_ANSWER).strip(_BLANK) == ground_truth.strip(_BLANK) else -1.0
    return -1.0


RULES: Mapping[str, Callable[[str, str], float]] = {"answer-exact/v1": answer_exact}


def reward(rule: str, response: str, ground_truth: str) -> float:
    """The reward of one response; raises `FindingError` (`fixture.reward-rule-unknown`)."""
    if rule not in RULES:
        raise FindingError(found("fixture.reward-rule-unknown", expected=" or ".join(sorted(RULES)), actual=rule))
    return RULES[rule](response, ground_truth)


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
