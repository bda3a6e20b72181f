"""Files that the auditor brings as an anchor, and how they are told from the evidence.

The rule: what came with the evidence was chosen by whoever made it, so a key, policy or root that lies among the
files it should judge is none: neither by its path, nor by a hard link, nor by its bytes under another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.finding import Finding, FindingError, Verdict, found
from mint2m_verify.named_input import read_named
from mint2m_verify.walk import ReadFile


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorFile:
    """`device` and `inode` tell the file from others; `sha256` is of its bytes."""

    path: Path
    sha256: str
    device: int
    inode: int


def read_anchor_file(path: Path, *, limit: int, fault: str) -> tuple[bytes, AnchorFile]:
    """The bytes of an anchor and what tells its file apart.

    Raises:
        FindingError: `input.missing`, what the system says (exit 5), or `fault`: a directory, a pipe or a file of
            gigabytes is no evidence that failed, the caller named the wrong thing.
    """
    try:
        raw = read_named(path, limit=limit)
    except FindingError as error:
        if error.finding.verdict is not Verdict.FAILED:
            raise
        actual = f"{error.finding.id}: {error.finding.message}"
        raise FindingError(found(fault, file=str(path), actual=actual)) from error
    return raw, anchor_file(path, raw)


def anchor_file(path: Path, raw: bytes) -> AnchorFile:
    """What tells the file `path` apart, which holds `raw`."""
    status = path.resolve().stat()
    return AnchorFile(path=path, sha256=sha256_hex(raw), device=status.st_dev, inode=status.st_ino)


def check_among(anchors: Iterable[AnchorFile], files: Iterable[ReadFile], *, fault: str) -> Iterator[Finding]:
    """Anchors that are one of `files` by hard link or by bytes; `fault` is the finding's id."""
    seen = list(files)
    by_inode = {(file.device, file.inode): file for file in seen}
    by_digest = {file.entry.sha256: file for file in seen}
    for anchor in anchors:
        same = by_inode.get((anchor.device, anchor.inode)) or by_digest.get(anchor.sha256)
        if same is not None:
            yield found(fault, file=same.path, actual=str(anchor.path))


def check_below(anchors: Iterable[AnchorFile], folder: Path, *, fault: str) -> Iterator[Finding]:
    """Anchors whose path lies below `folder`, where only a part of the evidence there is looked at."""
    place = folder.resolve()
    for anchor in anchors:
        if anchor.path.resolve().is_relative_to(place):
            yield found(fault, file=str(anchor.path), actual=str(anchor.path))
