"""The statement that a release is signed by: an in-toto Statement v1 whose subjects are all members of the bundle.

The rule: a statement is its version and its subjects and nothing else, so it is read by writing it again: the bytes
made from the two must be the bytes that were signed. Sizes and executable bits stand in the manifest, digests only
here; there is one copy of each fact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mint2m_verify.canonical import JsonValue, Limits, canonical, parse, sha256_hex
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.policy.roles import RELEASE_TYPE
from mint2m_verify.policy.versions import order_of
from mint2m_verify.release import layout
from mint2m_verify.statement import BUNDLE_LIMIT, STATEMENT_TYPE, Subject

_LIMITS = Limits(size_bytes=BUNDLE_LIMIT, depth=12, members=1_000_000)
_HEX = frozenset("0123456789abcdef")
_DIGEST_LENGTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseStatement:
    """What the signer of a release says; `subjects` are sorted by name, `payload` are the signed bytes."""

    version: str
    subjects: tuple[Subject, ...]
    payload: bytes

    @property
    def sha256(self) -> str:
        """Digest of the payload: the release's identity, since bundle bytes are malleable."""
        return sha256_hex(self.payload)


def release_statement(version: str, subjects: Iterable[Subject]) -> ReleaseStatement:
    """The statement of these subjects, sorted by name."""
    ordered = tuple(sorted(subjects, key=lambda subject: subject.name))
    document: JsonValue = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": subject.name, "digest": {"sha256": subject.sha256}} for subject in ordered],
        "predicateType": RELEASE_TYPE,
        "predicate": {"kind": "release", "stage": None, "version": version},
    }
    return ReleaseStatement(version=version, subjects=ordered, payload=canonical(document))


def parse_release(payload: bytes, *, file: str) -> ReleaseStatement:
    """The release that a payload states.

    Raises:
        FindingError: `json.*`, or `release.statement-invalid` where it is not the statement of a release: another type,
            a member more or less, no version, no manifest, a name twice or out of order, a digest that is none.
    """
    value = parse(payload, file=file, limits=_LIMITS, canonical_form=True)
    version, subjects = _version(value), _subjects(value)
    if version is None or order_of(version) is None:
        raise FindingError(_invalid(file, "/predicate/version", "a version such as 1.2.3 or 1.2.3rc1", version))
    names = [subject.name for subject in subjects]
    if layout.MANIFEST not in names:
        raise FindingError(_invalid(file, "/subject", layout.MANIFEST, None))
    if names != sorted(set(names)):
        raise FindingError(_invalid(file, "/subject", "names sorted, each once", None))
    statement = release_statement(version, subjects)
    if statement.payload != payload:
        raise FindingError(_invalid(file, "", f"a statement of type {RELEASE_TYPE} and no more", None))
    return statement


def _invalid(file: str, pointer: str, expected: str, actual: str | None) -> Finding:
    return found("release.statement-invalid", file=file, pointer=pointer, expected=expected, actual=actual)


def _version(value: JsonValue) -> str | None:
    predicate = value.get("predicate") if isinstance(value, dict) else None
    version = predicate.get("version") if isinstance(predicate, dict) else None
    return version if isinstance(version, str) else None


def _subjects(value: JsonValue) -> tuple[Subject, ...]:
    """The subjects; one that is malformed is empty here, and the statement then differs."""
    entries = value.get("subject") if isinstance(value, dict) else None
    return tuple(_subject(entry) for entry in entries) if isinstance(entries, list) else ()


def _subject(entry: JsonValue) -> Subject:
    name = entry.get("name") if isinstance(entry, dict) else None
    digest = entry.get("digest") if isinstance(entry, dict) else None
    sha256 = digest.get("sha256") if isinstance(digest, dict) else None
    whole = isinstance(name, str) and isinstance(sha256, str) and _is_digest(sha256)
    return Subject(name=str(name), sha256=str(sha256)) if whole else Subject(name="", sha256="")


def _is_digest(value: str) -> bool:
    return len(value) == _DIGEST_LENGTH and set(value) <= _HEX and set(value) != {"0"}
