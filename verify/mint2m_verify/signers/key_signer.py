"""A signer that holds one key: in a PEM file, in memory, or behind a signer URI.

The rule: every signature is verified with the public half before anybody sees it. A device that was asked for the wrong
key, or that answers nonsense, is found out here and not by the auditor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from mint2m_verify.finding import FindingError, found
from mint2m_verify.signers import bundle_form
from mint2m_verify.signers.bundle_form import STATEMENT_PAYLOAD
from mint2m_verify.signers.signer import SignerKind
from mint2m_verify.signing import PrivateKey, PublicKey, key_id, sign_bytes, verify_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySigner:
    """`sign` signs a message; `sign_prehashed` a SHA-256, and is None where the key cannot do that."""

    kind: SignerKind
    public_key: PublicKey
    source: str
    sign: Callable[[bytes], bytes]
    sign_prehashed: Callable[[bytes], bytes] | None = None

    def describe(self) -> str:
        identity = key_id(self.public_key)
        return f"key {identity[:4]}…{identity[-4:]} ({self.source})"

    def sign_statement(self, payload: bytes) -> bytes:
        signature = self.sign_message(bundle_form.signed_bytes(payload, STATEMENT_PAYLOAD))
        return bundle_form.envelope_bundle(
            self._material(), bundle_form.envelope(payload, STATEMENT_PAYLOAD, signature)
        )

    def sign_artifact(self, raw: bytes) -> bytes:
        digest = hashlib.sha256(raw).digest()
        return bundle_form.message_bundle(
            self._material(), bundle_form.message_signature(digest, self.sign_message(raw))
        )

    def sign_digest(self, sha256: bytes) -> bytes:
        if self.sign_prehashed is None or not isinstance(self.public_key, ec.EllipticCurvePublicKey):
            raise FindingError(found("signer.needs-bytes", actual=self.describe()))
        signature = self.sign_prehashed(sha256)
        if not _verifies(signature, sha256, self.public_key):
            raise FindingError(found("signer.signature-invalid", actual=self.describe()))
        return bundle_form.message_bundle(self._material(), bundle_form.message_signature(sha256, signature))

    def sign_message(self, message: bytes) -> bytes:
        """The bare signature of `message`, verified."""
        signature = self.sign(message)
        if not verify_bytes(message, signature, self.public_key):
            raise FindingError(found("signer.signature-invalid", actual=self.describe()))
        return signature

    def _material(self) -> bundle_form.Material:
        return bundle_form.key_material(bytes.fromhex(key_id(self.public_key)))


def signer_of(key: PrivateKey, *, kind: SignerKind, source: str) -> KeySigner:
    """A signer with `key` in memory; `source` says for people where it comes from."""
    return KeySigner(
        kind=kind,
        public_key=key.public_key(),
        source=source,
        sign=lambda message: sign_bytes(message, key),
        sign_prehashed=_prehashed(key) if isinstance(key, ec.EllipticCurvePrivateKey) else None,
    )


def _prehashed(key: ec.EllipticCurvePrivateKey) -> Callable[[bytes], bytes]:
    return lambda digest: key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))


def _verifies(signature: bytes, digest: bytes, key: ec.EllipticCurvePublicKey) -> bool:
    try:
        key.verify(signature, digest, ec.ECDSA(Prehashed(hashes.SHA256())))
    except InvalidSignature:
        return False
    return True
