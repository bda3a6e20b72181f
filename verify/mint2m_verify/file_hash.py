"""Digests of one open file, in bounded memory: of the whole, of its 64 MiB chunks, or of both.

The rule: a digest is of bytes that were read here, and the file had the same size and times before and after. A large
file is read once for both kinds of digest, which takes a thread for each; its whole digest is one chain of blocks that
nothing can divide. Where only chunk digests are wanted, since whatever the auditor trusts commits them, every chunk is
work of its own, and a file is hashed as fast as all processors together can.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from mint2m_verify.hash_journal import FileKey, HashJournal
from mint2m_verify.mapped_hash import MappedHashing
from mint2m_verify.page_cache import Span

#: A manifest commits each consecutive piece of this length, so that a change can be placed.
CHUNK_BYTES = 64 << 20

#: A block stays in the processor's cache between the copy out of the page cache and the hashing.
_BLOCK_BYTES = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """What was found: `size` is of the bytes read; `cached` bytes of them were not, their digests came from a journal.

    `chunks`: none for an empty file, and for a larger one whose chunks nobody asked for.
    """

    size: int
    sha256: str
    chunks: tuple[str, ...]
    cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Who is told of bytes done, who may stop it, where digests are kept, and who hashes what is cached."""

    tell: Callable[[int], None]
    stopped: Event
    journal: HashJournal | None = None
    mapped: MappedHashing | None = None


