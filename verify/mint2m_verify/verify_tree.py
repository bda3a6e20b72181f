"""`mint2m verify checkpoint DIR` and `verify manifest F --root DIR`: one tree against its manifest.

The rule: a manifest that came with the tree proves only that the two agree. It counts once something of the auditor's
names it: the root digest, the digest of the manifest file, or a key or policy that vouches for a seal over the
manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.anchor import (
    Anchor,
    ConsistencyOnly,
    DigestAnchor,
    KeyAnchor,
    NoAnchor,
    VerifyOptions,
    check_outside,
)
from mint2m_verify.canonical import JsonValue, parse, sha256_hex
from mint2m_verify.documents import CheckpointManifest, FileManifest, ModelManifest
from mint2m_verify.documents.base import decode
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, NamedDigest, Report, Standing, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.hashed import hashed_notes, hashed_standing, hashed_words
from mint2m_verify.named_input import resolve_named
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.run_documents import read_value
from mint2m_verify.seal import Seal, read_beside, read_seal, short
from mint2m_verify.statement import BUNDLE_LIMIT
from mint2m_verify.tree import check_manifest, compare
from mint2m_verify.verdict import About, finish
from mint2m_verify.vouching import Vouched, judge_policy, vouch
from mint2m_verify.walk import Snapshot, read_tree

_KINDS: tuple[type[FileManifest], ...] = (FileManifest, ModelManifest, CheckpointManifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeQuestion:
    """A tree, its manifest, and the seal that may vouch for the manifest; `command` names the asker."""

    root: Path
    manifest: Path
    seal: Path | None
    command: str

    @property
    def evidence(self) -> Path:
        """The run directory that the tree lies in, or the tree itself where it lies elsewhere."""
        parents = self.root.resolve().parents
        return next((folder for folder in parents if (folder / layout.SEAL).is_file()), self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """A manifest as it was read."""

    name: str
    sha256: str
    document: FileManifest


def verify_checkpoint(
    root: Path, manifest: Path | None, seal: Path | None, anchor: Anchor, options: VerifyOptions
) -> Report:
    """The checkpoint directory `root` against its manifest.

    Args:
        root: the directory of the checkpoint.
        manifest: its manifest; None takes the one of the run directory that `root` lies in.
        seal: the seal that names the manifest; None takes that run directory's, where a key needs one.
    """
    run = root.resolve().parent
    question = TreeQuestion(
        root=root,
        manifest=run / layout.CHECKPOINT_MANIFEST if manifest is None else resolve_named(manifest),
        seal=run / layout.SEAL if seal is None else resolve_named(seal),
        command="verify checkpoint",
    )
    return _verify(question, anchor, options, kinds=(CheckpointManifest,))


def verify_manifest(manifest: Path, root: Path, seal: Path | None, anchor: Anchor, options: VerifyOptions) -> Report:
    """The directory `root` against a manifest of any kind; a key needs the seal that names the manifest."""
    question = TreeQuestion(
        root=root,
        manifest=resolve_named(manifest),
        seal=None if seal is None else resolve_named(seal),
        command="verify manifest",
    )
    return _verify(question, anchor, options, kinds=_KINDS)


def _verify(
    question: TreeQuestion, anchor: Anchor, options: VerifyOptions, *, kinds: tuple[type[FileManifest], ...]
) -> Report:
    log = Findings()
    manifest = _read_manifest(question.manifest, kinds, log)
    committed = () if manifest is None else manifest.document.files
    hashing = options.hashing(committed)
    snapshot = read_tree(question.root, keep=lambda _: 0, progress=options.progress, hashing=hashing)
    seal = _read_seal(question, anchor, log)
    vouched = vouch(seal, anchor)
    origin = _origin(question, manifest, snapshot, anchor, seal, vouched)
    log.judge("a manifest that you can trust", _standing(anchor), origin)
    judge_policy(log, anchor, seal, vouched, deployment=None, whole=False)
    required = "every file as the manifest says"
    if manifest is not None:
        log.judge(required, hashed_standing(snapshot.files), _compare(manifest, snapshot))
    else:
        log.add(snapshot.findings)
        log.not_reached(required, (question.manifest.name,))
    about = About(
        subject=str(question.root),
        command=question.command,
        not_checked=(*_not_checked(anchor), *hashed_notes(snapshot.files)),
        digests=()
        if manifest is None
        else (
            NamedDigest(name="manifest", sha256=manifest.sha256),
            NamedDigest(name="root", sha256=manifest.document.root_sha256),
        ),
    )
    return finish(about, log, anchor, options, seal, vouched)


def _read_manifest(path: Path, kinds: tuple[type[FileManifest], ...], log: Findings) -> _Manifest | None:
    try:
        raw = read_once(path, name=path.name)
        kind = _kind(parse(raw, file=path.name), kinds)
    except FindingError as fault:
        log.unreadable(path.name, (fault.finding,))
        return None
    value, faults = read_value(kind, raw, file=path.name, canonical_form=True)
    if value is None:
        log.unreadable(path.name, faults)
        return None
    return _Manifest(name=path.name, sha256=sha256_hex(raw), document=decode(kind, value))


def _kind(value: JsonValue, kinds: tuple[type[FileManifest], ...]) -> type[FileManifest]:
    """The kind that the document names; the first where it names none of them, whose schema then refuses it."""
    declared = value.get("schema") if isinstance(value, dict) else None
    return next((kind for kind in kinds if declared == f"mint2m.{kind.NAME}/v1"), kinds[0])


def _read_seal(question: TreeQuestion, anchor: Anchor, log: Findings) -> Seal | None:
    if not isinstance(anchor, KeyAnchor | PolicyAnchor) or question.seal is None:
        return None
    try:
        raw = read_once(question.seal, name=layout.SEAL, limit=BUNDLE_LIMIT)
    except FindingError as fault:
        log.unreadable(layout.SEAL, (fault.finding,))
        return None
    files, faults = read_beside(raw, question.seal.parent)
    log.add(faults)
    seal, faults = read_seal(files, anchor)
    log.add(faults)
    return seal


def _standing(anchor: Anchor) -> Standing:
    return Standing.UNVERIFIABLE if isinstance(anchor, ConsistencyOnly) else Standing.CHECKED


def _origin(
    question: TreeQuestion,
    manifest: _Manifest | None,
    snapshot: Snapshot,
    anchor: Anchor,
    seal: Seal | None,
    vouched: Vouched,
) -> Check:
    match anchor:
        case DigestAnchor():
            have = {} if manifest is None else {manifest.sha256, manifest.document.root_sha256}
            if anchor.sha256 not in have:
                yield found(
                    "trust.digest-mismatch",
                    file=question.manifest.name,
                    expected=anchor.sha256,
                    actual="no manifest"
                    if manifest is None
                    else f"root {manifest.document.root_sha256}, file {manifest.sha256}",
                )
            return f"digest {short(anchor.sha256)} names it"
        case KeyAnchor() | PolicyAnchor():
            yield from check_outside(anchor, question.evidence, snapshot.files)
            if seal is None:
                yield found("trust.no-seal", file=question.manifest.name)
                return "no seal"
            yield from vouched.findings
            yield from _subject(seal, manifest, question.manifest.name)
            return vouched.words
        case NoAnchor():
            yield found("trust.no-anchor")
            return "none"
        case ConsistencyOnly():
            return "not asked for"


def _subject(seal: Seal, manifest: _Manifest | None, name: str) -> list[Finding]:
    """The manifest is a subject of the seal by its digest, under whatever path the run gave it."""
    digests = {subject.sha256 for subject in seal.statement.subjects}
    if manifest is None or manifest.sha256 in digests:
        return []
    return [found("seal.not-a-subject", file=name, actual=manifest.sha256)]


def _compare(manifest: _Manifest, snapshot: Snapshot) -> Check:
    blocked = {fault.file: fault for fault in snapshot.findings if fault.file is not None}
    yield from snapshot.findings
    yield from check_manifest(manifest.document, file=manifest.name)
    have = [file.entry for file in snapshot.files]
    yield from compare(manifest.document.files, have, committed_by=manifest.name, blocked=blocked)
    return f"{len(have)} of {manifest.document.file_count}, {hashed_words(snapshot.files)}"


def _not_checked(anchor: Anchor) -> tuple[str, ...]:
    notes = ["how the files came about: only that they are the files of the manifest"]
    if isinstance(anchor, KeyAnchor | PolicyAnchor):
        notes.append("the other files that the seal covers (mint2m verify run DIR)")
    return tuple(notes)
