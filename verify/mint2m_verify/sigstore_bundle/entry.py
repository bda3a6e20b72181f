"""What a log entry is about: its body against the signature, the key or certificate, and the content of the bundle.

The rule: a log proves only that it saw certain bytes. That they are this signature, by this signer, over this content
is compared here member by member; an entry about anything else is no witness of this bundle (CVE-2022-36056).
Formats: rekor hashedrekord 0.0.1 and 0.0.2, dsse 0.0.1, intoto 0.0.2.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from mint2m_verify.canonical import JsonValue, Limits, parse
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.sigstore_bundle.model import Content, Envelope, LogEntry, SignedBundle

_LIMITS = Limits(size_bytes=32 << 20, depth=16, members=4096)

_BLOCK = re.compile(r"-----BEGIN (CERTIFICATE|PUBLIC KEY)-----\n([A-Za-z0-9+/=\n]+)\n-----END \1-----\n?")

MESSAGE_KINDS = frozenset({("hashedrekord", "0.0.1"), ("hashedrekord", "0.0.2")})
ENVELOPE_KINDS = frozenset({("dsse", "0.0.1"), ("hashedrekord", "0.0.2"), ("intoto", "0.0.2")})

#: Entries of logs that sign the time at which they took an entry in.
TIMED_KINDS = frozenset({("hashedrekord", "0.0.1"), ("dsse", "0.0.1"), ("intoto", "0.0.2")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """Who signed: certificate or public key in DER, and how its key signs."""

    der: bytes
    is_certificate: bool
    details: str
    digest: str  # hash name of the signature algorithm, as hashlib spells it


def kinds_for(content: Content) -> frozenset[tuple[str, str]]:
    """Kinds of entries that can be about such content."""
    return ENVELOPE_KINDS if isinstance(content, Envelope) else MESSAGE_KINDS


def check_count(bundle: SignedBundle) -> Iterator[Finding]:
    """More entries than one, and an entry of a kind that cannot be about such content."""
    where = "/verificationMaterial/tlogEntries"
    if len(bundle.entries) > 1:
        yield found(
            "sigstore.log-entry-count",
            file=bundle.file,
            pointer=where,
            expected="one log entry",
            actual=str(len(bundle.entries)),
        )
    for entry in bundle.entries[:1]:
        kinds = kinds_for(bundle.content)
        if (entry.kind, entry.version) not in kinds:
            yield found(
                "sigstore.log-entry-unsupported",
                file=bundle.file,
                pointer=f"{where}/0/kindVersion",
                expected=" or ".join(sorted(f"{kind} {version}" for kind, version in kinds)),
                actual=f"{entry.kind} {entry.version}"[:200],
            )


def check_body(bundle: SignedBundle, signer: Witnessed, artifact_sha256: str | None) -> Iterator[Finding]:
    """Where the log entry is about another signature, signer or content; the first difference is enough.

    Args:
        artifact_sha256: of the signed file; needed for a message signature.
    """
    for entry in bundle.entries[:1]:
        if (entry.kind, entry.version) not in kinds_for(bundle.content):
            return  # `check_count` tells
        for pointer, expected in _differences(entry, bundle.content, signer, artifact_sha256):
            yield found(
                "sigstore.log-entry-mismatch",
                file=bundle.file,
                pointer=f"/verificationMaterial/tlogEntries/0/canonicalizedBody#{pointer}",
                expected=expected,
            )
            return


def _differences(
    entry: LogEntry, content: Content, signer: Witnessed, artifact_sha256: str | None
) -> Iterator[tuple[str, str]]:
    """(pointer in the body, what it should be) wherever the entry is not about this signature."""
    try:
        body = parse(entry.body, file="canonicalizedBody", limits=_LIMITS)
    except FindingError as fault:
        yield "", f"a JSON document ({fault.finding.id})"
        return
    if _at(body, "kind") != entry.kind or _at(body, "apiVersion") != entry.version:
        yield "/kind", f"{entry.kind} {entry.version}, as the bundle says"
        return
    match (entry.kind, entry.version):
        case ("hashedrekord", "0.0.1"):
            wanted = _message_v1(content, signer, artifact_sha256)
        case ("hashedrekord", "0.0.2"):
            wanted = _hashed_v2(content, signer, artifact_sha256)
        case ("dsse", "0.0.1"):
            wanted = _envelope_v1(content, signer)
        case ("intoto", "0.0.2"):
            wanted = _intoto_v2(content, signer)
        case _:
            yield "/kind", "a known kind of entry"
            return
    for path, value in wanted:
        there = _at(body, *path)
        if not (_is_pem_of(there, value.der) if isinstance(value, _Pem) else there == value):
            short = isinstance(value, str) and len(value) <= 100
            yield "/" + "/".join(map(str, path)), str(value) if short else "this bundle's"


@dataclass(frozen=True, slots=True)
class _Pem:
    """A certificate or key that an entry holds as base64 of PEM; line lengths differ between tools."""

    der: bytes


_Wanted: TypeAlias = "Iterator[tuple[tuple[str | int, ...], JsonValue | _Pem]]"


def _message_v1(content: Content, signer: Witnessed, artifact_sha256: str | None) -> _Wanted:
    yield ("spec", "data", "hash"), {"algorithm": "sha256", "value": artifact_sha256}
    yield ("spec", "signature", "content"), _encode(content.signature)
    yield ("spec", "signature", "publicKey", "content"), _Pem(signer.der)


def _hashed_v2(content: Content, signer: Witnessed, artifact_sha256: str | None) -> _Wanted:
    """Of a DSSE envelope the entry holds the hash of the signed encoding, by the signer's own hash function."""
    spec = ("spec", "hashedRekordV002")
    algorithm, digest = "SHA2_256", bytes.fromhex(artifact_sha256 or "")
    if isinstance(content, Envelope):
        algorithm = {"sha256": "SHA2_256", "sha384": "SHA2_384", "sha512": "SHA2_512"}[signer.digest]
        digest = hashlib.new(signer.digest, content.signed_bytes).digest()
    yield (*spec, "data"), {"algorithm": algorithm, "digest": _encode(digest)}
    yield (*spec, "signature", "content"), _encode(content.signature)
    form = "x509Certificate" if signer.is_certificate else "publicKey"
    yield (
        (*spec, "signature", "verifier"),
        {"keyDetails": signer.details, form: {"rawBytes": _encode(signer.der)}},
    )