def chunk_count(size: int) -> int:
    """Of how many chunks a file of `size` bytes consists."""
    return -(-size // CHUNK_BYTES)


class RunningDigests:
    """Digests of bytes in the order in which they pass, for whoever writes them."""

    def __init__(self) -> None:
        self._size, self._chunks = 0, list[str]()
        self._whole = hashlib.sha256()
        self._chunk = self._whole  # while there is one chunk, it is the whole

    def update(self, raw: bytes | memoryview) -> None:
        """Bytes that follow those before."""
        left = memoryview(raw).cast("B")
        while left:
            room = CHUNK_BYTES - self._size % CHUNK_BYTES
            block, left = left[:room], left[room:]
            self._whole.update(block)
            if self._chunk is not self._whole:
                self._chunk.update(block)
            self._size += len(block)
            if self._size % CHUNK_BYTES == 0:
                self._chunks.append(self._chunk.hexdigest())
                self._chunk = hashlib.sha256()

    def digests(self) -> Digests:
        """Of all that has passed."""
        rest = [self._chunk.hexdigest()] if self._size % CHUNK_BYTES else []
        return Digests(size=self._size, sha256=self._whole.hexdigest(), chunks=(*self._chunks, *rest))


def hash_bytes(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """SHA-256 of `raw` and of each of its chunks."""
    running = RunningDigests()
    running.update(raw)
    digests = running.digests()
    return digests.sha256, digests.chunks


def hash_chunk(descriptor: int, status: os.stat_result, index: int, work: Work) -> tuple[str, int]:
    """The digest of a chunk of a file that is as `status` says, and how many of its bytes were not read for it.

    A file that is shorter by now gives the digest of what is left: the caller looks at the file again afterwards.
    """
    key = FileKey.of(status)
    start = index * CHUNK_BYTES
    length = min(CHUNK_BYTES, status.st_size - start)
    known = None if work.journal is None else work.journal.chunk(key, index)
    if known is not None:
        work.tell(length)
        return known, length
    digest, _ = _hash_span(descriptor, start, length, work)
    if work.journal is not None:
        work.journal.add_chunk(key, index, digest)
    return digest, 0


def hash_file(descriptor: int, status: os.stat_result, work: Work, *, chunks: bool) -> Digests:
    """The digest of the whole file, and with `chunks` of each of its chunks.

    A file that has more bytes than `status` says is not read to its end: whoever appends as fast as we read would keep
    us for ever. Its size is then one more than that, and its digests are of no use.
    """
    expected = status.st_size
    known = _known(status, work, chunks=chunks)
    if known is not None:
        return known
    if expected <= CHUNK_BYTES:
        digest, size = _hash_span(descriptor, 0, expected, work)
        pieces = [digest] if expected else []
    else:
        digest, pieces, size = _hash_large(descriptor, expected, work, chunks=chunks)
    size += len(os.pread(descriptor, 1, expected))
    _keep(status, work, digest, pieces)
    return Digests(size=size, sha256=digest, chunks=tuple(pieces))


def unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether the file is still what it was, as far as the system tells."""
    return all(
        getattr(before, name) == getattr(after, name) for name in ("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
    )


def _hash_span(descriptor: int, start: int, length: int, work: Work) -> tuple[str, int]:
    """The digest of at most `length` bytes from `start`, and of how many it is."""
    mapped = None if work.mapped is None else work.mapped.sha256(descriptor, start, length, work.stopped)
    if mapped is not None:
        work.tell(length)
        return mapped, length
    digest, size = hashlib.sha256(), 0
    for block in _blocks(descriptor, start, length, work, _own_buffers()[:1]):
        digest.update(block)
        size += len(block)
    return digest.hexdigest(), size


def _hash_large(descriptor: int, expected: int, work: Work, *, chunks: bool) -> tuple[str, list[str], int]:
    """The digest of `expected` bytes, with `chunks` those of their chunks, and how many bytes there were."""
    whole, pieces, size = hashlib.sha256(), list[str](), 0
    with _helper(chunks) as helper:
        busy: Future[None] | None = None
        for start in range(0, expected, CHUNK_BYTES):
            piece = hashlib.sha256()
            length = min(CHUNK_BYTES, expected - start)
            for block in _blocks(descriptor, start, length, work, _own_buffers()[: 2 if chunks else 1]):
                size += len(block)
                if helper is None:
                    whole.update(block)
                    continue
                if busy is not None:
                    busy.result()  # its buffer is the next to be filled
                busy = helper.submit(whole.update, block)
                piece.update(block)
            if busy is not None:
                busy.result()  # the next chunk begins with any of the buffers
            if chunks:
                pieces.append(piece.hexdigest())
    return whole.hexdigest(), pieces, size


def _blocks(
    descriptor: int, start: int, length: int, work: Work, buffers: tuple[memoryview, ...]
) -> Iterator[memoryview]:
    """The bytes of a span, in blocks: one is good until as many more as there are buffers have been asked for."""
    done, turn = 0, 0
    with Span(descriptor, start, length) as span:
        while done < length:
            if work.stopped.is_set():
                raise CancelledError
            room = buffers[turn][: length - done]
            count = span.read(room, start + done)
            if count == 0:
                return
            yield room[:count]
            done += count
            turn = (turn + 1) % len(buffers)
            work.tell(count)


_OWN = threading.local()


def _own_buffers() -> tuple[memoryview, ...]:
    """Two blocks of this thread: one is hashed while the other is filled.

    They begin on a page, as memory of Python's own does not: the kernel copies into unaligned memory half as fast.
    """
    if not hasattr(_OWN, "buffers"):
        _OWN.buffers = tuple(memoryview(mmap.mmap(-1, _BLOCK_BYTES)) for _ in range(2))
    buffers: tuple[memoryview, ...] = _OWN.buffers
    return buffers


def _known(status: os.stat_result, work: Work, *, chunks: bool) -> Digests | None:
    """All that is asked for, where the journal has it."""
    if work.journal is None or not status.st_size:
        return None
    key, count = FileKey.of(status), chunk_count(status.st_size)
    parts = [work.journal.chunk(key, index) for index in range(count if chunks or count == 1 else 0)]
    found = [part for part in parts if part is not None]
    whole = work.journal.whole(key) if count > 1 else parts[0]
    if whole is None or len(found) != len(parts):
        return None
    work.tell(status.st_size)
    return Digests(size=status.st_size, sha256=whole, chunks=tuple(found), cached=status.st_size)


def _keep(status: os.stat_result, work: Work, whole: str, chunks: list[str]) -> None:
    if work.journal is None:
        return
    key = FileKey.of(status)
    for index, chunk in enumerate(chunks):
        work.journal.add_chunk(key, index, chunk)
    if chunk_count(status.st_size) > 1:
        work.journal.add_whole(key, whole)


@contextmanager
def _helper(wanted: bool) -> Iterator[ThreadPoolExecutor | None]:
    if not wanted:
        yield None
        return
    with ThreadPoolExecutor(1, thread_name_prefix="hash-whole") as helper:
        yield helper
