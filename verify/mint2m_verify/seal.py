"""The seal of a run, against the anchor and against the files.

The rule: the set of sealed files and the set of files at hand are equal. A seal that names less than what lies there
lends its weight to files that nobody signed; one that names more is about another directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mint2m_verify import layout
from mint2m_verify.anchor import Anchor, KeyAnchor
from mint2m_verify.documents import Plan, TrainingReceipt, TreeEntry
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.statement import (
    BUNDLE_LIMIT,
    PAYLOAD_TYPE,
    Envelope,
    SealStatement,
    Subject,
    is_plain,
    parse_bundle,
    parse_statement,
)
from mint2m_verify.tree import compare
from mint2m_verify.walk import Snapshot

if TYPE_CHECKING:
    from mint2m_verify.sigstore_bundle import SignedBundle  # loaded where a bundle is more than a key's signature


#: Every file that may lie in attestations/.
_ATTESTATIONS = (layout.SEAL, *layout.COSIGNATURES, layout.GRANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """A statement and who seems to have signed it; whether anybody trusted did is `vouching`'s answer.

    `by_keys` are the signatures over it that a key alone made, the seal's own and its co-signatures', in the order of
    their files. `bundles` are the seal and its co-signatures as a policy judges them, empty for every other anchor;
    `files` are those of all.
    """

    statement: SealStatement
    by_keys: tuple[KeySignature, ...]
    bundles: tuple[SignedBundle, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySignature:
    """A signature over a seal that a key alone made, and the file that it lies in."""

    file: str
    envelope: Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class SealFiles:
    """The bytes of the seal, None where there is none, and of its co-signatures by their place in a run directory."""

    seal: bytes | None
    cosignatures: Mapping[str, bytes]


def read_seal(files: SealFiles, anchor: Anchor) -> tuple[Seal | None, tuple[Finding, ...]]:
    """The seal and what is wrong with it or its co-signatures; None where there is no statement to speak of.

    For a key a bundle is read in its plainest form, since anything more in it is nothing that a key can judge; a seal
    in another form is read for its statement alone where there are co-signatures, one of which may be the key's.
    """
    if files.seal is None:
        return None, (found("seal.missing", file=layout.SEAL),)
    try:
        first = _first(files, anchor)
        payload = first.payload if isinstance(first, Envelope) else _payload(first)
        statement = parse_statement(payload, file=layout.SEAL)
    except FindingError as fault:
        return None, (fault.finding,)
    faults: list[Finding] = []
    material = "key" if isinstance(first, Envelope) or first.material == "public-key" else "certificate"
    if (statement.signer == "certificate") != (material == "certificate"):
        where = "/predicate/signer"
        expected, actual = f"signed with a {material}", statement.signer
        faults.append(found("seal.binding-mismatch", file=layout.SEAL, pointer=where, expected=expected, actual=actual))
    by_keys = [KeySignature(file=layout.SEAL, envelope=first)] if isinstance(first, Envelope) else []
    bundles = [] if isinstance(first, Envelope) else [first]
    for path, raw in files.cosignatures.items():
        try:
            other = _read(raw, path)
            if _payload(other) != payload:
                expected = f"the payload of {layout.SEAL}"
                raise FindingError(found("seal.cosignature-differs", file=path, expected=expected))
        except FindingError as fault:
            faults.append(fault.finding)
        else:
            bundles.append(other)
            if isinstance(anchor, KeyAnchor) and (envelope := _plain(raw, path)) is not None:
                by_keys.append(KeySignature(file=path, envelope=envelope))
    seal = Seal(
        statement=statement,
        by_keys=tuple(by_keys),
        bundles=tuple(bundles) if isinstance(anchor, PolicyAnchor) else (),
        files=(layout.SEAL, *files.cosignatures),
    )
    return seal, tuple(faults)


def read_beside(seal: bytes | None, folder: Path) -> tuple[SealFiles, tuple[Finding, ...]]:
    """`seal` with the co-signatures that lie in `folder`, each opened once and without following a link."""
    raw: dict[str, bytes] = {}
    faults: list[Finding] = []
    for path in layout.COSIGNATURES:
        try:
            raw[path] = read_once(folder / Path(path).name, name=path, limit=BUNDLE_LIMIT)
        except FindingError as fault:
            if fault.finding.id != "file.missing":
                faults.append(fault.finding)
    return SealFiles(seal=seal, cosignatures=raw), tuple(faults)


def _first(files: SealFiles, anchor: Anchor) -> Envelope | SignedBundle:
    """The seal's own bundle: as a policy judges it, as a key does, or as whoever only looks at its payload reads it."""
    raw = files.seal or b""
    alone = isinstance(anchor, KeyAnchor) and not files.cosignatures
    plain = alone or (not isinstance(anchor, PolicyAnchor) and is_plain(raw, file=layout.SEAL))
    return parse_bundle(raw, file=layout.SEAL) if plain else _read(raw, layout.SEAL)


