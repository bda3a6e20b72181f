"""Writes a bundle: a statement over parts that lie on disk or in memory, signed, then one canonical archive.

The rule: every part is hashed when it is named in the statement and again when it is written, and the two agree or
there is no archive. The bytes follow from parts and signatures alone: no clock, no owner, no order of a directory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.bundle import ustar
from mint2m_verify.bundle.gzipped import GzipWriter
from mint2m_verify.bundle.ustar import Member
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.release import Release, ReleaseMember
from mint2m_verify.finding import FindingError, found
from mint2m_verify.release import layout
from mint2m_verify.release.statement import ReleaseStatement, release_statement
from mint2m_verify.statement import Subject

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A member-to-be: `content` is its bytes, or the file that holds them."""

    path: str
    executable: bool
    size: int
    sha256: str
    content: bytes | Path


def part_of(path: str, raw: bytes) -> Part:
    """A part that is held in memory."""
    return Part(path=path, executable=False, size=len(raw), sha256=sha256_hex(raw), content=raw)


def part_from(path: str, file: Path, *, executable: bool = False) -> Part:
    """A part that lies on disk, hashed here."""
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(file):
        digest.update(piece)
        size += len(piece)
    return Part(path=path, executable=executable, size=size, sha256=digest.hexdigest(), content=file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What is to be signed and written: parts sorted by path, their manifest, and the statement over both."""

    parts: tuple[Part, ...]
    manifest: bytes
    statement: ReleaseStatement


def assemble(version: str, parts: Iterable[Part], *, commit: str, committed_at: str) -> Bundle:
    """The manifest and statement of these parts."""
    ordered = tuple(sorted(parts, key=lambda part: part.path))
    members = tuple(ReleaseMember(path=part.path, size=part.size, executable=part.executable) for part in ordered)
    manifest = Release(commit=commit, committed_at=committed_at, members=members).encode()
    subjects = [Subject(name=part.path, sha256=part.sha256) for part in ordered]
    subjects.append(Subject(name=layout.MANIFEST, sha256=sha256_hex(manifest)))
    return Bundle(parts=ordered, manifest=manifest, statement=release_statement(version, subjects))


def write_archive(bundle: Bundle, signatures: Sequence[bytes], write: Callable[[bytes], object]) -> None:
    """The archive's bytes, piece by piece, to `write`.

    Raises:
        FindingError: `tree.changed-while-read` where a part is no longer what the statement says.
    """
    stream = GzipWriter(write)
    head = [part_of(layout.MANIFEST, bundle.manifest)]
    head += [part_of(layout.signature_name(number), raw) for number, raw in enumerate(signatures, start=1)]
    for part in (*head, *bundle.parts):
        stream.write(ustar.header(Member(path=part.path, size=part.size, executable=part.executable)))
        digest, size = hashlib.sha256(), 0
        for piece in (part.content,) if isinstance(part.content, bytes) else _pieces(part.content):
            digest.update(piece)
            size += len(piece)
            stream.write(piece)
        if (size, digest.hexdigest()) != (part.size, part.sha256):
            raise FindingError(found("tree.changed-while-read", file=part.path))
        stream.write(bytes(ustar.padding(part.size)))
    stream.write(ustar.END)
    stream.close()


def _pieces(file: Path) -> Iterator[bytes]:
    # Not through a link, and not waiting for a pipe's writer: a receipt's directory is somebody else's.
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                yield piece
    except OSError as fault:
        raise FindingError(found("file.unreadable", file=str(file), actual=fault.strerror)) from fault
