"""A checkout against the source of a release, file by file.

The rule: only `.git/` is exempt. A file that the release does not have could be imported, and an ignored one as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mint2m_verify.bundle.head import Signed
from mint2m_verify.documents import TreeEntry
from mint2m_verify.finding import Finding
from mint2m_verify.findings import Check
from mint2m_verify.release import layout
from mint2m_verify.seal import megabytes
from mint2m_verify.tree import compare
from mint2m_verify.walk import CHUNK_BYTES, Progress, Snapshot, read_tree

_EXEMPT = ".git/"


def read_checkout(root: Path, progress: Progress | None) -> Snapshot:
    """Every file below `root` but git's own; raises `FindingError` as `read_tree`."""
    snapshot = read_tree(root, keep=lambda _: 0, progress=progress)
    return Snapshot(
        files=tuple(file for file in snapshot.files if not file.path.startswith(_EXEMPT)),
        findings=tuple(fault for fault in snapshot.findings if not (fault.file or "").startswith(_EXEMPT)),
    )


def check_checkout(signed: Signed, snapshot: Snapshot) -> Check:
    """Changed, missing, renamed and extra files, by path."""
    have = [file.entry for file in snapshot.files]
    blocked = {fault.file: fault for fault in snapshot.findings if fault.file is not None}
    yield from snapshot.findings
    yield from _compare(signed, have, blocked)
    return f"{len(have)} files, {megabytes(snapshot.total_bytes)} re-hashed"


def _compare(signed: Signed, have: list[TreeEntry], blocked: dict[str, Finding]) -> Iterator[Finding]:
    at_hand = {entry.path: entry for entry in have}
    want: list[TreeEntry] = []
    for member in signed.manifest.members:
        if not member.path.startswith(layout.SOURCE):
            continue
        path, digest = member.path.removeprefix(layout.SOURCE), signed.digests[member.path]
        actual = at_hand.get(path)
        # The statement has no chunk digests: those of an equal file are its own, and a change covers all of another.
        chunks: tuple[str, ...] = (digest,) if 0 < member.size <= CHUNK_BYTES else ()
        if actual is not None and actual.sha256 == digest:
            chunks = actual.chunks
        want.append(TreeEntry(path=path, size=member.size, executable=member.executable, sha256=digest, chunks=chunks))
    yield from compare(want, have, committed_by=f"{layout.SOURCE} of the release", blocked=blocked)