def _envelope_v1(content: Content, signer: Witnessed) -> _Wanted:
    """The entry's own hash of the envelope is not compared: of an envelope's JSON there is no one form."""
    payload = content.payload if isinstance(content, Envelope) else b""
    yield ("spec", "payloadHash"), {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
    yield ("spec", "signatures", 1), None
    yield ("spec", "signatures", 0, "signature"), _encode(content.signature)
    yield ("spec", "signatures", 0, "verifier"), _Pem(signer.der)


def _intoto_v2(content: Content, signer: Witnessed) -> _Wanted:
    """Such entries hold the signature in base64 twice over."""
    payload = content.payload if isinstance(content, Envelope) else b""
    spec = ("spec", "content")
    yield (*spec, "payloadHash"), {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
    yield (*spec, "envelope", "payloadType"), content.payload_type if isinstance(content, Envelope) else ""
    signed = (*spec, "envelope", "signatures")
    yield (*signed, 1), None
    yield (*signed, 0, "sig"), _encode(_encode(content.signature).encode())
    yield (*signed, 0, "publicKey"), _Pem(signer.der)


def _at(value: JsonValue, *path: str | int) -> JsonValue:
    """The value at a path; None where there is none."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def _is_pem_of(value: JsonValue, der: bytes) -> bool:
    """Whether `value` is base64 of one PEM block that holds `der`."""
    if not isinstance(value, str):
        return False
    try:
        text = base64.b64decode(value, validate=True).decode("ascii")
        block = _BLOCK.fullmatch(text)
        return block is not None and base64.b64decode(block[2].replace("\n", ""), validate=True) == der
    except (binascii.Error, UnicodeDecodeError):
        return False


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
