"""Reads that leave the page cache as they found it.

The rule: what was cached before is somebody's, and stays; what only our reading brought in goes again. An audit of ten
terabytes would otherwise push a running trainer's files out of memory, and dropping what it had there would do the
same harm. Where the kernel does not say what is cached (a file of another owner), everything is left.

A read that may not wait for the disk tells for nothing that all of it was cached. Only where it fails is the kernel
asked which pages are missing, through a mapping that is never read, so a file that is cut meanwhile does no harm.
"""

from __future__ import annotations

import mmap
import os
import re
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

#: Below this nobody asks: the question costs more than the pages.
_LEAST_BYTES = 1 << 20

#: Looked at and asked of the disk ahead of the reader, within the span only: nothing outside it is brought in.
_AHEAD_BYTES = 8 << 20

_PAGE = mmap.PAGESIZE
#: The number of cachestat(2), whose C library has no name for it.
_CACHESTAT = 451
_ABSENT = re.compile(rb"\x00+")
#: Only the lowest bit of mincore's answer is defined.
_LOWEST_BIT = bytes(value & 1 for value in range(256))


class Span:
    """`length` bytes of an open file from `start`, a page boundary, about to be read once from front to back."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor, self._end = descriptor, start + length
        self._known = start if length >= _LEAST_BYTES else self._end  # what comes before has been looked at
        self._missing = False  # the last window that was looked at had pages to be brought in
        self._absent: list[tuple[int, int]] = []

    def __enter__(self) -> Span:
        return self

    def read(self, room: memoryview, position: int) -> int:
        """Fill `room` from `position`, or as much of it as there is at once; 0 at the file's end.

        Raises:
            OSError: as `os.preadv`.
        """
        if position >= self._known and position < self._end:
            try:
                return os.preadv(self._descriptor, [room], position, os.RWF_NOWAIT)
            except OSError:  # not cached, or a file system that cannot say; a real fault comes again below
                self._look(position)
        while self._missing and self._known < min(position + _AHEAD_BYTES, self._end):
            self._look(self._known)
        return os.preadv(self._descriptor, [room], position)

    def _look(self, position: int) -> None:
        """See what is missing of the window at `position`, and ask for it."""
        start = position - position % _PAGE
        size = min(_AHEAD_BYTES, self._end - start)
        missing = absent(self._descriptor, start, size)
        if missing:
            os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_WILLNEED)
        self._absent += missing
        self._missing = bool(missing)
        self._known = start + size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for first, size in self._absent:
            os.posix_fadvise(self._descriptor, first, size, os.POSIX_FADV_DONTNEED)


def is_cached(descriptor: int, start: int, length: int) -> bool:
    """Whether all of a span is cached, as far as the kernel says."""
    try:  # answers for files of other owners too
        os.preadv(descriptor, [bytearray(1)], start, os.RWF_NOWAIT)
    except OSError:
        return False
    count = _cached_pages(descriptor, start, length)
    return not absent(descriptor, start, length) if count is None else count >= -(-length // _PAGE)


def _cached_pages(descriptor: int, start: int, length: int) -> int | None:
    """How many pages of a span are cached, None where the kernel does not count (before 6.5, or another's file).

    Where files are kept in large pieces this looks at the pieces, mincore at every page.
    """
    import ctypes

    span, counts = (ctypes.c_uint64 * 2)(start, length), (ctypes.c_uint64 * 5)()
    pointers = ctypes.byref(span), ctypes.byref(counts)
    failed = _libc().syscall(ctypes.c_long(_CACHESTAT), ctypes.c_long(descriptor), *pointers, ctypes.c_long(0))
    return None if failed else counts[0]


def absent(descriptor: int, start: int, length: int) -> list[tuple[int, int]]:
    """(start, length) of each run of pages that is not cached; none where the kernel does not say."""
    import ctypes  # loaded for large files only: a small verification should not wait for it

    libc = _libc()
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address in (None, ctypes.c_void_p(-1).value):
        return []
    pages = ctypes.create_string_buffer(-(-length // _PAGE))
    try:
        if libc.mincore(address, length, pages) != 0:
            return []
    finally:
        libc.munmap(address, length)
    runs = _ABSENT.finditer(pages.raw.translate(_LOWEST_BIT))
    return [(start + run.start() * _PAGE, (run.end() - run.start()) * _PAGE) for run in runs]


@cache
def _libc() -> ctypes.CDLL:
    """The C library of this process, with the types of what is called."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_int64)
    libc.munmap.argtypes = (pointer, size)
    libc.mincore.argtypes = (pointer, size, ctypes.c_char_p)
    return libc
