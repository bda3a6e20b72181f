"""An external claim: what somebody reported of a run whose raw evidence is elsewhere, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mint2m_verify.documents.base import Document

Relation = Literal["<=", ">=", "=="]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """When, and in what."""

    date: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One circumstance of the run, in the reporter's words."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number as reported; `reported_as` is what the reporter concluded from it."""

    name: str
    value: float
    unit: str | None
    reported_as: Literal["passed", "failed"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A bound that was published for a figure, and when."""

    figure: str
    relation: Relation
    bound: float
    published: str

    def holds(self, value: float) -> bool:
        """Whether `value` meets the bound."""
        match self.relation:
            case "<=":
                return value <= self.bound
            case ">=":
                return value >= self.bound
            case "==":
                return value == self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSha256:
    """A digest that the reporter gave, of something that is not at hand."""

    of: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalClaim(Document):
    """Never bound to a source tree, so never more than the reporter's word."""

    NAME: ClassVar[str] = "external-claim"

    name: str
    title: str
    reported: Reported
    source_bound: Literal[False]
    subject: tuple[Subject, ...]
    figures: tuple[Figure, ...]
    contracts: tuple[Contract, ...]
    digests: tuple[NamedSha256, ...]
    shows: tuple[str, ...]
    limitations: tuple[str, ...]
