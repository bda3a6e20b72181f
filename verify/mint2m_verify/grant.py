"""Authorization grants: a statement grant/v1 over what may be started, signed by a grantor whom the policy names.

The rule: nobody authorizes himself. A grant counts by a signature that the policy accepts under the role of grants,
which no role of runs stands in for; and for the one file whose digest it names, in its term. Whatever a deployment or a
run says of its own authorization is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mint2m_verify import schema
from mint2m_verify.canonical import JsonValue, canonical, parse
from mint2m_verify.documents.base import decode
from mint2m_verify.documents.grant import Grant, GrantKind
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.statement import STATEMENT_TYPE, Subject
from mint2m_verify.times import parse_time

if TYPE_CHECKING:
    from mint2m_verify.policy.anchor import PolicyAnchor  # loads every document, which only a policy needs
    from mint2m_verify.sigstore_bundle.model import SignedTime

GRANT_TYPE = "urn:mint2m:predicate:grant:v1"

_HEX = re.compile(r"[0-9a-f]{64}")

#: What the subject is called, by kind.
SUBJECTS: dict[GrantKind, str] = {"training": "deployment.json", "validation": "validation-plan.json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantStatement:
    """What a grantor says: the terms, and the digest of the file that they are for."""

    grant: Grant
    subject: Subject
    payload: bytes


def grant_statement(grant: Grant, sha256: str) -> GrantStatement:
    """The statement of these terms over the file with that digest; raises `FindingError` (`grant.invalid`)."""
    return parse_grant(_payload(grant, sha256), file="the statement to sign")


def parse_grant(payload: bytes, *, file: str) -> GrantStatement:
    """The grant that a payload states.

    Raises:
        FindingError: `json.*`, or `grant.invalid` for another type, other members, terms that the schema refuses, or a
            term that ends before it begins.
    """
    value = parse(payload, file=file, canonical_form=True)
    predicate = value.get("predicate") if isinstance(value, dict) else None
    if not isinstance(predicate, dict):
        raise FindingError(found("grant.invalid", file=file, pointer="/predicate", expected="mint2m.grant/v1"))
    for fault in schema.check(predicate, Grant.NAME, file=file):
        where = f"/predicate{fault.pointer or ''}"
        raise FindingError(
            found("grant.invalid", file=file, pointer=where, expected=fault.expected, actual=fault.actual)
        )
    grant = decode(Grant, {name: member for name, member in predicate.items() if name != "schema"})
    subject = Subject(name=SUBJECTS[grant.kind], sha256=_subject_digest(value))
    if _HEX.fullmatch(subject.sha256) is None or _payload(grant, subject.sha256) != payload:
        expected = f"a statement of type {GRANT_TYPE} over {subject.name}, and no more"
        raise FindingError(found("grant.invalid", file=file, expected=expected))
    begin, end = parse_time(grant.not_before), parse_time(grant.not_after)
    if begin is None or end is None or end < begin:
        actual = f"{grant.not_before} to {grant.not_after}"
        raise FindingError(
            found("grant.invalid", file=file, pointer="/predicate/not_after", expected="a term", actual=actual)
        )
    return GrantStatement(grant=grant, subject=subject, payload=payload)


def _payload(grant: Grant, sha256: str) -> bytes:
    """All that a grant is: it is read by writing it again."""
    document: JsonValue = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": SUBJECTS[grant.kind], "digest": {"sha256": sha256}}],
        "predicateType": GRANT_TYPE,
        "predicate": grant.value(),
    }
    return canonical(document)


def _subject_digest(value: JsonValue) -> str:
    """The first subject's digest; empty where there is none."""
    match value:
        case {"subject": [{"digest": {"sha256": str() as digest}}]}:
            return digest
    return ""


def check_terms(
    statement: GrantStatement, kind: GrantKind, sha256: str, at: datetime, *, file: str
) -> Iterator[Finding]:
    """Where a grant is not for this file, or not for this time."""
    subject, grant = statement.subject, statement.grant
    if (grant.kind, subject.sha256) != (kind, sha256):
        yield found(
            "grant.for-another",
            file=file,
            pointer="/subject/0/digest/sha256",
            expected=f"{SUBJECTS[kind]} {sha256}",
            actual=f"{subject.name} {subject.sha256}",
        )
    begin, end = parse_time(grant.not_before), parse_time(grant.not_after)
    if begin is None or end is None or not begin <= at <= end:
        yield found(
            "grant.out-of-term",
            file=file,
            pointer="/predicate/not_after",
            expected=f"{grant.not_before} to {grant.not_after}",
            actual=at.isoformat().replace("+00:00", "Z"),
        )


def check_granted(
    anchor: PolicyAnchor,
    raw: bytes | None,
    *,
    kind: GrantKind,
    sha256: str,
    times: Sequence[SignedTime],
    file: str,
) -> Check:
    """The grant that the policy asks for: there, by its grantor, for this file, in its term.

    Args:
        anchor: a policy whose rule for the run requires an authorization.
        raw: the grant's bundle; None where there is none.
        kind: of what was started.
        sha256: digest of the file that the grant must be for.
        times: verified times of what was started; without one the evaluation time counts, as it does for keys.
        file: what findings call the bundle.
    """
    from mint2m_verify.policy.judge import judge_signatures
    from mint2m_verify.policy.roles import Role
    from mint2m_verify.sigstore_bundle.model import Envelope
    from mint2m_verify.sigstore_bundle.reading import read_bundle

    if raw is None:
        yield found("policy.authorization-missing", file=file, expected=f"a grant for {SUBJECTS[kind]} {sha256}")
        return "none"
    try:
        bundle = read_bundle(raw, file=file)
        accepted = yield from judge_signatures(anchor, (bundle,), Role(predicate_type=GRANT_TYPE, kind=kind))
        if not isinstance(bundle.content, Envelope):
            return "no statement"  # which was found
        statement = parse_grant(bundle.content.payload, file=file)
    except FindingError as fault:
        yield fault.finding
        return "unreadable"
    yield from check_terms(statement, kind, sha256, max((one.time for one in times), default=anchor.at), file=file)
    grant = statement.grant
    return f"{', '.join(accepted.signers) or 'nobody'} from {grant.not_before} to {grant.not_after}"
