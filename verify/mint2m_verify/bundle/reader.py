"""The members of an archive in their order, each read once.

The rule: what is parsed is written out again in its one spelling and must equal what was read, header, padding and end
included. Two tools can then not see two different archives in these bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mint2m_verify.bundle import ustar
from mint2m_verify.bundle.gzipped import GzipReader
from mint2m_verify.bundle.ustar import BLOCK_BYTES, Member
from mint2m_verify.finding import FindingError, found
from mint2m_verify.named_input import resolve_named

_PIECE_BYTES = 1 << 20


class ArchiveReader:
    """A header by `next`, then all of its content by `content`, and so on; `offset` counts uncompressed bytes."""

    def __init__(self, stream: GzipReader, *, file: str) -> None:
        self._stream, self._file = stream, file
        self._held: bytes | None = None
        self.offset = 0

    def peek(self) -> bytes:
        """The next header block, which stays: its bytes, not what they mean."""
        if self._held is None:
            self._held = self._exactly(BLOCK_BYTES)
        return self._held

    def next(self) -> Member | None:
        """The next member; None at the end, beyond which there is nothing.

        Raises:
            FindingError: as `ustar.parse`; `bundle.truncated`, `bundle.trailing-data`, `bundle.gzip-*`.
        """
        block, self._held = self.peek(), None
        start = self.offset
        self.offset += BLOCK_BYTES
        member = ustar.parse(block, offset=start)
        if member is None:
            self._end(start)
        return member

    def content(self, member: Member) -> Iterator[bytes]:
        """The bytes of `member` in pieces of at most 1 MiB; the caller has seen its size and takes all of it."""
        left = member.size
        while left:
            piece = self._exactly(min(left, _PIECE_BYTES))
            self.offset += len(piece)
            left -= len(piece)
            yield piece
        count = ustar.padding(member.size)
        filler = self._exactly(count)
        if filler != bytes(count):
            raise FindingError(
                found(
                    "bundle.not-canonical",
                    file=member.path,
                    byte_range=(self.offset, self.offset + count),
                    expected="zeros up to the next block",
                )
            )
        self.offset += count

    def _end(self, start: int) -> None:
        second = self._exactly(BLOCK_BYTES)
        if second != bytes(BLOCK_BYTES) or self._stream.read(1):
            raise FindingError(
                found(
                    "bundle.trailing-data",
                    file=self._file,
                    byte_range=(start, start + 2 * BLOCK_BYTES),
                    expected="two blocks of zeros and nothing more",
                )
            )

    def _exactly(self, count: int) -> bytes:
        raw = self._stream.read(count) if count else b""
        if len(raw) != count:
            end = self.offset + len(raw)
            raise FindingError(
                found("bundle.truncated", file=self._file, byte_range=(end, end), expected=f"{count} bytes more")
            )
        return raw


@contextmanager
def open_archive(path: Path) -> Iterator[ArchiveReader]:
    """The archive that the caller names, opened once; it must not change until it is closed.

    Raises:
        FindingError: `input.missing`, `file.not-regular`, `file.unreadable`, `tree.changed-while-read`, or as reading.
    """
    name = path.name
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(resolve_named(path), flags)
    except OSError as fault:
        if stat.S_ISREG(path.stat().st_mode):
            raise FindingError(found("file.unreadable", file=str(path), actual=fault.strerror)) from fault
        raise FindingError(found("file.not-regular", file=str(path))) from fault
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise FindingError(found("file.not-regular", file=str(path)))
        try:
            yield ArchiveReader(GzipReader(descriptor, file=name), file=name)
        finally:
            after = os.fstat(descriptor)
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise FindingError(found("tree.changed-while-read", file=str(path)))
    finally:
        os.close(descriptor)