def _plain(raw: bytes, file: str) -> Envelope | None:
    """A co-signature that a key alone made; None for one in another form, which no key can judge."""
    try:
        return parse_bundle(raw, file=file) if is_plain(raw, file=file) else None
    except FindingError:
        return None


def _read(raw: bytes, file: str) -> SignedBundle:
    from mint2m_verify.sigstore_bundle import read_bundle

    return read_bundle(raw, file=file)


def _payload(bundle: SignedBundle) -> bytes:
    from mint2m_verify.sigstore_bundle import MessageSignature

    content = bundle.content
    if isinstance(content, MessageSignature) or content.payload_type != PAYLOAD_TYPE:
        raise FindingError(
            found("seal.bundle-invalid", file=bundle.file, pointer="/dsseEnvelope", expected=PAYLOAD_TYPE)
        )
    return content.payload


def check_subjects(seal: Seal | None, snapshot: Snapshot, *, ends_with_gradient: bool) -> Check:
    """Every file at hand outside the trees is a subject, and every subject is at hand.

    Args:
        seal: None where it could not be read; only the layout is then checked.
        snapshot: every file that was read.
        ends_with_gradient: the run takes no step, and has none of the files of one.
    """
    blocked = {fault.file: fault for fault in snapshot.findings if fault.file is not None}
    yield from snapshot.findings
    outside = [file.entry for file in snapshot.files if _sealed_by_path(file.path)]
    for file in snapshot.files:
        if file.path.startswith(layout.ATTESTATIONS) and file.path not in _ATTESTATIONS:
            expected = f"only {layout.SEAL}, its co-signatures and a grant in attestations/"
            yield found("tree.file-unlisted", file=file.path, expected=expected)
    for entry in outside:
        if entry.executable:
            yield found("tree.mode-changed", file=entry.path, expected="not executable", actual="executable")
    if seal is not None:
        yield from _compare_subjects(seal.statement.subjects, outside, blocked, ends_with_gradient=ends_with_gradient)
    sealed = set() if seal is None else {subject.name for subject in seal.statement.subjects}
    required = layout.required_files(ends_with_gradient=ends_with_gradient)
    for path in sorted(required - sealed - {entry.path for entry in outside}):
        yield found("tree.file-missing", file=path, expected="part of every run directory").following(blocked.get(path))
    read_now = sum(file.entry.size - file.cached for file in snapshot.files if not file.elsewhere)
    return f"{len(outside)} of {len(outside)}; {len(snapshot.files)} files, {megabytes(read_now)} re-hashed"


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


def counted(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def megabytes(count: int) -> str:
    """Bytes with a unit, powers of ten."""
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count:,} bytes"


def _sealed_by_path(path: str) -> bool:
    return not path.startswith(layout.ATTESTATIONS) and layout.tree_of(path) is None


def _compare_subjects(
    subjects: Sequence[Subject],
    outside: Sequence[TreeEntry],
    blocked: Mapping[str, Finding],
    *,
    ends_with_gradient: bool,
) -> Iterator[Finding]:
    """Subjects carry only a digest: size and bits are taken from the file at hand, and a change covers all of it."""
    at_hand = {entry.path: entry for entry in outside}
    want: list[TreeEntry] = []
    for subject in subjects:
        if not _sealed_by_path(subject.name):
            yield found("seal.subject-inside-tree", file=layout.SEAL, actual=subject.name)
            continue
        if not layout.has_place(subject.name, ends_with_gradient=ends_with_gradient):
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
