"""How responses are drawn, as plans and rollouts state it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Why a response ended: a stop token, which is its last token, or the length cap.
Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """What shapes a draw. Temperature 0 is greedy; `top_p` 1 and `top_k` null leave all tokens in.

    `max_tokens` counts the stop token, which belongs to the response and is trained on like any other.
    """

    temperature: float
    top_p: float
    top_k: int | None
    stop_tokens: tuple[int, ...]
    max_tokens: int
