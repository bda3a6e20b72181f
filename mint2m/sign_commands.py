"""`mint2m sign tree | file | grant`: a run's seal, the signature of a model's files, of any file, a leave to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mint2m.option_groups import grouped
from mint2m.outcome import Format, Outcome, present
from mint2m.signer_options import Signing

if TYPE_CHECKING:
    from mint2m_verify.elsewhere import HashedElsewhere
    from mint2m_verify.walk import Progress


def register(app: typer.Typer) -> None:
    """Add the `sign` group."""
    group = typer.Typer(help="Sign evidence.", no_args_is_help=True)
    group.command("tree")(tree)
    group.command("file")(file)
    group.command("grant")(grant)
    app.add_typer(group, name="sign")


@grouped
def tree(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory; with --output, any directory.")],
    *,
    signing: Signing,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write an OpenSSF model_signing v1.0 signature of DIR's files here.")
    ] = None,
    cosign: Annotated[bool, typer.Option("--cosign", help="Add a signature to the seal of a run directory.")] = False,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="Hash on the nodes of your own Ray cluster.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> Outcome:
    """Seal a run directory that verifies; with --output F, sign the files of any directory for other tools instead."""
    from mint2m.hash_bar import hash_bar
    from mint2m_verify.sealing import sign_tree

    chosen = signing.choose()
    place = signing.key or signing.public_key
    with hash_bar() as bar:
        elsewhere = None if ray is None else hashed_on(ray, directory, bar)
        report = sign_tree(
            directory, chosen, key_file=place, output=output, cosign=cosign, progress=bar, elsewhere=elsewhere
        )
    return present(report, form)


def hashed_on(address: str, directory: Path, progress: Progress | None) -> Mapping[str, HashedElsewhere]:
    """What the nodes of a Ray cluster read of `directory`; needs the trainer extra."""
    from mint2m_verify.doctor.machine import require_trainer

    require_trainer()
    from mint2m_trainer.cluster.ray_machines import ray_machines
    from mint2m_trainer.cluster.spread_hash import hash_spread

    with ray_machines(address) as machines:
        return hash_spread(machines, directory.resolve(), progress)


@grouped
def file(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to sign, each by itself.")],
    *,
    signing: Signing,
    output: Annotated[Path | None, typer.Option("--output", help="The bundle of a single FILE.")] = None,
    form: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> Outcome:
    """Sign files: the Sigstore bundle of FILE is FILE.sigstore.json, and says nothing of the file's name."""
    from mint2m.sign_texts import files_outcome
    from mint2m_verify.signers.sign_files import sign_files

    chosen = signing.choose()
    return files_outcome(sign_files(files, chosen, output=output), chosen.describe(), form)


@grouped
def grant(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A training deployment, or a validation plan.")],
    reason: Annotated[str, typer.Option("--reason", help="What for, in your words.")],
    not_before: Annotated[str, typer.Option("--not-before", metavar="TIME", help="From when on, RFC 3339 with Z.")],
    not_after: Annotated[str, typer.Option("--not-after", metavar="TIME", help="Until when.")],
    *,
    signing: Signing,
    output: Annotated[
        Path | None, typer.Option("--output", help="In place of grant.sigstore.json beside FILE.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> Outcome:
    """Authorize the runs of a deployment, or a promotion run; a policy says whose grants count."""
    from mint2m_verify.signers.sign_grant import GrantRequest, sign_grant

    request = GrantRequest(file=file, reason=reason, not_before=not_before, not_after=not_after, output=output)
    return present(sign_grant(request, signing.choose()), form)
