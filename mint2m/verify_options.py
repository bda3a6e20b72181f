"""Options that the `verify` commands share: what the auditor brings, and how the report is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.outcome import ReportFormat

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
