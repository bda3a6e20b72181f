"""The transparency log of a private root: entries as Rekor v1 and v2 write them, with inclusion proof and checkpoint.

The rule: an entry is appended, and on disk, before anyone holds its proof; a log that forgets a leaf would prove
inclusion in a tree that nobody can show again. Sources: RFC 6962; C2SP tlog-checkpoint and signed-note; Rekor's
`hashedrekord` 0.0.1 and 0.0.2 and `dsse` 0.0.1 entries; for DSSE in Rekor v2, its spec, section 6.1.4.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from cryptography.hazmat.primitives.asymmetric import ed25519

from mint2m_verify.canonical import JsonValue, canonical
from mint2m_verify.finding import FindingError, found
from mint2m_verify.signers.bundle_form import encode
from mint2m_verify.signers.merkle import inclusion_path, leaf_hash, root_hash
from mint2m_verify.signing import PrivateKey, public_key_der, sign_bytes

#: How an entry is written: Rekor v1 dates it itself, Rekor v2 leaves the time to a timestamp authority.
LogVersion: TypeAlias = Literal["v1", "v2"]


class Leaves(Protocol):
    """Where a log keeps its entries' bodies."""

    def append(self, body: bytes) -> tuple[int, Sequence[bytes]]:
        """Keep one body; its index and the hashes of all leaves up to it."""


class LeavesInMemory:
    """Leaves of a root that lives as long as its process: tests."""

    def __init__(self) -> None:
        self._hashes: list[bytes] = []

    def append(self, body: bytes) -> tuple[int, Sequence[bytes]]:
        self._hashes.append(leaf_hash(body))
        return len(self._hashes) - 1, tuple(self._hashes)


@dataclass(frozen=True, slots=True)
class LeavesOnDisk:
    """Leaves as lines of a file, one canonical JSON body a line; appended under a lock and synced.

    A last line without its end was never acknowledged, and is dropped before the next one is written.
    """

    path: Path

    def append(self, body: bytes) -> tuple[int, Sequence[bytes]]:
        try:
            with self._locked() as descriptor:
                whole = self._whole_lines(descriptor)
                os.pwrite(descriptor, body + b"\n", sum(len(line) + 1 for line in whole))
                os.fsync(descriptor)
        except OSError as fault:
            raise FindingError(found("file.unwritable", file=str(self.path), actual=fault.strerror)) from fault
        return len(whole), tuple(leaf_hash(line) for line in (*whole, body))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        # Never created here: a log that begins again would give a second entry the place of the first.
        descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    @staticmethod
    def _whole_lines(descriptor: int) -> tuple[bytes, ...]:
        with os.fdopen(os.dup(descriptor), "rb") as stream:
            stream.seek(0)
            *whole, partial = stream.read().split(b"\n")
        if partial:
            os.ftruncate(descriptor, sum(len(line) + 1 for line in whole))
        return tuple(whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransparencyLog:
    """A log's name in its checkpoints, its key and its leaves."""

    origin: str
    key: PrivateKey
    leaves: Leaves

    @property
    def log_id(self) -> bytes:
        """SHA-256 of the log key's SubjectPublicKeyInfo."""
        return hashlib.sha256(public_key_der(self.key.public_key())).digest()

    def append(self, body: dict[str, JsonValue], *, integrated: datetime | None) -> dict[str, JsonValue]:
        """The `TransparencyLogEntry` of a new leaf; with a time it also carries Rekor v1's signed promise."""
        raw = canonical(body)
        index, hashes = self.leaves.append(raw)
        root = root_hash(hashes)
        entry: dict[str, JsonValue] = {
            "logIndex": str(index),
            "logId": {"keyId": encode(self.log_id)},
            "kindVersion": {"kind": body["kind"], "version": body["apiVersion"]},
            "inclusionProof": {
                "logIndex": str(index),
                "treeSize": str(len(hashes)),
                "rootHash": encode(root),
                "hashes": [encode(sibling) for sibling in inclusion_path(index, hashes)],
                "checkpoint": {"envelope": self._checkpoint(len(hashes), root)},
            },
            "canonicalizedBody": encode(raw),
        }
        if integrated is None:
            return entry
        seconds = int(integrated.timestamp())
        promise = canonical(
            {"body": encode(raw), "integratedTime": seconds, "logID": self.log_id.hex(), "logIndex": index}
        )
        signature = encode(sign_bytes(promise, self.key))
        return {
            **entry,
            "integratedTime": str(seconds),
            "inclusionPromise": {"signedEntryTimestamp": signature},
        }

    def _checkpoint(self, size: int, root: bytes) -> str:
        """A signed note over the tree's size and root."""
        note = f"{self.origin}\n{size}\n{encode(root)}\n"
        signature = encode(self.log_id[:4] + sign_bytes(note.encode(), self.key))
        return f"{note}\n\u2014 {self.origin} {signature}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedBy:
    """Whose signature an entry records: a certificate or a bare public key, in both of its encodings."""

    der: bytes
    pem: bytes
    kind: Literal["certificate", "public-key"]

    def v2(self) -> dict[str, JsonValue]:
        """`verifier` of a Rekor v2 entry."""
        name = "x509Certificate" if self.kind == "certificate" else "publicKey"
        return {"keyDetails": "PKIX_ECDSA_P256_SHA_256", name: {"rawBytes": encode(self.der)}}


def message_body(digest: bytes, signature: bytes, signer: SignedBy, version: LogVersion) -> dict[str, JsonValue]:
    """The entry of a signature over a SHA-256: `hashedrekord`."""
    if version == "v2":
        record: dict[str, JsonValue] = {
            "data": {"algorithm": "SHA2_256", "digest": encode(digest)},
            "signature": {"content": encode(signature), "verifier": signer.v2()},
        }
        return {"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": record}}
    return {
        "apiVersion": "0.0.1",
        "kind": "hashedrekord",
        "spec": {
            "data": {"hash": {"algorithm": "sha256", "value": digest.hex()}},
            "signature": {"content": encode(signature), "publicKey": {"content": encode(signer.pem)}},
        },
    }


def envelope_body(
    envelope: JsonValue, *, payload: bytes, signed: bytes, signature: bytes, signer: SignedBy, version: LogVersion
) -> dict[str, JsonValue]:
    """The entry of a DSSE envelope; Rekor v2 records it as a signature over the envelope's signed bytes."""
    if version == "v2":
        return message_body(hashlib.sha256(signed).digest(), signature, signer, "v2")
    return {
        "apiVersion": "0.0.1",
        "kind": "dsse",
        "spec": {
            "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(canonical(envelope)).hexdigest()},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": encode(signature), "verifier": encode(signer.pem)}],
        },
    }


def key_details(key: PrivateKey) -> str:
    """Sigstore's name for a log key's kind."""
    return "PKIX_ED25519" if isinstance(key, ed25519.Ed25519PrivateKey) else "PKIX_ECDSA_P256_SHA_256"
