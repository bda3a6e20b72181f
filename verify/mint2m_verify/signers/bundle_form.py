"""Writes Sigstore bundles v0.3: one signature, its verification material, and what it is over.

The rule: what is written is the RFC 8785 form, so the same signature is always the same bytes. Formats: sigstore
protobuf-specs bundle v0.3, secure-systems-lab/dsse v1.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mint2m_verify.canonical import JsonValue, canonical

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT_PAYLOAD = "application/vnd.in-toto+json"


#: `verificationMaterial` of a bundle, as JSON.
Material: TypeAlias = dict[str, JsonValue]


def encode(raw: bytes) -> str:
    """Standard base64, as all of these formats want it."""
    return base64.b64encode(raw).decode("ascii")


def signed_bytes(payload: bytes, payload_type: str) -> bytes:
    """DSSE v1 pre-authentication encoding: what the signature of an envelope is over."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def envelope(payload: bytes, payload_type: str, signature: bytes) -> dict[str, JsonValue]:
    """`dsseEnvelope` with its one signature."""
    return {
        "payload": encode(payload),
        "payloadType": payload_type,
        "signatures": [{"keyid": "", "sig": encode(signature)}],
    }


def message_signature(digest: bytes, signature: bytes) -> dict[str, JsonValue]:
    """`messageSignature` over a file of that SHA-256."""
    return {"messageDigest": {"algorithm": "SHA2_256", "digest": encode(digest)}, "signature": encode(signature)}


def key_material(hint: bytes) -> Material:
    """`verificationMaterial` of a managed key; `hint` is the SHA-256 of its SubjectPublicKeyInfo, as cosign has it."""
    return {"publicKey": {"hint": encode(hint)}, "tlogEntries": []}


def certificate_material(certificate: bytes) -> Material:
    """`verificationMaterial` of a certificate (DER)."""
    return {"certificate": {"rawBytes": encode(certificate)}, "tlogEntries": []}


def witnessed(
    material: Mapping[str, JsonValue], *, entries: Sequence[JsonValue], timestamps: Sequence[bytes]
) -> Material:
    """`material` with log entries and RFC 3161 responses beside it."""
    stamps: list[JsonValue] = [{"signedTimestamp": encode(stamp)} for stamp in timestamps]
    extra: dict[str, JsonValue] = {"timestampVerificationData": {"rfc3161Timestamps": stamps}} if stamps else {}
    return {**material, "tlogEntries": list(entries), **extra}


def envelope_bundle(material: JsonValue, content: JsonValue) -> bytes:
    """A bundle over a DSSE envelope."""
    return canonical({"mediaType": MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": content})


def message_bundle(material: JsonValue, content: JsonValue) -> bytes:
    """A bundle over a message signature."""
    return canonical({"mediaType": MEDIA_TYPE, "verificationMaterial": material, "messageSignature": content})
