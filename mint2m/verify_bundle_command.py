"""`mint2m verify bundle ARCHIVE`: a release archive from anyone, against what the auditor brought."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Outcome, ReportFormat, present


def bundle(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="mint2m-v<version>-release-bundle.tar.gz.")],
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Anchor: trust policy; see mint2m trust init.")
    ] = None,
    trusted_root: Annotated[
        Path | None, typer.Option("--trusted-root", help="Sigstore root that the policy names: a file, or public-good.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Anchor: public key (PEM) of the release's signer.")] = None,
    digest: Annotated[
        str | None, typer.Option("--digest", help="Anchor: SHA-256 of the release statement's payload.")
    ] = None,
    consistency_only: Annotated[
        bool, typer.Option("--consistency-only", help="Ask only whether the archive agrees with itself.")
    ] = False,
    checkout: Annotated[
        Path | None,
        typer.Option("--checkout", metavar="DIR", help="Must be its source, but for .git/."),
    ] = None,
    expect_version: Annotated[str | None, typer.Option("--expect-version", help="Version it must be of.")] = None,
    verified_output: Annotated[
        Path | None, typer.Option("--verified-output", metavar="DIR", help="New directory for the verified members.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Evaluation time, RFC 3339 with Z; for a policy now where not given.")
    ] = None,
    form: Annotated[ReportFormat, typer.Option("--format", help="How the report is written.")] = ReportFormat.TEXT,
) -> Outcome:
    """Verify a release archive before anything of it is unpacked. --digest is of the release statement's payload."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose, options
    from mint2m_verify.bundle import BundleQuestion, verify_bundle

    anchor = choose(
        key=key, digest=digest, consistency_only=consistency_only, policy=policy, trusted_root=trusted_root, at=at
    )
    question = BundleQuestion(
        archive=archive, checkout=checkout, expect_version=expect_version, verified_output=verified_output
    )
    with hash_bar() as progress:
        return present(verify_bundle(question, anchor, options(at, progress=progress)), form)
