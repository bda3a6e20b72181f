"""Sigstore bundles as they are read, and as they are once verified: two types, so that one never passes for the other.

The rule: `SignedBundle` holds claims. Only `Verified`, which nothing but `verify_bundle` makes, says who signed and
when; what a bundle merely claims to hold (a log entry, a timestamp) is counted, and counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.finding import Finding

BundleVersion: TypeAlias = Literal["0.1", "0.2", "0.3"]
Material: TypeAlias = Literal["certificate", "public-key"]
TimeSource: TypeAlias = Literal["timestamp-authority", "transparency-log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A DSSE envelope with its one signature."""

    payload: bytes
    payload_type: str
    signature: bytes

    @property
    def signed_bytes(self) -> bytes:
        """DSSE v1 pre-authentication encoding: what the signature is over. Lengths count bytes, not characters."""
        kind = self.payload_type.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.payload), self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSignature:
    """A signature over a file's bytes, which are elsewhere; `digest` is what the bundle says of them, if it does."""

    algorithm: str | None
    digest: bytes | None
    signature: bytes


Content: TypeAlias = Envelope | MessageSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class InclusionProof:
    """The path from a log entry to the root of a log's tree, and the checkpoint in which the log signed that root."""

    log_index: int
    tree_size: int
    root_hash: bytes
    hashes: tuple[bytes, ...]
    checkpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A transparency log's entry. `promise` is the log's signature over the entry and its `integrated_time`."""

    log_index: int
    log_id: bytes
    kind: str
    version: str
    integrated_time: int | None
    promise: bytes | None
    proof: InclusionProof | None
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedBundle:
    """One bundle, parsed strictly and NOT verified.

    `raw` is the bundle as JSON: the file's own bytes, one line of it, or the bundle that a PEP 740 attestation stands
    for. `chain` holds the certificates that older bundles put behind the signing one.
    """

    file: str
    raw: bytes
    version: BundleVersion
    material: Material
    hint: str | None
    certificate: bytes | None
    chain: tuple[bytes, ...]
    entries: tuple[LogEntry, ...]
    tokens: tuple[bytes, ...]  # RFC 3161 responses, DER
    content: Content

    @property
    def log_entries(self) -> int:
        """How many log entries are claimed."""
        return len(self.entries)

    @property
    def timestamps(self) -> int:
        """How many timestamps are claimed."""
        return len(self.tokens)

    @property
    def signature(self) -> bytes:
        return self.content.signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the authority that issued a certificate says of the signer, by Fulcio's name: `source_repository_uri`, …"""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSigner:
    """Who an authority says signed: the identity (`san`) and who vouched for it (`issuer`)."""

    issuer: str
    san: str
    claims: tuple[Claim, ...]
    certificate_sha256: str

    def claim(self, name: str) -> str | None:
        """The value of one claim; None where the certificate makes none of that name."""
        return next((claim.value for claim in self.claims if claim.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySigner:
    """The key that signed, by the SHA-256 of its SubjectPublicKeyInfo."""

    spki_sha256: str


Signer: TypeAlias = CertificateSigner | KeySigner


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTime:
    """A time that somebody named in the trusted root signed over this signature; UTC."""

    time: datetime
    source: TimeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What a signature should be about, by SHA-256.

    `name` is known where a file was given and is the last part of its path. `content` is held where the file is small
    enough: an Ed25519 signature covers the bytes themselves, and no digest replaces them.
    """

    name: str | None
    sha256: str
    content: bytes | None = None

    @classmethod
    def of(cls, content: bytes, *, name: str | None = None) -> Artifact:
        return cls(name=name, sha256=sha256_hex(content), content=content)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementSubject:
    """A subject of an in-toto statement; `name` is None where it names nothing, `sha256` where it has none."""

    name: str | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What every in-toto Statement v1 has; the predicate is read by whoever knows its type."""

    predicate_type: str
    subjects: tuple[StatementSubject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A bundle whose every signature, proof and time holds. Whether this signer may sign is another question.

    `logged` and `timestamped` are facts: the entry's inclusion was proven against a log of the trusted root, a
    timestamp authority of it signed over the signature. `root_sha256` is the digest of that root's file, None where
    no root was used.
    """

    bundle: SignedBundle
    signer: Signer
    times: tuple[SignedTime, ...]
    logged: bool
    timestamped: bool
    root_sha256: str | None
    statement: Statement | None

    @property
    def payload(self) -> bytes | None:
        """The signed payload; None for a message signature."""
        return self.bundle.content.payload if isinstance(self.bundle.content, Envelope) else None

    @property
    def payload_type(self) -> str | None:
        return self.bundle.content.payload_type if isinstance(self.bundle.content, Envelope) else None

    @property
    def payload_sha256(self) -> str | None:
        return None if self.payload is None else sha256_hex(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one bundle: `verified` exactly where there are no findings."""

    verified: Verified | None
    findings: tuple[Finding, ...]
