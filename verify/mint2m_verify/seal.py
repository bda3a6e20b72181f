"""The seal of a run, against the anchor and against the files.

The rule: the set of sealed files and the set of files at hand are equal. A seal that names less than what lies there
lends its weight to files that nobody signed; one that names more is about another directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mint2m_verify import layout
from mint2m_verify.anchor import Anchor, ConsistencyOnly, DigestAnchor, KeyAnchor, NoAnchor
from mint2m_verify.documents import Plan, TrainingReceipt, TreeEntry
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.signing import key_id, verify_bytes
from mint2m_verify.statement import Envelope, SealStatement, Subject, parse_bundle, parse_statement
from mint2m_verify.tree import compare
from mint2m_verify.walk import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """A bundle and the statement in it; whether anybody trusted made it is `check_anchor`'s answer."""

    envelope: Envelope
    statement: SealStatement


def read_seal(raw: bytes | None) -> tuple[Seal | None, tuple[Finding, ...]]:
    """The seal in a bundle's bytes, or why there is none."""
    if raw is None:
        return None, (found("seal.missing", file=layout.SEAL),)
    try:
        envelope = parse_bundle(raw, file=layout.SEAL)
        return Seal(envelope=envelope, statement=parse_statement(envelope.payload, file=layout.SEAL)), ()
    except FindingError as fault:
        return None, (fault.finding,)


def check_anchor(seal: Seal, anchor: Anchor) -> Check:
    """Whether what the auditor brought vouches for this seal."""
    count = len(seal.statement.subjects)
    match anchor:
        case KeyAnchor():
            yield from check_signature(seal.envelope, anchor)
            return f"{short(key_id(anchor.key))} over seal/v1, {count} subjects"
        case DigestAnchor():
            if seal.statement.sha256 != anchor.sha256:
                yield found(
                    "trust.digest-mismatch", file=layout.SEAL, expected=anchor.sha256, actual=seal.statement.sha256
                )
            return f"payload {short(anchor.sha256)}, {count} subjects"
        case NoAnchor():
            yield found("trust.no-anchor")
            return "none"
        case ConsistencyOnly():
            return f"not asked for; {count} subjects"


def check_signature(envelope: Envelope, anchor: KeyAnchor) -> Iterator[Finding]:
    """The one signature against the auditor's key; the hint is only used to say which of two things went wrong."""
    mine = key_id(anchor.key)
    if verify_bytes(envelope.signed_bytes, envelope.signature, anchor.key):
        if envelope.hint != mine:
            yield found("signature.hint-mismatch", file=layout.SEAL, expected=mine, actual=envelope.hint)
    elif envelope.hint == mine:
        yield found("signature.invalid", file=layout.SEAL, expected=f"a signature by key {mine}")
    else:
        yield found("signature.key-mismatch", file=layout.SEAL, expected=f"key {mine}", actual=f"key {envelope.hint}")


def check_subjects(seal: Seal | None, snapshot: Snapshot) -> Check:
    """Every file at hand outside the trees is a subject, and every subject is at hand.

    Args:
        seal: None where it could not be read; only the layout is then checked.
        snapshot: every file that was read.
    """
    blocked = {fault.file: fault for fault in snapshot.findings if fault.file is not None}
    yield from snapshot.findings
    outside = [file.entry for file in snapshot.files if _sealed_by_path(file.path)]
    for file in snapshot.files:
        if file.path.startswith(layout.ATTESTATIONS) and file.path != layout.SEAL:
            yield found("tree.file-unlisted", file=file.path, expected=f"only {layout.SEAL} in attestations/")
    for entry in outside:
        if entry.executable:
            yield found("tree.mode-changed", file=entry.path, expected="not executable", actual="executable")
    if seal is not None:
        yield from _compare_subjects(seal.statement.subjects, outside, blocked)
    sealed = set() if seal is None else {subject.name for subject in seal.statement.subjects}
    for path in sorted(layout.REQUIRED_FILES - sealed - {entry.path for entry in outside}):
        yield found("tree.file-missing", file=path, expected="part of every run directory").following(blocked.get(path))
    return f"{len(outside)} of {len(outside)}; {len(snapshot.files)} files, {megabytes(snapshot.total_bytes)} re-hashed"


def check_predicate(seal: Seal, plan: Plan, receipt: TrainingReceipt) -> Check:
    """The seal is about the execution, plan, scope and class of the files under it."""
    statement = seal.statement
    for member, want, have in (
        ("plan_sha256", plan.plan_sha256, statement.plan_sha256),
        ("execution_id", receipt.execution_id, statement.execution_id),
        ("claim_scope", plan.claim_scope, statement.claim_scope),
        ("hardware_class", plan.deployment.hardware_class, statement.hardware_class),
    ):
        if want != have:
            yield found(
                "seal.binding-mismatch",
                file=layout.SEAL,
                pointer=f"/predicate/{member}",
                expected=want,
                actual=have,
            )
    return f"plan {short(statement.plan_sha256)}, execution {short(statement.execution_id)}"


def short(digest: str) -> str:
    """A digest for people: enough of both ends to tell it from others at a glance."""
    return f"{digest[:4]}…{digest[-4:]}"


def megabytes(count: int) -> str:
    """Bytes with a unit, powers of ten."""
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count:,} bytes"


def _sealed_by_path(path: str) -> bool:
    return not path.startswith(layout.ATTESTATIONS) and layout.tree_of(path) is None


def _compare_subjects(
    subjects: Sequence[Subject], outside: Sequence[TreeEntry], blocked: Mapping[str, Finding]
) -> Iterator[Finding]:
    """Subjects carry only a digest: size and bits are taken from the file at hand, and a change covers all of it."""
    at_hand = {entry.path: entry for entry in outside}
    want: list[TreeEntry] = []
    for subject in subjects:
        if not _sealed_by_path(subject.name):
            yield found("seal.subject-inside-tree", file=layout.SEAL, actual=subject.name)
            continue
        if not layout.has_place(subject.name):
            yield found("tree.file-unexpected", file=subject.name)
        actual = at_hand.get(subject.name)
        if actual is None:
            want.append(TreeEntry(path=subject.name, size=0, executable=False, sha256=subject.sha256, chunks=()))
            continue
        want.append(actual)
        if actual.sha256 != subject.sha256:
            yield found(
                "tree.file-changed",
                file=subject.name,
                byte_range=(0, actual.size),
                expected=subject.sha256,
                actual=actual.sha256,
                hint=f"committed by {layout.SEAL}",
            )
    yield from compare(want, outside, committed_by=layout.SEAL, blocked=blocked)
