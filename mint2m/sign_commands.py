"""`mint2m sign tree DIR --key F`: the seal of a complete run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Format, Outcome, present


def register(app: typer.Typer) -> None:
    """Add the `sign` group."""
    group = typer.Typer(help="Sign evidence.", no_args_is_help=True)
    group.command("tree")(tree)
    app.add_typer(group, name="sign")


def tree(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory without a seal.")],
    key: Annotated[Path, typer.Option("--key", help="Private key (PEM) to sign with.")],
    form: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> Outcome:
    """Seal a run directory that verifies; a run with any fault is not signed."""
    from mint2m_verify.sealing import seal_run_with_key

    return present(seal_run_with_key(directory, key), form)
