"""Signatures of logs: each log's key signs in the one way that the trusted root states for it.

The rule: the root's `keyDetails` decide, never the signature. A key of another type than its details is no key.
"""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key

from mint2m_verify.sigstore_bundle.root import Log

_CURVES: Mapping[str, tuple[type[ec.EllipticCurve], hashes.HashAlgorithm]] = {
    "PKIX_ECDSA_P256_SHA_256": (ec.SECP256R1, hashes.SHA256()),
    "PKIX_ECDSA_P384_SHA_384": (ec.SECP384R1, hashes.SHA384()),
    "PKIX_ECDSA_P521_SHA_512": (ec.SECP521R1, hashes.SHA512()),
}
_RSA = frozenset(
    {
        "PKCS1_RSA_PKCS1V5",
        "PKIX_RSA_PKCS1V15_2048_SHA256",
        "PKIX_RSA_PKCS1V15_3072_SHA256",
        "PKIX_RSA_PKCS1V15_4096_SHA256",
    }
)


def signed_by_log(log: Log, signature: bytes, message: bytes) -> bool:
    """Whether `signature` is the log's over `message`; False for a key that cannot be used as the root states."""
    try:
        key = load_der_public_key(log.key_der)
        if isinstance(key, ec.EllipticCurvePublicKey) and log.details in _CURVES:
            curve, digest = _CURVES[log.details]
            if not isinstance(key.curve, curve):
                return False
            key.verify(signature, message, ec.ECDSA(digest))
        elif isinstance(key, ed25519.Ed25519PublicKey) and log.details == "PKIX_ED25519":
            key.verify(signature, message)
        elif isinstance(key, rsa.RSAPublicKey) and log.details in _RSA:
            key.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
        else:
            return False
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True
