"""What a response's text says of how it was decoded: signs of a broken engine, tokenizer, template or length cap.

The rule: each sign is a count over responses with a definition that can be checked by hand, and none is a verdict by
itself. A policy may repeat itself and still be the policy; a share of responses that do is for a person to judge, or
for the bound that the person sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Words of common prompt templates; a response that holds one goes on with the prompt instead of answering it.
PROMPT_MARKERS = ("<|user|>", "<|assistant|>", "<|system|>", "<|im_start|>", "[INST]", "Question:")

#: A tail repeats itself where one unit of at most so many tokens comes so many times, over so many tokens.
LONGEST_UNIT = 32
LEAST_TIMES = 4
LEAST_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One response for the audit; `text` None where nobody knows it."""

    tokens: Sequence[int]
    text: str | None
    capped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """How many of `responses` show each sign; `texts` is how many had a text to look at."""

    responses: int
    texts: int
    replaced: int
    repeating: int
    echoing: int
    capped: int

    def shares(self) -> tuple[tuple[str, int, int], ...]:
        """Each sign: its name, how many responses show it, and of how many that could."""
        return (
            ("replacement", self.replaced, self.texts),
            ("repetition", self.repeating, self.responses),
            ("echo", self.echoing, self.texts),
            ("capped", self.capped, self.responses),
        )


def audit(responses: Iterable[Decoded], markers: Sequence[str] = PROMPT_MARKERS) -> Audit:
    """Count the signs."""
    every = [*responses]
    texts = [response.text for response in every if response.text is not None]
    return Audit(
        responses=len(every),
        texts=len(texts),
        replaced=sum("\ufffd" in text for text in texts),
        repeating=sum(repeats(response.tokens) for response in every),
        echoing=sum(any(marker in text for marker in markers) for text in texts),
        capped=sum(response.capped for response in every),
    )


def repeats(tokens: Sequence[int]) -> bool:
    """Whether the response ends in one unit of at most `LONGEST_UNIT` tokens again and again.

    It does where, for some unit length, the last `LEAST_TIMES` units, or as many as make `LEAST_TOKENS`, are equal.
    """
    for unit in range(1, LONGEST_UNIT + 1):
        span = max(LEAST_TIMES * unit, LEAST_TOKENS)
        if span > len(tokens):
            continue
        tail = tokens[len(tokens) - span :]
        if all(tail[place] == tail[place - unit] for place in range(unit, span)):
            return True
    return False
