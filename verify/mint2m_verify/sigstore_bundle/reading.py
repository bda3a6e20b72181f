"""Bytes to bundles: Sigstore bundles 0.1 to 0.3, JSON lines of them, and PEP 740 attestations.

The rule: what two tools could read differently is refused here, before any library sees it. Members are exactly those
of the format under their one name, numbers are decimal strings in their shortest form, base64 has one spelling, and
nothing is null. Format: sigstore protobuf-specs, bundle v1; PEP 740 for attestations of Python distributions.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from mint2m_verify.canonical import JsonValue, Limits, canonical, parse
from mint2m_verify.finding import FindingError, found
from mint2m_verify.sigstore_bundle.model import (
    BundleVersion,
    Content,
    Envelope,
    InclusionProof,
    LogEntry,
    Material,
    MessageSignature,
    SignedBundle,
)

#: A file of bundles, and one bundle in it: a payload may list a hundred thousand files.
FILE_LIMIT = 64 << 20
BUNDLE_LIMIT = 32 << 20
BUNDLES_LIMIT = 10_000

_LIMITS = Limits(size_bytes=BUNDLE_LIMIT, depth=16, members=4096)
_MOST_CERTIFICATES = 8
_MOST_ENTRIES = 8
_MOST_TOKENS = 8
_MOST_HASHES = 64  # a path in a log of 2^64 entries
_MOST_CHECKPOINT = 16 << 10
_MOST_TEXT = 4096

IN_TOTO = "application/vnd.in-toto+json"

_V03 = "application/vnd.dev.sigstore.bundle.v0.3+json"
_VERSIONS: Mapping[str, BundleVersion] = {
    "application/vnd.dev.sigstore.bundle+json;version=0.1": "0.1",
    "application/vnd.dev.sigstore.bundle+json;version=0.2": "0.2",
    "application/vnd.dev.sigstore.bundle+json;version=0.3": "0.3",
    _V03: "0.3",
}
_MATERIALS = ("certificate", "x509CertificateChain", "publicKey")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")
_MOST_NUMBER = 2**53 - 1  # beyond it the log's promise, which is over JSON, has no one form
_LAST_SECOND = 253402300799  # 9999-12-31T23:59:59Z, the end of every calendar here


def read_bundle(raw: bytes, *, file: str) -> SignedBundle:
    """The one bundle in `raw`, or the one that a PEP 740 attestation stands for.

    Raises:
        FindingError: `json.*` or `sigstore.*`.
    """
    return _read(raw, file=file)


def read_bundles(raw: bytes, *, file: str) -> tuple[SignedBundle, ...]:
    """Every bundle of a file: one JSON document, or one on each line; never none.

    Raises:
        FindingError: `json.*` or `sigstore.*`; one line that is no bundle refuses the file.
    """
    if len(raw) > FILE_LIMIT:
        raise FindingError(found("json.too-large", file=file, expected=f"at most {FILE_LIMIT} bytes"))
    lines = [line for line in raw.split(b"\n") if line.strip(b" \t\r")]
    if not lines:
        raise FindingError(found("sigstore.no-bundle", file=file, expected="at least one bundle"))
    if len(lines) == 1 or not _whole(lines[0]):
        return (_read(raw, file=file),)
    if len(lines) > BUNDLES_LIMIT:
        raise FindingError(
            found(
                "sigstore.no-bundle",
                file=file,
                expected=f"at most {BUNDLES_LIMIT} bundles",
                actual=f"{len(lines)} lines",
            )
        )
    return tuple(_read(line, file=f"{file}:{number}") for number, line in enumerate(lines, start=1))


def _whole(line: bytes) -> bool:
    """Whether a first line is a document of its own: a pretty-printed document opens with a brace that stays open."""
    return line.rstrip().endswith(b"}") and line.count(b"{") == line.count(b"}")


def _read(raw: bytes, *, file: str) -> SignedBundle:
    reader = _Reader(file=file)
    document = parse(raw, file=file, limits=_LIMITS)
    if isinstance(document, dict) and "mediaType" not in document and "verification_material" in document:
        document = _from_attestation(document, reader)
        raw = canonical(document)
    if isinstance(document, dict) and document.keys() >= {"payloadType", "payload", "signatures"}:
        raise FindingError(found("sigstore.bare-envelope", file=file))
    bundle = reader.members(
        document, "", {"mediaType", "verificationMaterial"}, optional={"messageSignature", "dsseEnvelope"}
    )
    kind = reader.text(bundle["mediaType"], "/mediaType")
    if kind not in _VERSIONS:
        known = " or ".join(sorted(set(_VERSIONS.values())))
        reader.refuse("sigstore.version-unknown", "/mediaType", expected=f"a bundle of version {known}", actual=kind)
    version = _VERSIONS[kind]
    where = "/verificationMaterial"
    material = reader.members(
        bundle["verificationMaterial"],
        where,
        set(),
        optional={*_MATERIALS, "tlogEntries", "timestampVerificationData"},
    )
    kind_of, hint, certificate, chain = _signer(material, version, reader)
    entries = reader.items(material.get("tlogEntries", []), f"{where}/tlogEntries", most=_MOST_ENTRIES)
    return SignedBundle(
        file=file,
        raw=raw,
        version=version,
        material=kind_of,
        hint=hint,
        certificate=certificate,
        chain=chain,
        entries=tuple(_entry(item, f"{where}/tlogEntries/{n}", reader) for n, item in enumerate(entries)),
        tokens=_tokens(material.get("timestampVerificationData", {}), f"{where}/timestampVerificationData", reader),
        content=_content(bundle, reader),
    )


def _signer(
    material: dict[str, JsonValue], version: BundleVersion, reader: _Reader
) -> tuple[Material, str | None, bytes | None, tuple[bytes, ...]]:
    """What says who signed: kind, key hint, signing certificate, further certificates."""
    where = "/verificationMaterial"
    given = [name for name in _MATERIALS if name in material]
    if len(given) != 1:
        reader.refuse(
            "sigstore.material-count",
            where,
            expected="one of " + ", ".join(_MATERIALS),
            actual=", ".join(given) or "none",
        )
    (name,) = given
    where = f"{where}/{name}"
    if name == "publicKey":
        key = reader.members(material[name], where, set(), optional={"hint"})
        hint = reader.text(key["hint"], f"{where}/hint") if "hint" in key else None
        return "public-key", hint, None, ()
    if (name == "certificate") != (version == "0.3"):
        wanted = "certificate" if version == "0.3" else "x509CertificateChain"
        reader.refuse(
            "sigstore.bundle-invalid", where, expected=f"{wanted} in a bundle of version {version}", actual=name
        )
    if name == "certificate":
        return "certificate", None, _certificate(material[name], where, reader), ()
    certificates = reader.items(
        reader.members(material[name], where, {"certificates"})["certificates"],
        f"{where}/certificates",
        most=_MOST_CERTIFICATES,
    )
    if not certificates:
        reader.refuse("sigstore.certificate-missing", f"{where}/certificates", expected="the signing certificate")
    first, *rest = (_certificate(item, f"{where}/certificates/{n}", reader) for n, item in enumerate(certificates))
    return "certificate", None, first, tuple(rest)


def _certificate(value: JsonValue, where: str, reader: _Reader) -> bytes:
    return reader.base64(reader.members(value, where, {"rawBytes"})["rawBytes"], f"{where}/rawBytes")


def _entry(value: JsonValue, where: str, reader: _Reader) -> LogEntry:
    entry = reader.members(
        value,
        where,
        {"logIndex", "logId", "kindVersion", "canonicalizedBody"},
        optional={"integratedTime", "inclusionPromise", "inclusionProof"},
    )
    kind = reader.members(entry["kindVersion"], f"{where}/kindVersion", {"kind", "version"})
    promise = None
    if "inclusionPromise" in entry:
        inner = f"{where}/inclusionPromise"
        signed = reader.members(entry["inclusionPromise"], inner, {"signedEntryTimestamp"})
        promise = reader.base64(signed["signedEntryTimestamp"], f"{inner}/signedEntryTimestamp")
    log_id = reader.members(entry["logId"], f"{where}/logId", {"keyId"})
    time = reader.number(entry.get("integratedTime", "0"), f"{where}/integratedTime", most=_LAST_SECOND)
    return LogEntry(
        log_index=reader.number(entry["logIndex"], f"{where}/logIndex"),
        log_id=reader.base64(log_id["keyId"], f"{where}/logId/keyId"),
        kind=reader.text(kind["kind"], f"{where}/kindVersion/kind"),
        version=reader.text(kind["version"], f"{where}/kindVersion/version"),
        integrated_time=time or None,  # 0 is how the format spells "none"
        promise=promise,
        proof=_proof(entry["inclusionProof"], f"{where}/inclusionProof", reader) if "inclusionProof" in entry else None,
        body=reader.base64(entry["canonicalizedBody"], f"{where}/canonicalizedBody"),
    )


def _proof(value: JsonValue, where: str, reader: _Reader) -> InclusionProof:
    proof = reader.members(value, where, {"logIndex", "treeSize", "rootHash", "hashes"}, optional={"checkpoint"})
    checkpoint = None
    if "checkpoint" in proof:
        inner = f"{where}/checkpoint"
        envelope = reader.members(proof["checkpoint"], inner, {"envelope"})["envelope"]
        checkpoint = reader.text(envelope, f"{inner}/envelope", most=_MOST_CHECKPOINT)
    hashes = reader.items(proof["hashes"], f"{where}/hashes", most=_MOST_HASHES)
    return InclusionProof(
        log_index=reader.number(proof["logIndex"], f"{where}/logIndex"),
        tree_size=reader.number(proof["treeSize"], f"{where}/treeSize"),
        root_hash=reader.base64(proof["rootHash"], f"{where}/rootHash"),
        hashes=tuple(reader.base64(item, f"{where}/hashes/{n}") for n, item in enumerate(hashes)),
        checkpoint=checkpoint,
    )


def _tokens(value: JsonValue, where: str, reader: _Reader) -> tuple[bytes, ...]:
    stamps = reader.members(value, where, set(), optional={"rfc3161Timestamps"})
    where = f"{where}/rfc3161Timestamps"
    tokens = []
    for n, item in enumerate(reader.items(stamps.get("rfc3161Timestamps", []), where, most=_MOST_TOKENS)):
        stamp = reader.members(item, f"{where}/{n}", {"signedTimestamp"})
        tokens.append(reader.base64(stamp["signedTimestamp"], f"{where}/{n}/signedTimestamp"))
    return tuple(tokens)


def _content(bundle: dict[str, JsonValue], reader: _Reader) -> Content:
    if ("messageSignature" in bundle) == ("dsseEnvelope" in bundle):
        given = "both" if "dsseEnvelope" in bundle else "neither"
        reader.refuse("sigstore.content-count", "", expected="one of messageSignature, dsseEnvelope", actual=given)
    if "messageSignature" in bundle:
        return _message(bundle["messageSignature"], "/messageSignature", reader)
    return _envelope(bundle["dsseEnvelope"], "/dsseEnvelope", reader)


def _message(value: JsonValue, where: str, reader: _Reader) -> MessageSignature:
    message = reader.members(value, where, {"signature"}, optional={"messageDigest"})
    algorithm = digest = None
    if "messageDigest" in message:
        inner = f"{where}/messageDigest"
        output = reader.members(message["messageDigest"], inner, {"algorithm", "digest"})
        algorithm = reader.text(output["algorithm"], f"{inner}/algorithm")
        digest = reader.base64(output["digest"], f"{inner}/digest")
        if algorithm != "SHA2_256" or len(digest) != 32:
            reader.refuse("sigstore.digest-unsupported", inner, expected="SHA2_256", actual=algorithm)
    return MessageSignature(
        algorithm=algorithm, digest=digest, signature=reader.base64(message["signature"], f"{where}/signature")
    )


def _envelope(value: JsonValue, where: str, reader: _Reader) -> Envelope:
    envelope = reader.members(value, where, {"payload", "payloadType", "signatures"})
    signatures = reader.items(envelope["signatures"], f"{where}/signatures")
    if len(signatures) != 1:
        reader.refuse(
            "sigstore.signature-count", f"{where}/signatures", expected="one signature", actual=str(len(signatures))
        )
    inner = f"{where}/signatures/0"
    signature = reader.members(signatures[0], inner, {"sig"}, optional={"keyid"})
    reader.text(signature.get("keyid", ""), f"{inner}/keyid")  # nobody signs it: it is read for its type only
    return Envelope(
        payload=reader.base64(envelope["payload"], f"{where}/payload"),
        payload_type=reader.text(envelope["payloadType"], f"{where}/payloadType"),
        signature=reader.base64(signature["sig"], f"{inner}/sig"),
    )


def _from_attestation(value: dict[str, JsonValue], reader: _Reader) -> dict[str, JsonValue]:
    """The bundle that a PEP 740 attestation object stands for; its base64 and entries are judged as the bundle's."""
    attestation = reader.members(value, "", {"version", "verification_material", "envelope"})
    if attestation["version"] != 1 or isinstance(attestation["version"], bool):
        reader.refuse(
            "sigstore.version-unknown",
            "/version",
            expected="an attestation of version 1",
            actual=repr(value["version"]),
        )
    where = "/verification_material"
    material = reader.members(attestation["verification_material"], where, {"certificate", "transparency_entries"})
    envelope = reader.members(attestation["envelope"], "/envelope", {"statement", "signature"})
    return {
        "mediaType": _V03,
        "verificationMaterial": {
            "certificate": {"rawBytes": material["certificate"]},
            "tlogEntries": material["transparency_entries"],
        },
        "dsseEnvelope": {
            "payload": envelope["statement"],
            "payloadType": IN_TOTO,
            "signatures": [{"sig": envelope["signature"]}],
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Takes a JSON value apart member by member; the first thing that does not fit ends the reading."""

    file: str

    def refuse(self, fault: str, pointer: str, *, expected: str | None = None, actual: str | None = None) -> NoReturn:
        shown = None if actual is None else actual[:200]
        raise FindingError(found(fault, file=self.file, pointer=pointer, expected=expected, actual=shown))

    def members(
        self, value: JsonValue, pointer: str, required: set[str], *, optional: set[str] | None = None
    ) -> dict[str, JsonValue]:
        if not isinstance(value, dict):
            self.refuse("sigstore.bundle-invalid", pointer, expected="an object", actual=_kind(value))
        missing = sorted(required - value.keys())
        unknown = sorted(value.keys() - required - (optional or set()))
        if missing or unknown:
            names = [f"no {name}" for name in missing] + [f"unknown {name}" for name in unknown]
            self.refuse("sigstore.bundle-invalid", pointer, expected="the members of its type", actual=", ".join(names))
        return value

    def items(self, value: JsonValue, pointer: str, *, most: int = 64) -> list[JsonValue]:
        if not isinstance(value, list):
            self.refuse("sigstore.bundle-invalid", pointer, expected="a list", actual=_kind(value))
        if len(value) > most:
            self.refuse("sigstore.bundle-invalid", pointer, expected=f"at most {most}", actual=str(len(value)))
        return value

    def text(self, value: JsonValue, pointer: str, *, most: int = _MOST_TEXT) -> str:
        if not isinstance(value, str):
            self.refuse("sigstore.bundle-invalid", pointer, expected="a string", actual=_kind(value))
        if len(value) > most:
            self.refuse(
                "sigstore.bundle-invalid", pointer, expected=f"at most {most} characters", actual=str(len(value))
            )
        return value

    def number(self, value: JsonValue, pointer: str, *, most: int = _MOST_NUMBER) -> int:
        if not isinstance(value, str) or _NUMBER.fullmatch(value) is None or int(value) > most:
            self.refuse(
                "sigstore.number-invalid",
                pointer,
                expected=f"a string of decimal digits, at most {most}",
                actual=value if isinstance(value, str) else _kind(value),
            )
        return int(value)

    def base64(self, value: JsonValue, pointer: str) -> bytes:
        if not isinstance(value, str):
            self.refuse("sigstore.bundle-invalid", pointer, expected="a string", actual=_kind(value))
        # The one other spelling is that of base64(1), whole lines of 76; signers' scripts write timestamps so.
        lines = "\n" in value
        try:
            raw = binascii.a2b_base64(value.replace("\n", "") if lines else value, strict_mode=True)
        except ValueError:  # binascii.Error, and characters beyond ASCII
            self.refuse("sigstore.base64-invalid", pointer, expected="standard base64")
        # Stray bits in the last character would give one value many spellings.
        only = _in_lines(raw) if lines else binascii.b2a_base64(raw, newline=False).decode("ascii")
        if not raw or only != value:
            self.refuse("sigstore.base64-invalid", pointer, expected="standard base64 in its only spelling, not empty")
        return raw


def _in_lines(raw: bytes) -> str:
    return base64.encodebytes(raw).decode("ascii").removesuffix("\n")


def _kind(value: JsonValue) -> str:
    if value is None:
        return "null"
    return {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}[
        type(value)
    ]
