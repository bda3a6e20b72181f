"""Reads that leave the page cache as they found it.

The rule: what was cached before is somebody's, and stays; what only our reading brought in goes again. An audit of ten
terabytes would otherwise push a running trainer's files out of memory, and dropping what it had there would do the
same harm. Where the kernel does not say what is cached (a file of another owner), everything is left.

Pages are asked about through a mapping that is never read, so a file that is cut meanwhile does no harm.
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

#: Asked of the disk ahead of the reader, within the span only, so that nothing outside it is brought in.
_AHEAD_BYTES = 8 << 20

_PAGE = mmap.PAGESIZE
_ABSENT = re.compile(rb"\x00+")
#: Only the lowest bit of mincore's answer is defined.
_LOWEST_BIT = bytes(value & 1 for value in range(256))


class Span:
    """`length` bytes of an open file from `start`, a page boundary, about to be read once from front to back."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor, self._start, self._length = descriptor, start, length
        self._asked = start
        self._absent: list[tuple[int, int]] = []

    def __enter__(self) -> Span:
        if self._length >= _LEAST_BYTES:
            self._absent = absent(self._descriptor, self._start, self._length)
        return self

    def ahead(self, position: int) -> None:
        """The reader is at `position`: what follows and is not cached is asked for."""
        end = self._start + self._length
        while self._absent and self._asked < min(position + _AHEAD_BYTES, end):
            size = min(_AHEAD_BYTES, end - self._asked)
            os.posix_fadvise(self._descriptor, self._asked, size, os.POSIX_FADV_WILLNEED)
            self._asked += size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for first, size in self._absent:
            os.posix_fadvise(self._descriptor, first, size, os.POSIX_FADV_DONTNEED)


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
