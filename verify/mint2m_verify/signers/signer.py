"""What every signer can do, whatever it holds: a file, a card, a service or a root of its own.

The rule: whoever asks for a signature says whether it is over a statement, over a file's bytes or over a digest alone;
a signer that cannot make the last kind refuses, and never signs something else instead.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from mint2m_verify.signing import PublicKey

#: `managed`: a key that outlives the run. `ephemeral`: a key made for it. `certificate`: an identity, by a certificate.
SignerKind: TypeAlias = Literal["managed", "ephemeral", "certificate"]


class Signer(Protocol):
    """Makes Sigstore bundles v0.3, in RFC 8785 form; each method raises `FindingError` (`signer.*`) and no other."""

    @property
    def kind(self) -> SignerKind:
        """What a signature of this signer says about who made it."""

    @property
    def public_key(self) -> PublicKey | None:
        """The key that verifies all of its signatures; None where each is made by a key and certificate of its own."""

    def describe(self) -> str:
        """The signer in a few words, for people."""

    def sign_statement(self, payload: bytes) -> bytes:
        """A bundle with `payload` in a DSSE envelope, as an in-toto statement."""

    def sign_digest(self, sha256: bytes) -> bytes:
        """A bundle over the file with that SHA-256; `signer.needs-bytes` where the digest alone cannot be signed."""

    def sign_artifact(self, raw: bytes) -> bytes:
        """A bundle over a file with these bytes."""
