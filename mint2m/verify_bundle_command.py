"""`mint2m verify bundle ARCHIVE`: a release archive from anyone, against what the auditor brought."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.option_groups import grouped
from mint2m.outcome import Outcome
from mint2m.verify_options import Anchoring, Telling


@grouped
def bundle(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="mint2m-v<version>-release-bundle.tar.gz.")],
    *,
    anchoring: Anchoring,
    checkout: Annotated[
        Path | None,
        typer.Option("--checkout", metavar="DIR", help="Must be its source, but for .git/."),
    ] = None,
    expect_version: Annotated[str | None, typer.Option("--expect-version", help="Version it must be of.")] = None,
    verified_output: Annotated[
        Path | None, typer.Option("--verified-output", metavar="DIR", help="New directory for the verified members.")
    ] = None,
    telling: Telling,
) -> Outcome:
    """Verify a release archive before anything of it is unpacked. --digest is of the release statement's payload."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import options
    from mint2m_verify.bundle import BundleQuestion, verify_bundle

    anchor = anchoring.choose()
    question = BundleQuestion(
        archive=archive, checkout=checkout, expect_version=expect_version, verified_output=verified_output
    )
    with hash_bar() as progress:
        return telling.present(verify_bundle(question, anchor, options(anchoring.at, progress=progress)))
