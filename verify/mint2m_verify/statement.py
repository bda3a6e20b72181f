"""The seal: an in-toto Statement v1 in a DSSE envelope in a Sigstore bundle v0.3.

The rule: only the payload is signed, so only the payload is believed. Everything else in a bundle is malleable; it is
parsed strictly all the same, because a second signature, an unknown member or a lax base64 is room for a bundle that
two tools read differently. Formats: in-toto/attestation spec v1, secure-systems-lab/dsse v1, sigstore protobuf-specs
bundle v0.3.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from mint2m_verify.canonical import JsonValue, Limits, canonical, parse, sha256_hex
from mint2m_verify.finding import FindingError, found

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SEAL_TYPE = "urn:mint2m:predicate:seal:v1"
TRAINING_TYPE = "urn:mint2m:predicate:training:v1"

#: A bundle holds a list of file names and digests; at this size it could name a hundred thousand files.
BUNDLE_LIMIT = 32 << 20
_BUNDLE_LIMITS = Limits(size_bytes=BUNDLE_LIMIT, depth=12, members=1_000_000)

#: How the first signature of a seal was made: with a key that is kept, with one made for the run, or by a certificate.
SignerClass = Literal["managed", "ephemeral", "certificate"]

_SIGNERS: Mapping[str, SignerClass] = {"managed": "managed", "ephemeral": "ephemeral", "certificate": "certificate"}
_HEX = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ZERO = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A file that the seal covers: its path in the run directory and the SHA-256 of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealStatement:
    """What the signer of a seal says; `payload` are the bytes that are signed."""

    subjects: tuple[Subject, ...]
    kind: str
    stage: str
    execution_id: str
    plan_sha256: str
    parent: str | None
    claim_scope: str
    hardware_class: str
    signer: SignerClass
    log_size: int
    log_root: str
    payload: bytes

    @property
    def sha256(self) -> str:
        """Digest of the payload: the seal's identity, since bundle bytes are malleable."""
        return sha256_hex(self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a key-signed bundle holds, not yet verified."""

    payload: bytes
    payload_type: str
    signature: bytes
    hint: str  # SHA-256 of the signer's SubjectPublicKeyInfo, hexadecimal: a claim of the bundle

    @property
    def signed_bytes(self) -> bytes:
        """DSSE v1 pre-authentication encoding: what the signature is over."""
        kind = self.payload_type.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.payload), self.payload)


def seal_statement(
    *,
    subjects: Iterable[Subject],
    execution_id: str,
    plan_sha256: str,
    claim_scope: str,
    hardware_class: str,
    signer: SignerClass,
) -> SealStatement:
    """The statement that seals a training run, its subjects sorted by name.

    Raises:
        FindingError: `seal.invalid` for subjects that no reader would accept.
    """
    document: JsonValue = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": s.name, "digest": {"sha256": s.sha256}} for s in sorted(subjects, key=lambda s: s.name)],
        "predicateType": SEAL_TYPE,
        "predicate": {
            "kind": "training",
            "stage": "run",
            "execution_id": execution_id,
            "plan_sha256": plan_sha256,
            "parent": None,
            "claim_scope": claim_scope,
            "hardware_class": hardware_class,
            "signer": signer,
            "log": {"size": 0, "root": hashlib.sha256(b"").hexdigest()},
        },
    }
    return parse_statement(canonical(document), file="the statement to sign")


def parse_bundle(raw: bytes, *, file: str) -> Envelope:
    """The one signature of a key-signed bundle, and the payload it claims.

    Raises:
        FindingError: `json.*`, `seal.bundle-invalid`, or `signature.not-by-key` for a certificate.
    """
    reader = StatementReader(fault="seal.bundle-invalid", file=file)
    bundle = reader.members(
        parse(raw, file=file, limits=_BUNDLE_LIMITS), "", {"mediaType", "verificationMaterial", "dsseEnvelope"}
    )
    reader.constant(bundle["mediaType"], "/mediaType", BUNDLE_TYPE)
    material = bundle["verificationMaterial"]
    if isinstance(material, dict) and material.keys() & {"certificate", "x509CertificateChain"}:
        raise FindingError(found("signature.not-by-key", file=file, pointer="/verificationMaterial"))
    where = "/verificationMaterial"
    material = reader.members(material, where, {"publicKey"}, optional={"tlogEntries"})
    if material.get("tlogEntries", []) != []:
        reader.refuse(f"{where}/tlogEntries", expected="no entry: log entries need a policy and a trusted root")
    public_key = reader.members(material["publicKey"], f"{where}/publicKey", {"hint"})
    hint = reader.base64(public_key["hint"], f"{where}/publicKey/hint")
    if len(hint) != hashlib.sha256().digest_size:
        reader.refuse(f"{where}/publicKey/hint", expected="a SHA-256", actual=f"{len(hint)} bytes")
    where = "/dsseEnvelope"
    envelope = reader.members(bundle["dsseEnvelope"], where, {"payload", "payloadType", "signatures"})
    reader.constant(envelope["payloadType"], f"{where}/payloadType", PAYLOAD_TYPE)
    signatures = envelope["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        count = len(signatures) if isinstance(signatures, list) else "no list"
        reader.refuse(f"{where}/signatures", expected="exactly one signature", actual=str(count))
    signature = reader.members(signatures[0], f"{where}/signatures/0", {"sig"}, optional={"keyid"})
    reader.constant(signature.get("keyid", ""), f"{where}/signatures/0/keyid", "")
    return Envelope(
        payload=reader.base64(envelope["payload"], f"{where}/payload"),
        payload_type=PAYLOAD_TYPE,
        signature=reader.base64(signature["sig"], f"{where}/signatures/0/sig"),
        hint=hint.hex(),
    )


def is_plain(raw: bytes, *, file: str) -> bool:
    """Whether a bundle claims to be signed by a key and carries nothing that only a trusted root can judge.

    Raises:
        FindingError: `json.*`.
    """
    value = parse(raw, file=file, limits=_BUNDLE_LIMITS)
    material = value.get("verificationMaterial") if isinstance(value, dict) else None
    if not isinstance(material, dict):
        return True  # it is no bundle at all, and the stricter reader says so
    return "publicKey" in material and not material.get("tlogEntries") and "timestampVerificationData" not in material


def parse_statement(payload: bytes, *, file: str) -> SealStatement:
    """The seal's statement; its bytes must be their own RFC 8785 form.

    Raises:
        FindingError: `json.*` or `seal.invalid`; subjects are non-empty, sorted, unique and safe paths.
    """
    reader = StatementReader(fault="seal.invalid", file=file)
    statement = reader.members(
        parse(payload, file=file, limits=_BUNDLE_LIMITS, canonical_form=True),
        "",
        {"_type", "subject", "predicateType", "predicate"},
    )
    reader.constant(statement["_type"], "/_type", STATEMENT_TYPE)
    reader.constant(statement["predicateType"], "/predicateType", SEAL_TYPE)
    names = {"kind", "stage", "execution_id", "plan_sha256", "parent", "claim_scope", "hardware_class", "signer", "log"}
    predicate = reader.members(statement["predicate"], "/predicate", names)
    reader.constant(predicate["kind"], "/predicate/kind", "training")
    reader.constant(predicate["stage"], "/predicate/stage", "run")
    if predicate["parent"] is not None:
        reader.refuse("/predicate/parent", expected="null: a training run has no parent")
    signer = read_signer(predicate["signer"], reader)
    log = reader.members(predicate["log"], "/predicate/log", {"size", "root"})
    if log["size"] != 0 or isinstance(log["size"], bool):
        reader.refuse("/predicate/log/size", expected="0: the run's first statement", actual=repr(log["size"]))
    reader.constant(log["root"], "/predicate/log/root", hashlib.sha256(b"").hexdigest())
    return SealStatement(
        subjects=read_subjects(statement["subject"], reader),
        kind="training",
        stage="run",
        execution_id=reader.digest(predicate["execution_id"], "/predicate/execution_id"),
        plan_sha256=reader.digest(predicate["plan_sha256"], "/predicate/plan_sha256"),
        parent=None,
        claim_scope=reader.label(predicate["claim_scope"], "/predicate/claim_scope"),
        hardware_class=reader.label(predicate["hardware_class"], "/predicate/hardware_class"),
        signer=signer,
        log_size=0,
        log_root=hashlib.sha256(b"").hexdigest(),
        payload=payload,
    )


def path_fault(path: str) -> str | None:
    """Why `path` is not a safe relative POSIX path in NFC, or None where it is."""
    if not path or len(path) > 1024:
        return "empty or longer than 1024 characters"
    if path.startswith("/") or "\\" in path:
        return "absolute, or with a backslash"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "an empty, '.' or '..' segment"
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in path):
        return "a control character"
    if not unicodedata.is_normalized("NFC", path):
        return "not in Unicode normal form C"
    return None


def read_signer(value: JsonValue, reader: StatementReader) -> SignerClass:
    if not isinstance(value, str) or value not in _SIGNERS:
        reader.refuse("/predicate/signer", expected=" or ".join(_SIGNERS), actual=repr(value))
    return _SIGNERS[value]


def read_subjects(value: JsonValue, reader: StatementReader) -> tuple[Subject, ...]:
    if not isinstance(value, list) or not value:
        reader.refuse("/subject", expected="at least one subject")
    subjects: list[Subject] = []
    for index, entry in enumerate(value):
        where = f"/subject/{index}"
        members = reader.members(entry, where, {"name", "digest"})
        name = reader.text(members["name"], f"{where}/name")
        fault = path_fault(name)
        if fault is not None:
            reader.refuse(f"{where}/name", expected="a relative path", actual=fault)
        if subjects and name <= subjects[-1].name:
            reader.refuse(f"{where}/name", expected=f"a name after {subjects[-1].name}", actual=name)
        digest = reader.members(members["digest"], f"{where}/digest", {"sha256"})
        subjects.append(Subject(name=name, sha256=reader.digest(digest["sha256"], f"{where}/digest/sha256")))
    return tuple(subjects)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementReader:
    """Takes a JSON value apart member by member; the first thing that does not fit ends the reading."""

    fault: str
    file: str

    def refuse(self, pointer: str, *, expected: str | None = None, actual: str | None = None) -> NoReturn:
        shown = None if actual is None else actual[:200]
        raise FindingError(found(self.fault, file=self.file, pointer=pointer, expected=expected, actual=shown))

    def members(
        self, value: JsonValue, pointer: str, required: set[str], *, optional: set[str] | None = None
    ) -> dict[str, JsonValue]:
        if not isinstance(value, dict):
            self.refuse(pointer, expected="an object")
        missing = sorted(required - value.keys())
        unknown = sorted(value.keys() - required - (optional or set()))
        if missing or unknown:
            names = [f"no {name}" for name in missing] + [f"unknown {name}" for name in unknown]
            self.refuse(pointer, expected="the members of its type", actual=", ".join(names))
        return value

    def text(self, value: JsonValue, pointer: str) -> str:
        if not isinstance(value, str):
            self.refuse(pointer, expected="a string")
        return value

    def constant(self, value: JsonValue, pointer: str, wanted: str) -> None:
        if value != wanted:
            self.refuse(pointer, expected=wanted, actual=repr(value))

    def label(self, value: JsonValue, pointer: str) -> str:
        text = self.text(value, pointer)
        if _LABEL.fullmatch(text) is None:
            self.refuse(pointer, expected="a word", actual=text)
        return text

    def digest(self, value: JsonValue, pointer: str) -> str:
        text = self.text(value, pointer)
        if _HEX.fullmatch(text) is None or text == _ZERO:
            self.refuse(pointer, expected="64 lower-case hexadecimal digits, not all zero", actual=text)
        return text

    def base64(self, value: JsonValue, pointer: str) -> bytes:
        text = self.text(value, pointer)
        try:
            raw = base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            self.refuse(pointer, expected="standard base64")
        if not raw or _encode(raw) != text:  # stray bits in the last character would give one payload many spellings
            self.refuse(pointer, expected="standard base64 in its only spelling, not empty")
        return raw


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
