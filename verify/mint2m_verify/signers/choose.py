"""The one signer that a command line names.

The rule: exactly one, and everything about it that can be known beforehand is known before anything else is done: a key
is read, a token unlocked, a configuration parsed. An option that would have no effect is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from mint2m_verify.finding import FindingError, found
from mint2m_verify.signers.key_signer import KeySigner, signer_of
from mint2m_verify.signers.passphrase import Ask, Opener, nobody, read_passphrase
from mint2m_verify.signers.signer import Signer
from mint2m_verify.signing import load_private_key, new_private_key


@dataclass(frozen=True, slots=True, kw_only=True)
class SignerOptions:
    """What a command line says about who signs.

    `key` is a private key in PEM, opened by the passphrase in `passphrase_file` or by one that is asked for. `uri` is a
    signer URI of securesystemslib, with `public_key` its public half and `passphrase_file` its PIN. `sigstore` is a
    client trust configuration (JSON), with `identity_token` a file that holds the token. `private_root` is a directory
    of `mint2m trust private-root`, with the `identity` and `issuer` to certify.
    """

    key: Path | None = None
    passphrase_file: Path | None = None
    uri: str | None = None
    public_key: Path | None = None
    sigstore: Path | None = None
    identity_token: Path | None = None
    private_root: Path | None = None
    identity: str | None = None
    issuer: str | None = None

    @property
    def given(self) -> bool:
        """Whether anything at all was said."""
        return any(getattr(self, item.name) is not None for item in fields(self))

    def choose(self, *, ask: Ask = nobody) -> Signer:
        """The one signer that these options name.

        Raises:
            FindingError: `usage.invalid` for none, for several, or for an option that belongs to another; `signer.*`,
                `key.*`, `input.missing`, `file.*`.
        """
        self._check()
        secret = None if self.passphrase_file is None else read_passphrase(self.passphrase_file)
        if self.key is not None:
            return key_file_signer(self.key, secret=secret, ask=ask)
        if self.uri is not None:
            from mint2m_verify.signers.uri_signer import uri_signer

            return uri_signer(self.uri, public_key=self.public_key, ask=ask if secret is None else lambda _: secret)
        if self.sigstore is not None:
            from mint2m_verify.signers.keyless import keyless_signer

            return keyless_signer(self.sigstore, identity_token=self.identity_token)
        if self.private_root is None or self.identity is None or self.issuer is None:
            raise FindingError(found("usage.invalid", expected="--identity and --issuer beside --private-root"))
        from mint2m_verify.signers.private_root_files import load_private_root

        return load_private_root(self.private_root).signer(self.identity, self.issuer)

    def _check(self) -> None:
        """Exactly one signer, and no option that belongs to another."""
        signers = (
            ("--key", self.key),
            ("--signer", self.uri),
            ("--sigstore", self.sigstore),
            ("--private-root", self.private_root),
        )
        given = [name for name, value in signers if value is not None]
        if len(given) != 1:
            names = ", ".join(name for name, _ in signers)
            actual = " and ".join(given) or "none"
            raise FindingError(found("usage.invalid", expected=f"one of {names}", actual=actual))
        owner = "--signer hsm:" if self.uri is not None and self.uri.startswith("hsm:") else given[0]
        for name, value, owners in (
            ("--passphrase-file", self.passphrase_file, ("--key", "--signer hsm:")),
            ("--public-key", self.public_key, ("--signer",)),
            ("--identity-token", self.identity_token, ("--sigstore",)),
            ("--identity", self.identity, ("--private-root",)),
            ("--issuer", self.issuer, ("--private-root",)),
        ):
            if value is not None and not any(owner.startswith(known) for known in owners):
                expected = f"{name} with {' or '.join(owners)}"
                raise FindingError(found("usage.invalid", expected=expected, actual=f"{name} with {given[0]}"))


def key_file_signer(path: Path, *, secret: bytes | None = None, ask: Ask = nobody) -> KeySigner:
    """A signer with the private key in a PEM file.

    Args:
        secret: its passphrase, from a file; `ask` is asked where there is none and the key is encrypted.

    Raises:
        FindingError: `key.*`, `input.missing`, `file.*`; `key.not-encrypted` for a passphrase that opens nothing.
    """
    opener = Opener(path, secret=secret, ask=ask)
    key = load_private_key(path, opener)
    opener.check_needed()
    return signer_of(key, kind="managed", source=path.name)


def ephemeral_signer() -> KeySigner:
    """A signer with a key that nobody keeps: it shows that nothing changed since, not who signed."""
    return signer_of(new_private_key(), kind="ephemeral", source="made for this run")
