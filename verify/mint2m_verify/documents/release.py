"""The manifest of a release bundle. What is in one is `mint2m_verify.release.layout`'s subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mint2m_verify.documents.base import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseMember:
    """One file of the bundle, without its digest: that is the statement's to say."""

    path: str
    size: int
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Document):
    """What the bundle holds, in its order, and which commit the source is; the version is the statement's to say."""

    NAME: ClassVar[str] = "release"

    commit: str
    committed_at: str
    members: tuple[ReleaseMember, ...]
