"""A Sigstore trusted root: the authorities and logs that whoever verifies believes, each for its stated time.

The rule: the root is the auditor's, not the evidence's. It is read once and strictly, it is known by the SHA-256 of its
file's bytes, and every window is closed at both ends: a start is required, an end is included. Format: sigstore
protobuf-specs, trustroot v1.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key

from mint2m_verify.canonical import JsonValue, Limits, parse, sha256_hex
from mint2m_verify.finding import FindingError, found
from mint2m_verify.named_input import read_named
from mint2m_verify.times import parse_time

ROOT_TYPE = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
ROOT_LIMIT = 4 << 20

_LIMITS = Limits(size_bytes=ROOT_LIMIT, depth=12, members=10_000)
_MOST = 64

PackagedRoot: TypeAlias = Literal["public-good", "staging"]

#: Roots that sigstore-python ships, by the name under which a user may ask for them.
_PACKAGED: Mapping[str, str] = {
    "public-good": "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev",
    "staging": "https%3A%2F%2Ftuf-repo-cdn.sigstage.dev",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """When a key or an authority counts: from `start` to `end`, both included; None is no end yet."""

    start: datetime
    end: datetime | None

    def holds(self, time: datetime) -> bool:
        return self.start <= time and (self.end is None or time <= self.end)

    def __str__(self) -> str:
        end = "" if self.end is None else self.end.isoformat().replace("+00:00", "Z")
        return f"{self.start.isoformat().replace('+00:00', 'Z')}..{end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate or timestamp authority; its chain in DER, from the one that issues or stamps to the root."""

    name: str
    chain: tuple[bytes, ...]
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A transparency or certificate-transparency log. `key_der` is its SubjectPublicKeyInfo.

    `id` is how entries name it; `details` is how the key signs, by the format's name.
    """

    url: str
    id: bytes
    key_der: bytes
    details: str
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRoot:
    """A trusted root, read. Two are equal when their files are."""

    path: str
    sha256: str
    raw: bytes = field(compare=False, repr=False)
    authorities: tuple[Authority, ...] = field(compare=False)
    logs: tuple[Log, ...] = field(compare=False)
    ct_logs: tuple[Log, ...] = field(compare=False)
    timestamp_authorities: tuple[Authority, ...] = field(compare=False)

    def log(self, id: bytes) -> Log | None:
        """The transparency log of exactly this id."""
        return next((log for log in self.logs if log.id == id), None)

    def ct_log(self, id: bytes) -> Log | None:
        return next((log for log in self.ct_logs if log.id == id), None)


def load_root(path: Path) -> TrustRoot:
    """The trusted root in the file `path`.

    Raises:
        FindingError: `input.missing`, `file.*` or `sigstore.root-invalid`; all of them are the caller's to mend.
    """
    return parse_root(read_named(path, limit=ROOT_LIMIT), name=str(path))


def packaged_root(name: PackagedRoot) -> TrustRoot:
    """The root that the installed sigstore-python ships; it is as old as that package."""
    from importlib import resources

    raw = resources.files("sigstore._store").joinpath(_PACKAGED[name], "trusted_root.json").read_bytes()
    return parse_root(raw, name=name)


def parse_root(raw: bytes, *, name: str) -> TrustRoot:
    """The trusted root in `raw`; raises `FindingError` (`sigstore.root-invalid`)."""
    reader = _Reader(name=name)
    try:
        document = parse(raw, file=name, limits=_LIMITS)
    except FindingError as fault:
        # The root is no evidence: a fault in it is the caller's, whatever the reader of JSON would call it.
        reader.refuse("", expected="strict JSON", actual=f"{fault.finding.id}: {fault.finding.message}")
    root = reader.members(
        document,
        "",
        {"mediaType", "tlogs", "certificateAuthorities", "ctlogs"},
        optional={"timestampAuthorities"},
    )
    if root["mediaType"] != ROOT_TYPE:
        reader.refuse("/mediaType", expected=ROOT_TYPE, actual=str(root["mediaType"]))
    known = TrustRoot(
        path=name,
        sha256=sha256_hex(raw),
        raw=raw,
        authorities=_authorities(root["certificateAuthorities"], "/certificateAuthorities", reader),
        logs=_logs(root["tlogs"], "/tlogs", reader),
        ct_logs=_logs(root["ctlogs"], "/ctlogs", reader),
        timestamp_authorities=_authorities(root.get("timestampAuthorities", []), "/timestampAuthorities", reader),
    )
    for part, pointer in ((known.authorities, "/certificateAuthorities"), (known.logs, "/tlogs")):
        if not part:
            reader.refuse(pointer, expected="at least one: a root that trusts nothing verifies nothing", actual="none")
    from mint2m_verify.sigstore_bundle.chain import chain_faults  # X.509 is slow to load, and only a root needs it

    _check_parts(known, reader, chain_faults)
    return known


def _check_parts(
    root: TrustRoot, reader: _Reader, chain_faults: Callable[[tuple[bytes, ...]], Iterator[tuple[int, str]]]
) -> None:
    """Every certificate and key in the root can be read, and each chain holds; else it would fail later, unnamed."""
    for part, authorities in (
        ("certificateAuthorities", root.authorities),
        ("timestampAuthorities", root.timestamp_authorities),
    ):
        for n, authority in enumerate(authorities):
            where = f"/{part}/{n}/certChain/certificates"
            if authority in authorities[:n] or len(set(authority.chain)) != len(authority.chain):
                reader.refuse(where, expected="every authority and certificate once")
            for m, fault in chain_faults(authority.chain):
                reader.refuse(f"{where}/{m}/rawBytes", expected="a certificate, issued by the next", actual=fault)
    for part, logs in (("tlogs", root.logs), ("ctlogs", root.ct_logs)):
        for n, log in enumerate(logs):
            try:
                load_der_public_key(log.key_der)
            except (ValueError, UnsupportedAlgorithm) as fault:
                where = f"/{part}/{n}/publicKey/rawBytes"
                reader.refuse(where, expected="a public key in DER", actual=str(fault))


def _authorities(value: JsonValue, where: str, reader: _Reader) -> tuple[Authority, ...]:
    authorities = []
    for n, item in enumerate(reader.items(value, where)):
        inner = f"{where}/{n}"
        authority = reader.members(item, inner, {"subject", "certChain", "validFor"}, optional={"uri", "operator"})
        subject = reader.members(authority["subject"], f"{inner}/subject", {"organization", "commonName"})
        chain = reader.items(
            reader.members(authority["certChain"], f"{inner}/certChain", {"certificates"})["certificates"],
            f"{inner}/certChain/certificates",
        )
        if not chain:
            reader.refuse(f"{inner}/certChain/certificates", expected="at least one certificate", actual="none")
        authorities.append(
            Authority(
                name=str(authority.get("uri") or subject["commonName"]),
                chain=tuple(
                    reader.base64(
                        reader.members(entry, f"{inner}/certChain/certificates/{m}", {"rawBytes"})["rawBytes"],
                        f"{inner}/certChain/certificates/{m}/rawBytes",
                    )
                    for m, entry in enumerate(chain)
                ),
                window=_window(authority["validFor"], f"{inner}/validFor", reader),
            )
        )
    return tuple(authorities)


def _logs(value: JsonValue, where: str, reader: _Reader) -> tuple[Log, ...]:
    logs: list[Log] = []
    for n, item in enumerate(reader.items(value, where)):
        inner = f"{where}/{n}"
        log = reader.members(
            item,
            inner,
            {"baseUrl", "hashAlgorithm", "publicKey", "logId"},
            optional={"checkpointKeyId", "operator"},
        )
        if log["hashAlgorithm"] != "SHA2_256":
            reader.refuse(f"{inner}/hashAlgorithm", expected="SHA2_256", actual=str(log["hashAlgorithm"]))
        key = reader.members(log["publicKey"], f"{inner}/publicKey", {"rawBytes", "keyDetails", "validFor"})
        id = reader.base64(reader.members(log["logId"], f"{inner}/logId", {"keyId"})["keyId"], f"{inner}/logId/keyId")
        if any(id == other.id for other in logs):
            reader.refuse(f"{inner}/logId/keyId", expected="an id of its own", actual=id.hex())
        logs.append(
            Log(
                url=reader.text(log["baseUrl"], f"{inner}/baseUrl"),
                id=id,
                key_der=reader.base64(key["rawBytes"], f"{inner}/publicKey/rawBytes"),
                details=reader.text(key["keyDetails"], f"{inner}/publicKey/keyDetails"),
                window=_window(key["validFor"], f"{inner}/publicKey/validFor", reader),
            )
        )
    return tuple(logs)


def _window(value: JsonValue, where: str, reader: _Reader) -> Window:
    window = reader.members(value, where, {"start"}, optional={"end"})
    start = reader.time(window["start"], f"{where}/start")
    end = None if window.get("end") is None else reader.time(window["end"], f"{where}/end")
    if end is not None and end < start:
        reader.refuse(f"{where}/end", expected=f"not before {window['start']}", actual=str(window["end"]))
    return Window(start=start, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Takes the root apart; optional members may be null, as some tools write them."""

    name: str

    def refuse(self, pointer: str, *, expected: str | None = None, actual: str | None = None) -> NoReturn:
        shown = None if actual is None else actual[:200]
        raise FindingError(
            found("sigstore.root-invalid", file=self.name, pointer=pointer, expected=expected, actual=shown)
        )

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

    def items(self, value: JsonValue, pointer: str) -> list[JsonValue]:
        if not isinstance(value, list) or len(value) > _MOST:
            self.refuse(pointer, expected=f"a list of at most {_MOST}")
        return value

    def text(self, value: JsonValue, pointer: str) -> str:
        if not isinstance(value, str):
            self.refuse(pointer, expected="a string")
        return value

    def time(self, value: JsonValue, pointer: str) -> datetime:
        moment = parse_time(value) if isinstance(value, str) else None
        if moment is None:
            self.refuse(pointer, expected="a time like 2026-01-31T12:00:00Z", actual=str(value))
        return moment

    def base64(self, value: JsonValue, pointer: str) -> bytes:
        text = self.text(value, pointer)
        try:
            raw = base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            self.refuse(pointer, expected="standard base64")
        if not raw or base64.b64encode(raw).decode("ascii") != text:
            self.refuse(pointer, expected="standard base64 in its only spelling, not empty")
        return raw
