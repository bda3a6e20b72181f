"""Options that the `verify` commands share: what the auditor brings, and how the report is told.

Commands take them in groups (`option_groups.grouped`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from mint2m.outcome import Outcome, ReportFormat, present, report_files

if TYPE_CHECKING:
    from mint2m_verify.anchor import Anchor, VerifyOptions
    from mint2m_verify.finding import Report
    from mint2m_verify.hash_journal import HashJournal
    from mint2m_verify.walk import Progress

Policy: TypeAlias = Annotated[
    Path | None, typer.Option("--policy", help="Anchor: trust policy; see mint2m trust init.")
]
TrustedRoot: TypeAlias = Annotated[
    Path | None, typer.Option("--trusted-root", help="Sigstore root that the policy names: a file, or public-good.")
]
Key: TypeAlias = Annotated[
    Path | None, typer.Option("--key", help="Anchor: public key (PEM) of who should have signed.")
]
Digest: TypeAlias = Annotated[str | None, typer.Option("--digest", help="Anchor: SHA-256 that you got another way.")]
Consistency: TypeAlias = Annotated[
    bool, typer.Option("--consistency-only", help="Ask only whether the evidence agrees with itself.")
]
Chain: TypeAlias = Annotated[
    Path | None,
    typer.Option("--chain", metavar="DIR", help="Promotion run that may promote the cluster class; with --policy."),
]
At: TypeAlias = Annotated[
    str | None, typer.Option("--at", help="Evaluation time, RFC 3339 with Z; for a policy now where not given.")
]
Form: TypeAlias = Annotated[ReportFormat, typer.Option("--format", help="How the report is written.")]
Reports: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--report", metavar="FILE", help="Write it here, too: .json .sarif .xml .md .html .txt; repeatable."),
]
ExpectPlan: TypeAlias = Annotated[str | None, typer.Option("--expect-plan", help="SHA-256 of the plan it must be of.")]
ExpectNonce: TypeAlias = Annotated[str | None, typer.Option("--expect-nonce", help="Instance nonce it must be of.")]
ExpectSeal: TypeAlias = Annotated[str | None, typer.Option("--expect-seal", help="SHA-256 of the seal's payload.")]
ExpectSource: TypeAlias = Annotated[str | None, typer.Option("--expect-source", help="SHA-256 of the source it ran.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchoring:
    """What the auditor goes by, and when."""

    policy: Policy = None
    trusted_root: TrustedRoot = None
    key: Key = None
    digest: Digest = None
    consistency_only: Consistency = False
    at: At = None

    def choose(self) -> Anchor:
        """The one anchor; raises `FindingError` (`usage.invalid`, `input.missing`, `key.*`, `policy.*`)."""
        from mint2m_verify.anchor import choose

        return choose(
            policy=self.policy,
            trusted_root=self.trusted_root,
            key=self.key,
            digest=self.digest,
            consistency_only=self.consistency_only,
            at=self.at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expecting:
    """What the auditor chose beforehand."""

    expect_plan: ExpectPlan = None
    expect_nonce: ExpectNonce = None
    expect_seal: ExpectSeal = None
    expect_source: ExpectSource = None

    def options(
        self,
        *,
        at: str | None,
        progress: Progress | None,
        journal: HashJournal | None = None,
        whole_digests: bool = False,
    ) -> VerifyOptions:
        """All that a verification is told beside its anchor; raises `FindingError` (`usage.invalid`)."""
        from mint2m_verify.anchor import options

        return options(
            at,
            self.expect_plan,
            self.expect_nonce,
            self.expect_seal,
            self.expect_source,
            progress,
            journal,
            whole_digests,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """How the report is told, and where it is written, too."""

    form: Form = ReportFormat.TEXT
    report: Reports = None

    def __post_init__(self) -> None:
        report_files(self.report)  # a name that no report can have is refused before anything is verified

    def present(self, report: Report) -> Outcome:
        return present(report, self.form, report_files(self.report))
