"""Whether a response ended as its sampling parameters say: what engines export and what trainings draw alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mint2m_verify.documents.sampling import Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFault:
    """What a response should have had, and what it has."""

    expected: str
    actual: str


def end_fault(tokens: Sequence[int], finish: Finish, stops: frozenset[int], most: int) -> EndFault | None:
    """The first fault of a response's end, or None.

    Args:
        stops: stop tokens; without any, how an engine came to stop is not known here.
        most: the length cap.
    """
    count, last = len(tokens), tokens[-1]
    if count > most:
        return EndFault(expected=f"at most {most} tokens", actual=str(count))
    early = next((n for n, token in enumerate(tokens[:-1]) if token in stops), None)
    if early is not None:
        actual = f"stop token {tokens[early]} at {early} of {count}"
        return EndFault(expected="nothing after a stop token", actual=actual)
    if finish == "stop" and stops and last not in stops:
        return EndFault(expected="a stop token at the end", actual=str(last))
    if finish == "length" and (count != most or last in stops):
        return EndFault(expected=f"{most} tokens without a stop token", actual=f"{count}, the last {last}")
    return None
