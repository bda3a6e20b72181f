"""What a run leaves that did not come through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mint2m_verify.documents.base import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFinding:
    """What stopped the run: the finding's id and its words, for people."""

    id: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedReceipt(Document):
    """An update that was begun and is none; `remaining` are stepped outputs that could not be removed."""

    NAME: ClassVar[str] = "failed-receipt"

    status: Literal["failed"]
    run_id: str
    plan_sha256: str
    execution_id: str
    started_at: str
    ended_at: str
    world_size: int
    stopped_in: str
    completed: tuple[str, ...]
    finding: FailureFinding
    discarded: tuple[str, ...]
    remaining: tuple[str, ...]
