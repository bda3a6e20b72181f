"""What a check found, and the verdict that follows from it.

Checks return findings and nothing else; renderers read one `Report` and nothing else. A verdict is therefore a
function of findings and requirements, and no code path can print "accepted" beside a failure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mint2m_verify import __version__

if TYPE_CHECKING:
    from mint2m_verify.exhibits import Exhibit


class Verdict(enum.IntEnum):
    """Exit codes of every command, shared with shells and CI."""

    ACCEPTED = 0
    FAILED = 1
    BLOCKED = 2
    INCOMPLETE = 3
    UNTRUSTED = 4
    IO_ERROR = 5
    INTERNAL = 70

    @property
    def word(self) -> str:
        """The verdict as `mint2m.report/v1` writes it: `accepted`, `io-error`, …"""
        return self.name.lower().replace("_", "-")


#: From the worst to the mildest; a report's verdict is the first that any finding carries.
SEVERITY = (
    Verdict.INTERNAL,
    Verdict.FAILED,
    Verdict.UNTRUSTED,
    Verdict.INCOMPLETE,
    Verdict.BLOCKED,
    Verdict.IO_ERROR,
)


class Standing(enum.StrEnum):
    """How a row of the report is known.

    `replayed`: computed again from the inputs. `derived`: arithmetic over leaves that the operator supplied.
    `checked`: a comparison of bytes, digests or signatures. `cached`: the same, with digests that the auditor's own
    journal kept of an earlier reading. `attested-only`: the operator's word, bound by the seal.
    """

    CHECKED = "checked"
    CACHED = "cached"
    REPLAYED = "replayed"
    DERIVED = "derived"
    ATTESTED_ONLY = "attested-only"
    UNVERIFIABLE = "unverifiable"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One fault, told so that a person can act on it and a machine can sort it.

    `id` is stable across releases (`tree.file-changed`); `cause` is the finding that this one merely follows from, so
    that a reader sees first what broke first. `byte_range` is [first, last + 1) within `file`.
    """

    id: str
    verdict: Verdict
    message: str
    stage: str | None = None
    file: str | None = None
    pointer: str | None = None
    byte_range: tuple[int, int] | None = None
    expected: str | None = None
    actual: str | None = None
    cause: Finding | None = None
    hint: str | None = None

    def following(self, cause: Finding | None) -> Finding:
        """This finding as a consequence of `cause`; unchanged where there is none."""
        return self if cause is None else replace(self, cause=cause)


class FindingError(Exception):
    """Raised by a reader that cannot go on; carries the one finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.id}: {finding.message}")
        self.finding = finding


def found(
    id: str,
    *,
    stage: str | None = None,
    file: str | None = None,
    pointer: str | None = None,
    byte_range: tuple[int, int] | None = None,
    expected: str | None = None,
    actual: str | None = None,
    cause: Finding | None = None,
    hint: str | None = None,
) -> Finding:
    """A finding whose verdict, message and default hint come from the catalogue; an unknown id is a bug."""
    from mint2m_verify.catalogue import entry  # the catalogue's entries need `Verdict` from here

    known = entry(id)
    return Finding(
        id=id,
        verdict=known.verdict,
        message=known.message,
        stage=stage,
        file=file,
        pointer=pointer,
        byte_range=byte_range,
        expected=expected,
        actual=actual,
        cause=cause,
        hint=hint if hint is not None else known.hint,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One row of the report: what was required, what was found, and how that is known."""

    required: str
    found: str
    standing: Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedDigest:
    """A digest that the verdict rests on, by role: `key`, `seal`, `plan`, …"""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Whom the verdict trusts, and why: everything here was brought by the auditor or derived from that."""

    mode: str = "none"
    anchor: str | None = None
    signers: tuple[str, ...] = ()
    digests: tuple[NamedDigest, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything a command established, including what it did not look at.

    `comparison`: the rows are what was asked for, and are shown whatever the verdict.
    """

    subject: str
    command: str
    requirements: tuple[Requirement, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()
    trust: Trust = field(default_factory=Trust)
    claim_scope: str | None = None
    evaluated_at: str | None = None
    summary: str = ""
    exhibits: tuple[Exhibit, ...] = ()
    comparison: bool = False

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any finding; nothing required is incomplete, never accepted."""
        present = {finding.verdict for finding in self.findings}
        for verdict in SEVERITY:
            if verdict in present:
                return verdict
        return Verdict.ACCEPTED if self.requirements else Verdict.INCOMPLETE

    @property
    def roots(self) -> tuple[Finding, ...]:
        """Findings that follow from no other finding, in the order found."""
        return tuple(finding for finding in self.findings if finding.cause is None)

    def causes(self) -> tuple[tuple[Finding, tuple[Finding, ...]], ...]:
        """Each root with the findings whose chain of causes ends at it, in the order found."""
        groups: dict[Finding, list[Finding]] = {root: [] for root in self.roots}
        for finding in self.findings:
            root = _root(finding)
            if finding is not root and root in groups:
                groups[root].append(finding)
        return tuple((root, tuple(following)) for root, following in groups.items())

    def document(self) -> dict[str, object]:
        """The report as `mint2m.report/v1`."""
        order = {finding: index for index, finding in reversed([*enumerate(self.findings)])}
        return {
            "schema": "mint2m.report/v1",
            "subject": self.subject,
            "command": self.command,
            "tool_version": __version__,
            "evaluated_at": self.evaluated_at,
            "verdict": self.verdict.word,
            "exit_code": int(self.verdict),
            "summary": self.summary or self.verdict.word,
            "requirements": [
                {"required": r.required, "found": r.found, "standing": r.standing.value} for r in self.requirements
            ],
            "findings": [_finding_document(finding, order) for finding in self.findings],
            "not_checked": list(self.not_checked),
            "trust": {
                "mode": self.trust.mode,
                "anchor": self.trust.anchor,
                "signers": list(self.trust.signers),
                "digests": [{"name": d.name, "sha256": d.sha256} for d in self.trust.digests],
            },
            "claim_scope": self.claim_scope,
        }


def merge_findings(parts: Iterable[Iterable[Finding]]) -> tuple[Finding, ...]:
    """Findings of several checks in order, each once, a cause before what follows from it."""
    merged: list[Finding] = []
    for part in parts:
        for finding in part:
            for link in _lineage(finding):
                if link not in merged:
                    merged.append(link)
    return tuple(merged)


def _lineage(finding: Finding) -> tuple[Finding, ...]:
    chain = [finding]
    while chain[0].cause is not None:
        chain.insert(0, chain[0].cause)
    return tuple(chain)


def _root(finding: Finding) -> Finding:
    return _lineage(finding)[0]


def _finding_document(finding: Finding, order: Mapping[Finding, int]) -> dict[str, object]:
    return {
        "id": finding.id,
        "verdict": finding.verdict.word,
        "message": finding.message,
        "stage": finding.stage,
        "file": finding.file,
        "pointer": finding.pointer,
        "byte_range": None if finding.byte_range is None else list(finding.byte_range),
        "expected": finding.expected,
        "actual": finding.actual,
        "cause": None if finding.cause is None else order.get(finding.cause),
        "hint": finding.hint,
    }
