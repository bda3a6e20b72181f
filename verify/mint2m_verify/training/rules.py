"""What the plan of a training leaves nothing to decide about: which rows, which profile, which groups.

The rule: the operator's search and the auditor's check call these same functions. A group has signal where two rewards
differ: advantages are distances from the group's mean, so that without it every one is zero and an update would do
nothing, or nothing but drift. A step therefore goes on to the next row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mint2m_verify.documents.inputs import RunProfile
from mint2m_verify.documents.training import Attempt


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether any two rewards differ."""
    return len(set(rewards)) > 1


def run_nonce(step_sha256: str, index: int, prompts: int) -> str:
    """A step's run has the digest of the step's file as its nonce, and its place where it is one of several."""
    return step_sha256 if prompts == 1 else f"{step_sha256}-{index}"


def scored(groups: Sequence[Attempt]) -> tuple[int, int]:
    """Tokens and responses that a step scores: all, since each token of a drawn response has its log-prob."""
    responses = [response for group in groups for response in group.responses]
    return sum(len(response.tokens) for response in responses), len(responses)


def step_profile(profile: RunProfile, prompt_tokens: int) -> RunProfile:
    """The training's profile at the length of one row: the only member that a step changes."""
    return replace(profile, context=replace(profile.context, prompt_tokens=prompt_tokens))


def rows_to_try(first: int, count: int, rows: int) -> tuple[int, ...]:
    """The next `count` rows of a dataset of `rows`, from its first again after the last."""
    return tuple((first + n) % rows for n in range(count))
