"""The shape of one catalogue entry."""

from __future__ import annotations

from dataclasses import dataclass

from mint2m_verify.finding import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A finding id: `message` is one short sentence; `explanation` says what it means, what follows, what to do."""

    id: str
    verdict: Verdict
    message: str
    explanation: str
    hint: str | None = None
