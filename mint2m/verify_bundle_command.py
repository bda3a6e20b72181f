"""`mint2m verify bundle ARCHIVE`: a release archive from anyone, against what the auditor brought."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Outcome, ReportFormat, present, report_files
from mint2m.verify_options import At, Consistency, Digest, Form, Key, Policy, Reports, TrustedRoot


def bundle(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="mint2m-v<version>-release-bundle.tar.gz.")],
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    checkout: Annotated[
        Path | None,
        typer.Option("--checkout", metavar="DIR", help="Must be its source, but for .git/."),
    ] = None,
    expect_version: Annotated[str | None, typer.Option("--expect-version", help="Version it must be of.")] = None,
    verified_output: Annotated[
        Path | None, typer.Option("--verified-output", metavar="DIR", help="New directory for the verified members.")
    ] = None,
    at: At = None,
    form: Form = ReportFormat.TEXT,
    report: Reports = None,
) -> Outcome:
    """Verify a release archive before anything of it is unpacked. --digest is of the release statement's payload."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.bundle import BundleQuestion, verify_bundle

    files = report_files(report)
    anchor = choose(
        key=key, digest=digest, consistency_only=consistency_only, policy=policy, trusted_root=trusted_root, at=at
    )
    question = BundleQuestion(
        archive=archive, checkout=checkout, expect_version=expect_version, verified_output=verified_output
    )
    with hash_bar() as progress:
        return present(verify_bundle(question, anchor, options(at, progress=progress)), form, files)
