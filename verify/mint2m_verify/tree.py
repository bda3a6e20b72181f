"""File trees and their manifests: what a directory holds, committed by one root digest.

The rule: the root digest covers the path, size, executable bit, digest and chunk digests of every file, and a tree
equals its manifest only when both name the same files. Names outside the digest could be swapped; a file outside the
manifest could be loaded by somebody; a manifest of nothing would be equal to an empty directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from mint2m_verify.canonical import canonical, sha256_hex
from mint2m_verify.documents import CheckpointManifest, FileManifest, ModelManifest, TreeEntry
from mint2m_verify.documents.base import encode
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.statement import path_fault
from mint2m_verify.walk import CHUNK_BYTES, Hashing, Progress, read_tree

ManifestKind = Literal["file", "model", "checkpoint"]

_KINDS: Mapping[ManifestKind, type[FileManifest]] = {
    "file": FileManifest,
    "model": ModelManifest,
    "checkpoint": CheckpointManifest,
}
_ROOT_PREFIX = b"mint2m.tree/v1\n"


def root_digest(entries: Sequence[TreeEntry]) -> str:
    """SHA-256 over `mint2m.tree/v1` and the RFC 8785 form of `entries`, sorted by path in code point order."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.path))
    return sha256_hex(_ROOT_PREFIX + canonical(encode(ordered)))


def hash_tree(root: Path, progress: Progress | None = None, *, hashing: Hashing | None = None) -> tuple[TreeEntry, ...]:
    """All files below `root`, sorted by path; by default every digest is computed now.

    Raises:
        FindingError: the first name below `root` that is not a readable regular file, or `tree.empty`.
    """
    snapshot = read_tree(root, keep=lambda _: 0, progress=progress, hashing=hashing)
    for fault in snapshot.findings:
        raise FindingError(fault)
    if not snapshot.files:
        raise FindingError(found("tree.empty", file=str(root)))
    return tuple(file.entry for file in snapshot.files)


def manifest(
    kind: ManifestKind, root: Path, name: str, progress: Progress | None = None, *, hashing: Hashing | None = None
) -> FileManifest:
    """The manifest of the files below `root`; `name` is the tree's name for people. Raises as `hash_tree`."""
    return manifest_of(kind, hash_tree(root, progress, hashing=hashing), name)


def manifest_of(kind: ManifestKind, entries: Sequence[TreeEntry], name: str) -> FileManifest:
    """The manifest of `entries`, of which there is at least one."""
    if not entries:
        raise FindingError(found("tree.empty", file=name))
    ordered = tuple(sorted(entries, key=lambda entry: entry.path))
    return _KINDS[kind](
        tree=name,
        chunk_bytes=CHUNK_BYTES,
        file_count=len(ordered),
        total_bytes=sum(entry.size for entry in ordered),
        files=ordered,
        root_sha256=root_digest(ordered),
    )


