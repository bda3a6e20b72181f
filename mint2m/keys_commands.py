"""`mint2m keys new NAME | show FILE`: signing keys as files."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Outcome
from mint2m.signer_options import PassphraseFile


class Kind(enum.StrEnum):
    """Kinds of keys that can be made."""

    P256 = "p256"
    ED25519 = "ed25519"


def register(app: typer.Typer) -> None:
    """Add the `keys` group."""
    group = typer.Typer(help="Make and show signing keys.", no_args_is_help=True)
    group.command("new")(new)
    group.command("show")(show)
    app.add_typer(group, name="keys")


def new(
    name: Annotated[str, typer.Argument(help="NAME.key and NAME.pub are written; neither may exist.")],
    kind: Annotated[Kind, typer.Option("--type", help="p256 is read by every verifier; ed25519 by fewer.")] = Kind.P256,
    passphrase_file: PassphraseFile = None,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Encrypt NAME.key with a passphrase asked for on the terminal.")
    ] = False,
) -> Outcome:
    """Make a key pair; keep NAME.key secret, give NAME.pub to whoever verifies."""
    from mint2m.signer_options import ask_new
    from mint2m_verify import signing
    from mint2m_verify.signers.passphrase import new_passphrase

    secret = new_passphrase(passphrase_file, ask_new if passphrase else None)
    private, public = signing.new_key_pair(name, kind.value, secret)
    identity = signing.key_id(signing.load_public_key(public))
    guarded = "encrypted; keep it and its passphrase secret" if secret is not None else "keep it secret"
    return Outcome(text=f"key  {identity}\n     {private}   {guarded}\n     {public}   give it to whoever verifies")


def show(
    file: Annotated[Path, typer.Argument(help="A .pub or .key file.")], passphrase_file: PassphraseFile = None
) -> Outcome:
    """Show the id and kind of a key: the SHA-256 by which seals name it."""
    from mint2m.signer_options import ask
    from mint2m_verify import signing
    from mint2m_verify.signers.passphrase import Opener, read_passphrase

    secret = None if passphrase_file is None else read_passphrase(passphrase_file)
    opener = Opener(file, secret=secret, ask=ask)
    half, kind, identity = signing.describe(file, opener)
    opener.check_needed()
    return Outcome(text=f"key  {identity}\n     {half} half, {kind}")
