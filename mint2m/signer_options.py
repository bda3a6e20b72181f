"""The options by which every signing command is told who signs, and how a person is asked for a passphrase.

The rule: a secret comes from a file or from a prompt that does not show it, never from the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from mint2m_verify.signers.choose import SignerOptions
    from mint2m_verify.signers.signer import Signer

Key: TypeAlias = Annotated[
    Path | None, typer.Option("--key", help="Sign with this private key (PEM, P-256 or Ed25519).")
]
PassphraseFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--passphrase-file", help="File with the key's passphrase or the token's PIN."),
]
SignerUri: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--signer",
        metavar="URI",
        help="Sign with a key elsewhere: hsm:2?label=TOKEN, file2:PATH; awskms:, gcpkms:, azurekms:, hv: (untested).",
    ),
]
PublicKey: TypeAlias = Annotated[
    Path | None, typer.Option("--public-key", help="Public half of --signer (PEM); a token is asked for its own.")
]
Sigstore: TypeAlias = Annotated[
    Path | None,
    typer.Option("--sigstore", metavar="CONFIG", help="Sign by identity, with this client trust configuration."),
]
IdentityToken: TypeAlias = Annotated[
    Path | None,
    typer.Option("--identity-token", help="File with the token for --sigstore; else the machine's own."),
]
PrivateRoot: TypeAlias = Annotated[
    Path | None, typer.Option("--private-root", metavar="DIR", help="Sign by a certificate of this private root.")
]
Identity: TypeAlias = Annotated[
    str | None, typer.Option("--identity", help="Who signs, for --private-root: a mail address or a URI.")
]
Issuer: TypeAlias = Annotated[
    str | None, typer.Option("--issuer", help="Who vouches for --identity, for --private-root: a URI.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """Who signs, as the command line has it."""

    key: Key = None
    passphrase_file: PassphraseFile = None
    signer: SignerUri = None
    public_key: PublicKey = None
    sigstore: Sigstore = None
    identity_token: IdentityToken = None
    private_root: PrivateRoot = None
    identity: Identity = None
    issuer: Issuer = None

    @property
    def options(self) -> SignerOptions:
        from mint2m_verify.signers.choose import SignerOptions

        return SignerOptions(
            key=self.key,
            passphrase_file=self.passphrase_file,
            uri=self.signer,
            public_key=self.public_key,
            sigstore=self.sigstore,
            identity_token=self.identity_token,
            private_root=self.private_root,
            identity=self.identity,
            issuer=self.issuer,
        )

    def choose(self) -> Signer:
        """The signer; raises `FindingError` (`signer.*`, `key.*`)."""
        return self.options.choose(ask=ask)


def ask(wanted: str) -> bytes | None:
    """Ask the person at the terminal, without echo; None where standard input or error is no terminal."""
    import getpass
    import sys

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    try:
        return getpass.getpass(f"{wanted}: ").encode()
    except EOFError:  # the person closed the line without a word
        return None


def ask_new(wanted: str) -> bytes | None:
    """Ask twice for a new secret; None where nobody is there or the two differ."""
    first = ask(f"new {wanted}")
    return first if first is not None and first == ask(f"{wanted} again") else None
