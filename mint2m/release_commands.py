"""`mint2m release check | build | cosign`: from a clean checkout to a bundle with the signatures it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.option_groups import grouped
from mint2m.outcome import Outcome, ReportFormat, present
from mint2m.runtime_commands import add_papers
from mint2m.signer_options import Signing
from mint2m.verify_options import At, Chain, Policy, TrustedRoot

Source: TypeAlias = Annotated[Path, typer.Option("--source", metavar="DIR", help="Top of a git checkout.")]
Version: TypeAlias = Annotated[str | None, typer.Option("--version", help="Version it must be.")]
Form: TypeAlias = Annotated[ReportFormat, typer.Option("--format", help="How the report is written.")]


def register(app: typer.Typer) -> None:
    """Add the `release` group."""
    group = typer.Typer(help="Make releases, and say what stands in their way.", no_args_is_help=True)
    group.command("check")(check)
    group.command("build")(build)
    group.command("cosign")(cosign)
    add_papers(group)
    app.add_typer(group, name="release")


def check(
    source: Source = Path(),
    version: Version = None,
    lock: Annotated[
        list[Path] | None, typer.Option("--lock", help="Runtime lock, to say what in it is not known; may be repeated.")
    ] = None,
    chain: Chain = None,
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    at: At = None,
    form: Form = ReportFormat.TEXT,
) -> Outcome:
    """Judge every release gate of a checkout; nothing is built or written."""
    from mint2m_verify.promotion import read_promoting
    from mint2m_verify.release.gates import check_release

    promoting = read_promoting(chain=chain, policy=policy, trusted_root=trusted_root, at=at)
    return present(check_release(source, version, promoting, locks=tuple(lock or ())), form)


@grouped
def build(
    output: Annotated[Path, typer.Option("--output", help="Directory for the bundle, or its file by its own name.")],
    source: Source = Path(),
    version: Version = None,
    receipt: Annotated[
        list[Path] | None, typer.Option("--receipt", metavar="DIR", help="Run directory to put into the bundle.")
    ] = None,
    *,
    signing: Signing,
    form: Form = ReportFormat.TEXT,
) -> Outcome:
    """Build, sign and verify the bundle of a checkout that passes every gate."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.release.build import BuildRequest, build_release

    chosen = signing.choose()
    receipts = tuple(receipt or ())
    with hash_bar() as progress:
        request = BuildRequest(source=source, output=output, version=version, receipts=receipts, progress=progress)
        return present(build_release(request, (chosen,)), form)


@grouped
def cosign(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A bundle that somebody else signed.")],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Directory for the bundle with your signature.")
    ],
    digest: Annotated[
        str | None, typer.Option("--digest", help="Sign only the release statement with this SHA-256.")
    ] = None,
    *,
    signing: Signing,
    form: Form = ReportFormat.TEXT,
) -> Outcome:
    """Add your signature to a bundle that agrees with itself; the old one stands."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.anchor import choose
    from mint2m_verify.release.cosign import cosign_release

    anchor = choose(key=None, digest=digest, consistency_only=False)
    chosen = signing.choose()
    with hash_bar() as progress:
        return present(cosign_release(archive, output, chosen, anchor, progress=progress), form)