def check_manifest(manifest: FileManifest, *, file: str) -> Iterator[Finding]:
    """Where a manifest contradicts itself: order, paths, counts, chunk digests and root digest."""
    if not manifest.files:
        yield found("tree.empty", file=file)
    previous = ""
    for index, entry in enumerate(manifest.files):
        where = f"/files/{index}"
        fault = path_fault(entry.path)
        if fault is not None:
            yield found("manifest.path-invalid", file=file, pointer=f"{where}/path", actual=f"{entry.path}: {fault}")
        if entry.path <= previous:
            yield found(
                "manifest.not-sorted",
                file=file,
                pointer=f"{where}/path",
                expected=f"a path after {previous}",
                actual=entry.path,
            )
        previous = entry.path
        chunks = -(-entry.size // CHUNK_BYTES)
        if len(entry.chunks) != chunks or (chunks == 1 and entry.chunks != (entry.sha256,)):
            yield found(
                "manifest.chunks-invalid",
                file=file,
                pointer=f"{where}/chunks",
                expected=f"{chunks} chunk digests for {entry.size} bytes",
                actual=f"{len(entry.chunks)}",
            )
    for member, want, have in (
        ("file_count", len(manifest.files), manifest.file_count),
        ("total_bytes", sum(entry.size for entry in manifest.files), manifest.total_bytes),
    ):
        if want != have:
            yield found(
                "manifest.count-mismatch", file=file, pointer=f"/{member}", expected=str(want), actual=str(have)
            )
    want_root = root_digest(manifest.files)
    if want_root != manifest.root_sha256:
        yield found(
            "manifest.root-mismatch",
            file=file,
            pointer="/root_sha256",
            expected=want_root,
            actual=manifest.root_sha256,
        )


def compare(
    want: Sequence[TreeEntry],
    have: Sequence[TreeEntry],
    *,
    committed_by: str,
    stage: str | None = None,
    blocked: Mapping[str, Finding] | None = None,
) -> Iterator[Finding]:
    """Where the files at hand differ from those committed, in path order.

    Args:
        want, have: entries whose paths are relative to one directory; none means the tree is empty, a fault too.
        committed_by: the document or statement that names the wanted files, for the reader.
        stage: where in the run the tree was made.
        blocked: findings about names that could not be read (links, pipes); a missing file follows from its own.
    """
    if not want:
        yield found("tree.empty", file=committed_by, stage=stage)
    wanted = {entry.path: entry for entry in want}
    at_hand = {entry.path: entry for entry in have}
    renamed = _renamed(wanted, at_hand, set(blocked or ()))
    sources = {target: source for source, target in renamed.items()}
    for path in sorted(wanted.keys() | at_hand.keys()):
        entry, actual = wanted.get(path), at_hand.get(path)
        if path in sources:
            continue  # told once, under its old name
        if entry is None and actual is not None:
            yield found("tree.file-unlisted", stage=stage, file=path, actual=f"{actual.size} bytes, {actual.sha256}")
        elif actual is None and entry is not None and path in renamed:
            yield found("tree.file-renamed", stage=stage, file=path, expected=path, actual=renamed[path])
        elif actual is None and entry is not None:
            missing = found("tree.file-missing", stage=stage, file=path, expected=entry.sha256)
            yield missing.following((blocked or {}).get(path))
        elif entry is not None and actual is not None:
            yield from _compare_file(entry, actual, committed_by=committed_by, stage=stage)


def relative(entries: Sequence[TreeEntry], prefix: str) -> tuple[TreeEntry, ...]:
    """The entries below the directory `prefix` (`checkpoint/`), with paths relative to it."""
    return tuple(
        replace(entry, path=entry.path.removeprefix(prefix)) for entry in entries if entry.path.startswith(prefix)
    )


def _compare_file(want: TreeEntry, have: TreeEntry, *, committed_by: str, stage: str | None) -> Iterator[Finding]:
    if want.sha256 != have.sha256 or want.size != have.size or want.chunks != have.chunks:
        first, last, label = _changed_bytes(want, have)
        yield found(
            "tree.file-changed",
            stage=stage,
            file=want.path,
            byte_range=(first, last),
            expected=f"{want.sha256} ({want.size} bytes)",
            actual=f"{have.sha256} ({have.size} bytes)",
            hint=f"{label}; committed by {committed_by}",
        )
    if want.executable != have.executable:
        words = ("not executable", "executable")
        yield found(
            "tree.mode-changed",
            stage=stage,
            file=want.path,
            expected=words[want.executable],
            actual=words[have.executable],
        )


def _changed_bytes(want: TreeEntry, have: TreeEntry) -> tuple[int, int, str]:
    """[first, last + 1) of the first piece that differs, and its number among the file's pieces."""
    end = max(want.size, have.size)
    total = max(len(want.chunks), len(have.chunks), 1)
    pairs = zip(want.chunks, have.chunks, strict=False)
    same = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(want.chunks), len(have.chunks)))
    index = min(same, total - 1)
    differing = sum(a != b for a, b in zip(want.chunks, have.chunks, strict=False)) + abs(
        len(want.chunks) - len(have.chunks)
    )
    first = index * CHUNK_BYTES
    label = (
        f"chunk {index + 1} of {total}"
        if differing <= 1
        else f"chunk {index + 1} of {total} is the first of {differing}"
    )
    return first, max(first, min(end, first + CHUNK_BYTES)), label


def _renamed(wanted: Mapping[str, TreeEntry], at_hand: Mapping[str, TreeEntry], blocked: set[str]) -> dict[str, str]:
    """Missing path -> unlisted path with the same content, where each is the only such one."""
    missing = [entry for path, entry in wanted.items() if path not in at_hand and path not in blocked]
    extra = [entry for path, entry in at_hand.items() if path not in wanted and entry.size]
    pairs: dict[str, str] = {}
    for entry in missing:
        same = [other for other in extra if other.sha256 == entry.sha256]
        rivals = [other for other in missing if other.sha256 == entry.sha256]
        if len(same) == 1 and len(rivals) == 1:
            pairs[entry.path] = same[0].path
    return pairs
