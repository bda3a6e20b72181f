"""The page cache before and after a reading. The witness is written out here: a mapping, asked page by page."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from mint2m_verify.walk import read_tree

SIZE = 24 << 20
PAGE = mmap.PAGESIZE


def resident(path: Path) -> list[bool]:
    """For each page of the file whether it is cached."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, SIZE, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        answer = (ctypes.c_ubyte * (SIZE // PAGE))()
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(SIZE), answer) == 0
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(SIZE))
    finally:
        os.close(descriptor)
    return [bool(page & 1) for page in answer]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file on disk, of which nothing is cached; skipped where the file system keeps files in memory only."""
    path = tmp_path / "tree/file"
    path.parent.mkdir()
    with path.open("wb") as stream:
        stream.write(os.urandom(SIZE))
        stream.flush()
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(resident(path)):
        pytest.skip("this file system does not drop cached pages")
    return path


def test_a_file_that_was_not_cached_is_not_cached_afterwards(written: Path) -> None:
    read_tree(written.parent, keep=lambda _: 0)
    assert sum(resident(written)) <= SIZE // PAGE // 50  # the kernel may still be bringing in what it was asked for


def test_a_file_that_was_cached_stays(written: Path) -> None:
    written.read_bytes()
    before = resident(written)
    assert all(before)
    read_tree(written.parent, keep=lambda _: 0)
    assert resident(written) == before


def test_of_a_file_that_was_cached_in_part_that_part_stays(written: Path) -> None:
    descriptor = os.open(written, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no more is brought in than is read
    os.pread(descriptor, 4 << 20, 8 << 20)
    os.close(descriptor)
    before = resident(written)
    assert any(before) and not all(before)
    read_tree(written.parent, keep=lambda _: 0)
    after = resident(written)
    assert all(now for was, now in zip(before, after, strict=True) if was)
    assert sum(after) <= sum(before) + SIZE // PAGE // 50
