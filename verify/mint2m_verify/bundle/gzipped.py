"""The gzip wrapping of an archive: one member, no optional fields, read piece by piece.

The rule: whoever reads asks for a number of bytes and never gets more, so nothing expands beyond what a caller was
ready to take; and nothing follows the end. Deflate has many spellings of one content (a run of zeros can be copied
from any distance), so an archive that we write is not compressed: its deflate blocks are stored ones, of which there is
exactly one sequence. Any changed byte of such an archive is a fault, and the same members give the same bytes with
every compression library. A compressed one is read too, since mirrors repack; its content is no less bound.
Formats: RFC 1951, RFC 1952.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import NoReturn, Protocol

from mint2m_verify.finding import FindingError, found

#: Of a stored archive: no flags, no time, no compression level, no operating system.
HEADER = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF))

#: Length of every stored block but the last.
STORED_BYTES = 0xFFFF

_READ_BYTES = 1 << 18


class GzipReader:
    """The content of an open gzip file; `read` gives exactly what was asked for, less only at the end."""

    def __init__(self, descriptor: int, *, file: str) -> None:
        self._input = _Input(descriptor, file)
        self._file = file
        self._checksum, self._size, self._ended = 0, 0, False
        head = self._input.take(len(HEADER))
        if head[:3] != HEADER[:3]:
            raise FindingError(found("bundle.not-gzip", file=file, byte_range=(0, 3)))
        first = self._input.peek()
        stored = first is not None and first & 0b110 == 0
        if head[3:8] != HEADER[3:8] or (stored and head != HEADER):
            raise FindingError(
                found(
                    "bundle.gzip-header",
                    file=file,
                    byte_range=(3, 10),
                    expected="no flags, no time",
                    actual=head[3:].hex(),
                )
            )
        self._body: _Body = _Stored(self._input, file) if stored else _Deflated(self._input, file)

    def read(self, count: int) -> bytes:
        """The next `count` bytes; fewer only where the content ends, and then the file ends with it.

        Raises:
            FindingError: `bundle.truncated`, `bundle.gzip-damaged`, `bundle.gzip-member`, `bundle.trailing-data`.
        """
        parts: list[bytes] = []
        while count and not self._ended:
            piece = self._body.read(count)
            if not piece:
                self._end()
                break
            self._checksum = zlib.crc32(piece, self._checksum)
            self._size += len(piece)
            count -= len(piece)
            parts.append(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _end(self) -> None:
        self._ended = True
        where = self._input.offset
        trailer = self._input.take(8)
        want = self._checksum.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little")
        if trailer != want:
            raise FindingError(
                found(
                    "bundle.gzip-damaged",
                    file=self._file,
                    byte_range=(where, where + 8),
                    expected=f"checksum and length {want.hex()}",
                    actual=trailer.hex(),
                )
            )
        if self._input.peek() is not None:
            rest = self._input.take(1)
            second = rest == HEADER[:1] and self._input.peek() == HEADER[1]
            id = "bundle.gzip-member" if second else "bundle.trailing-data"
            raise FindingError(found(id, file=self._file, byte_range=(where + 8, where + 9)))


class GzipWriter:
    """Writes content as one gzip member of stored blocks; `write` is where the bytes go."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write, self._pending = write, bytearray()
        self._checksum, self._size = 0, 0
        write(HEADER)

    def write(self, piece: bytes) -> None:
        """Take in more content; it may be handed on later."""
        self._checksum = zlib.crc32(piece, self._checksum)
        self._size += len(piece)
        self._pending += piece
        while len(self._pending) > STORED_BYTES:  # never the last byte: the last block is known at the end
            self._block(bytes(self._pending[:STORED_BYTES]), last=False)
            del self._pending[:STORED_BYTES]

    def close(self) -> None:
        """The last block and the trailer; the caller closes the file."""
        self._block(bytes(self._pending), last=True)
        self._write(self._checksum.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little"))

    def _block(self, content: bytes, *, last: bool) -> None:
        length = len(content)
        head = bytes((int(last),)) + length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
        self._write(head + content)


class _Input:
    """The file's bytes, buffered."""

    def __init__(self, descriptor: int, file: str) -> None:
        self._descriptor, self._file, self._buffer, self._at, self.offset = descriptor, file, b"", 0, 0

    def peek(self) -> int | None:
        """The next byte, which stays; None at the end of the file."""
        self._fill()
        return self._buffer[self._at] if self._at < len(self._buffer) else None

    def some(self, most: int) -> bytes:
        """At least one byte and at most `most`; nothing at the end of the file."""
        self._fill()
        piece = self._buffer[self._at : self._at + most]
        self._at += len(piece)
        self.offset += len(piece)
        return piece

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes; raises `FindingError` (`bundle.truncated`)."""
        parts = b""
        while len(parts) < count:
            piece = self.some(count - len(parts))
            if not piece:
                raise FindingError(found("bundle.truncated", file=self._file, byte_range=(self.offset, self.offset)))
            parts += piece
        return parts

    def give_back(self, count: int) -> None:
        """The last `count` bytes of the last `some` are unread again."""
        self._at -= count
        self.offset -= count

    def _fill(self) -> None:
        if self._at < len(self._buffer):
            return
        try:
            self._buffer, self._at = os.read(self._descriptor, _READ_BYTES), 0
        except OSError as fault:
            raise FindingError(found("file.unreadable", file=self._file, actual=fault.strerror)) from fault


class _Body(Protocol):
    def read(self, most: int) -> bytes:
        """At least one byte and at most `most`, which is positive; nothing at the end of the content."""


class _Stored:
    """Stored deflate blocks in the one sequence that `GzipWriter` makes."""

    def __init__(self, source: _Input, file: str) -> None:
        self._input, self._file, self._left, self._last = source, file, 0, False

    def read(self, most: int) -> bytes:
        if not self._left:
            if self._last:
                return b""
            self._next_block()
        piece = self._input.some(min(most, self._left))
        if not piece:
            self._input.take(1)  # says where the file ends too early
        self._left -= len(piece)
        return piece

    def _next_block(self) -> None:
        where = self._input.offset
        head = self._input.take(5)
        length, complement = int.from_bytes(head[1:3], "little"), int.from_bytes(head[3:5], "little")
        self._last = head[0] == 1
        whole = length == STORED_BYTES or (self._last and length > 0)
        if head[0] > 1 or length ^ complement != 0xFFFF or not whole:
            raise FindingError(
                found(
                    "bundle.gzip-damaged",
                    file=self._file,
                    byte_range=(where, where + 5),
                    expected="a stored block, of 65,535 bytes where it is not the last",
                    actual=head.hex(),
                )
            )
        self._left = length


class _Deflated:
    """Any deflate stream; output is bounded by what is asked for."""

    def __init__(self, source: _Input, file: str) -> None:
        self._input, self._file = source, file
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._ended = False

    def read(self, most: int) -> bytes:
        piece = b""
        while not piece and not self._ended:
            fresh = self._inflate.unconsumed_tail or self._input.some(_READ_BYTES)
            try:
                piece = self._inflate.decompress(fresh, most)
            except zlib.error as fault:
                self._damaged(str(fault))
            self._ended = self._inflate.eof
            if self._ended:
                self._input.give_back(len(self._inflate.unused_data))
            elif not fresh and not piece:
                self._input.take(1)  # says where the file ends too early
        return piece

    def _damaged(self, why: str) -> NoReturn:
        end = self._input.offset
        raise FindingError(found("bundle.gzip-damaged", file=self._file, byte_range=(0, end), actual=why)) from None
