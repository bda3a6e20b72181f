"""`mint2m keys new NAME | show FILE`: signing keys as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Outcome


def register(app: typer.Typer) -> None:
    """Add the `keys` group."""
    group = typer.Typer(help="Make and show signing keys.", no_args_is_help=True)
    group.command("new")(new)
    group.command("show")(show)
    app.add_typer(group, name="keys")


def new(name: Annotated[str, typer.Argument(help="NAME.key and NAME.pub are written; neither may exist.")]) -> Outcome:
    """Make a P-256 key pair; keep NAME.key secret, give NAME.pub to whoever verifies."""
    from mint2m_verify import signing

    private, public = signing.new_key_pair(name)
    identity = signing.key_id(signing.load_public_key(public))
    return Outcome(
        text=f"key  {identity}\n     {private}   keep it secret\n     {public}   give it to whoever verifies"
    )


def show(file: Annotated[Path, typer.Argument(help="A .pub or .key file.")]) -> Outcome:
    """Show the id and kind of a key: the SHA-256 by which seals name it."""
    from mint2m_verify import signing

    half, kind, identity = signing.describe(file)
    return Outcome(text=f"key  {identity}\n     {half} half, {kind}")
