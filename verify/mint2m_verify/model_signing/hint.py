"""How a model signature names its key: by the SHA-256 of the public key's PEM text, in hexadecimal.

The rule: it is a hint. All other bundles of ours name a key by its DER; only model_signing's tools look for this form.
"""

from __future__ import annotations

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.signing import PublicKey, public_key_pem


def pem_hint(key: PublicKey) -> str:
    """SHA-256 of SubjectPublicKeyInfo in PEM, with its last line end."""
    return sha256_hex(public_key_pem(key))
