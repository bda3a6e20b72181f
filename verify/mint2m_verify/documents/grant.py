"""An authorization grant: the leave to start a run, given by somebody else than the one who starts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from mint2m_verify.documents.base import Document

GrantKind: TypeAlias = Literal["training", "validation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(Document):
    """The terms, which are the predicate of the grantor's statement; its subject says of what.

    A grant of kind `training` is for every run of one deployment file, one of kind `validation` for one validation
    plan. What is granted is started from `not_before` to `not_after`.
    """

    NAME: ClassVar[str] = "grant"

    kind: GrantKind
    reason: str
    not_before: str
    not_after: str
