"""What a signature is about: in-toto statements, and their subjects against the file at hand.

The rule: a subject is a name and a digest, and both bind. A statement that names `good.whl` with the digest of another
file of the same release would otherwise vouch for that file under the wrong name. So among the subjects with the
file's digest, one must carry its name: the last part of the subject's path against the last part of the file's. A
subject named "" or "_" names nothing (in-toto: a name that has no meaning), and where only a digest was given no name
is known; then the digest alone decides. Format: in-toto/attestation spec v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mint2m_verify.canonical import JsonValue, Limits, parse
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.sigstore_bundle.model import Artifact, Envelope, Statement, StatementSubject
from mint2m_verify.sigstore_bundle.reading import IN_TOTO

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"

_LIMITS = Limits(size_bytes=32 << 20, depth=64, members=1_000_000)
_HEX = re.compile(r"[0-9a-f]{64}")


def read_statement(envelope: Envelope, *, file: str) -> Statement:
    """The in-toto statement in an envelope.

    Raises:
        FindingError: `sigstore.payload-type`, `sigstore.statement-type`, `sigstore.statement-invalid` or `json.*`.
    """
    if envelope.payload_type != IN_TOTO:
        raise FindingError(
            found(
                "sigstore.payload-type",
                file=file,
                pointer="/dsseEnvelope/payloadType",
                expected=IN_TOTO,
                actual=envelope.payload_type[:200],
            )
        )
    document = parse(envelope.payload, file=file, limits=_LIMITS)
    if not isinstance(document, dict):
        raise _invalid(file, "", "an object")
    if document.get("_type") != STATEMENT_TYPE:
        raise FindingError(
            found(
                "sigstore.statement-type",
                file=file,
                pointer="/_type",
                expected=STATEMENT_TYPE,
                actual=str(document.get("_type"))[:200],
            )
        )
    predicate_type = document.get("predicateType")
    if not isinstance(predicate_type, str) or not predicate_type:
        raise _invalid(file, "/predicateType", "a string")
    subjects = document.get("subject")
    if not isinstance(subjects, list) or not subjects:
        raise _invalid(file, "/subject", "at least one subject")
    return Statement(
        predicate_type=predicate_type,
        subjects=tuple(_subject(item, f"/subject/{n}", file) for n, item in enumerate(subjects)),
    )


def check_subject(statement: Statement, artifact: Artifact, *, file: str) -> Iterator[Finding]:
    """Whether a subject is the artifact, by digest and by name."""
    same = [subject for subject in statement.subjects if subject.sha256 == artifact.sha256]
    if not same:
        shown = ", ".join(subject.sha256 or "no SHA-256" for subject in statement.subjects[:3])
        more = f" and {len(statement.subjects) - 3} more" if len(statement.subjects) > 3 else ""
        yield found(
            "sigstore.subject-digest-mismatch",
            file=file,
            pointer="/subject",
            expected=artifact.sha256,
            actual=f"{shown}{more}",
        )
    elif artifact.name is not None and not any(_is_named(subject, artifact.name) for subject in same):
        yield found(
            "sigstore.subject-name-mismatch",
            file=file,
            pointer="/subject",
            expected=artifact.name,
            actual=", ".join(str(subject.name) for subject in same[:3])[:200],
        )


def _is_named(subject: StatementSubject, name: str) -> bool:
    return subject.name is None or subject.name.rsplit("/", 1)[-1] == name


def _subject(value: JsonValue, where: str, file: str) -> StatementSubject:
    if not isinstance(value, dict):
        raise _invalid(file, where, "an object")
    name = value.get("name", "")
    digests = value.get("digest")
    if not isinstance(name, str):
        raise _invalid(file, f"{where}/name", "a string")
    if not isinstance(digests, dict) or not digests or not all(isinstance(v, str) for v in digests.values()):
        raise _invalid(file, f"{where}/digest", "at least one digest")
    sha256 = digests.get("sha256")
    if sha256 is not None and _HEX.fullmatch(str(sha256)) is None:
        raise _invalid(file, f"{where}/digest/sha256", "64 lower-case hexadecimal digits")
    return StatementSubject(name=None if name in ("", "_") else name, sha256=None if sha256 is None else str(sha256))


def _invalid(file: str, pointer: str, expected: str) -> FindingError:
    return FindingError(found("sigstore.statement-invalid", file=file, pointer=pointer, expected=expected))
