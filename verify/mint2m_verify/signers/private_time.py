"""The timestamp authority of a private root: RFC 3161 responses with an RFC 5816 certificate identifier.

The rule: a timestamp says that a digest existed at a time, and nothing about what it is a digest of.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from mint2m_verify.signers import der
from mint2m_verify.signers.private_authority import der_of

_SHA256 = der.sequence(der.object_identifier("2.16.840.1.101.3.4.2.1"))
_ECDSA_SHA256 = der.sequence(der.object_identifier("1.2.840.10045.4.3.2"))
_SIGNED_DATA = der.object_identifier("1.2.840.113549.1.7.2")
_TST_INFO = der.object_identifier("1.2.840.113549.1.9.16.1.4")
_CONTENT_TYPE = "1.2.840.113549.1.9.3"
_MESSAGE_DIGEST = "1.2.840.113549.1.9.4"
_SIGNING_CERTIFICATE_V2 = "1.2.840.113549.1.9.16.2.47"
_POLICY = der.object_identifier("1.3.6.1.4.1.57264.2")  # Sigstore's timestamp policy
_GRANTED = der.sequence(der.integer(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampAuthority:
    """A timestamping key and its chain: its certificate first, then the authority's."""

    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, x509.Certificate]

    def stamp(self, digest: bytes, *, now: datetime, nonce: int | None = None, with_certificate: bool = False) -> bytes:
        """A granted TimeStampResp (DER) over a SHA-256, to the second; `nonce` echoes a request's."""
        certificate = self.chain[0]
        info = der.sequence(
            der.integer(1),
            _POLICY,
            der.sequence(_SHA256, der.octets(digest)),
            der.integer(x509.random_serial_number()),
            der.generalized_time(now.astimezone(UTC)),
            *(() if nonce is None else (der.integer(nonce),)),
        )
        fingerprint = der.octets(hashlib.sha256(der_of(certificate)).digest())
        attributes = (
            _attribute(_CONTENT_TYPE, _TST_INFO),
            _attribute(_MESSAGE_DIGEST, der.octets(hashlib.sha256(info).digest())),
            _attribute(_SIGNING_CERTIFICATE_V2, der.sequence(der.sequence(der.sequence(fingerprint)))),
        )
        # RFC 5652, section 5.4: signed as an explicit SET OF, stored under an implicit tag.
        signature = self.key.sign(der.set_of(*attributes), ec.ECDSA(hashes.SHA256()))
        signer = der.sequence(
            der.integer(1),
            der.sequence(certificate.issuer.public_bytes(), der.integer(certificate.serial_number)),
            _SHA256,
            der.tagged_set(*attributes),
            _ECDSA_SHA256,
            der.octets(signature),
        )
        signed = der.sequence(
            der.integer(3),
            der.set_of(_SHA256),
            der.sequence(_TST_INFO, der.tagged(der.octets(info))),
            *((der.tagged_set(der_of(certificate)),) if with_certificate else ()),
            der.set_of(signer),
        )
        return der.sequence(_GRANTED, der.sequence(_SIGNED_DATA, der.tagged(signed)))


def _attribute(dotted: str, value: bytes) -> bytes:
    return der.sequence(der.object_identifier(dotted), der.set_of(value))
