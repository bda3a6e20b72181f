"""The rule-based reward of DAPO (arXiv 2503.14476, section 2.4): +1 where the final answer is right, else -1.

The answer is taken from the end of the response, where DAPO's prompt asks for a last line `Answer: $Answer`: what
follows the last `Answer:`, in any case, to the end of its line; where there is none, the content of the last
`\\boxed{}`. Response and ground truth are then normalized alike, by the rules of Minerva (arXiv 2206.14858, appendix
D), and compared as text. What lies before the last 300 characters is not looked at, so that a long response cannot be
searched for a lucky number, and no pattern meets a long text.
"""

from __future__ import annotations

import re

#: Characters at the end of a response among which the answer must lie.
TAIL = 300

_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)

#: Minerva's replacements, in its order: articles, escapes and spaces go, `\mbox` reads as `\text`.
_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)

#: Units and marks that Minerva drops, in its order.
_DROPPED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "ft", "hours", "km", "units", "\\ldots", "sue"),
    *("points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges"),
    *("students", "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2"),
    *("\\text{}^3", "\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"'),
    "\\dots",
)

#: What a dollar sign or a command encloses stands for the whole.
_UNWRAPPED = (
    (re.compile(r"(.*?)(\$)(.*?)(\$)(.*)"), r"$\3$"),
    (re.compile(r"(\\text\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\textbf\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\overline\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\boxed\{)(.*)(\})"), r"\2"),
    (re.compile(r"(frac)([^{])(.)"), r"frac{\2}{\3}"),
    (re.compile(r"(sqrt)([^{])"), r"sqrt{\2}"),
)


def dapo_math(response: str, ground_truth: str) -> float:
    """`dapo-math/v1`; a response without an answer gets -1."""
    answer = final_answer(response)
    return 1.0 if answer is not None and normalized(answer) == normalized(ground_truth) else -1.0


def final_answer(response: str) -> str | None:
    """The last answer in the tail of the response, as it was written."""
    tail = response[-TAIL:]
    lines = _ANSWER.findall(tail)
    if lines:
        return str(lines[-1])
    return _last_boxed(tail)


def normalized(answer: str) -> str:
    """Minerva's normal form; what is not mathematics of its kind stays as it is."""
    text = answer.split("=")[-1]
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for word in _DROPPED:
        text = text.replace(word, "")
    for pattern, replacement in _UNWRAPPED:
        text = pattern.sub(replacement, text)
    text = text.replace("$", "")
    digits = text.replace(",", "")
    return (digits if digits.isascii() and digits.isdigit() else text).strip()


def _last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{}` whose braces close."""
    opening = "\\boxed{"
    start = text.rfind(opening)
    if start < 0:
        return None
    depth, first = 1, start + len(opening)
    for place in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[first:place]
    return None
