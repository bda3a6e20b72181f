"""Rules that compare text as it stands."""

from __future__ import annotations

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


def exact_match(response: str, ground_truth: str) -> float:
    """`exact-match/v1`: +1 where the whole response, trimmed, is the ground truth, trimmed, else -1."""
    return 1.0 if response.strip(_BLANK) == ground_truth.strip(_BLANK) else -1.0
