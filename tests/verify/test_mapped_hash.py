"""Hashing in place by processes of their own: the digests are hashlib's, and whatever happens to one, none is wrong."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from mint2m_verify import mapped_hash, page_cache
from mint2m_verify.mapped_hash import MappedHashing
from mint2m_verify.walk import CHUNK_BYTES, ReadFile, read_tree

MIB = 1 << 20
CONTENT = hashlib.shake_256(b"mapped").digest(20 * MIB + 5)  # more than two windows, and no whole page


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files count as worth it."""
    monkeypatch.setattr(mapped_hash, "_WORTH_BYTES", 0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What the processes said."""
    said: list[str | None] = []
    genuine = MappedHashing.sha256

    def noted(self: MappedHashing, descriptor: int, start: int, length: int, stopped: Event) -> str | None:
        said.append(genuine(self, descriptor, start, length, stopped))
        return said[-1]

    monkeypatch.setattr(MappedHashing, "sha256", noted)
    return said


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "content").write_bytes(CONTENT)
    opened = os.open(tmp_path / "content", os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that takes minutes to hash; nothing of it is on disk, so the look at the cache is left out."""
    path = tmp_path / "endless"
    with path.open("wb") as stream:
        stream.truncate(256 << 30)
    monkeypatch.setattr(mapped_hash, "is_cached", lambda *_: True)
    return path


def until(what: Callable[[], bool]) -> None:
    """Waits for what is bound to come."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def maps(process: int, path: Path) -> bool:
    """Whether a process has the file before it."""
    try:
        return str(path) in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


def test_digests_are_those_of_hashlib_at_any_page_and_length(descriptor: int) -> None:
    spans = [(0, len(CONTENT)), (0, 8 * MIB), (4096, 4 * MIB), (8 * MIB, 12 * MIB + 5), (16 * MIB, 4 * MIB + 4)]
    with MappedHashing() as mapped:
        for start, length in spans:
            found = mapped.sha256(descriptor, start, length, Event())
            assert found == hashlib.sha256(CONTENT[start : start + length]).hexdigest(), (start, length)
        assert len(mapped._all) == 1


def test_a_span_past_the_end_is_not_answered_and_the_process_goes_on(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_hash, "is_cached", lambda *_: True)
    with MappedHashing() as mapped:
        assert mapped.sha256(descriptor, 16 * MIB, 64 * MIB, Event()) is None
        assert mapped.sha256(descriptor, 0, len(CONTENT), Event()) == hashlib.sha256(CONTENT).hexdigest()
        assert len(mapped._all) == 1


def test_what_is_small_little_or_not_cached_is_left_to_whoever_asks(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MappedHashing() as mapped:
        assert mapped.sha256(descriptor, 0, MIB, Event()) is None
        monkeypatch.setattr(mapped_hash, "_WORTH_BYTES", 1)
        assert mapped.sha256(descriptor, 0, len(CONTENT), Event()) is None
        mapped.expect(1)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 8 * MIB, 4 * MIB, os.POSIX_FADV_DONTNEED)
        if page_cache.absent(descriptor, 0, len(CONTENT)):  # a file system in memory keeps it
            assert mapped.sha256(descriptor, 0, len(CONTENT), Event()) is None
        assert not mapped._all


def test_where_no_process_can_be_started_the_tree_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str | None]
) -> None:
    (tmp_path / "content").write_bytes(CONTENT)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    assert digest_in(tmp_path) == hashlib.sha256(CONTENT).hexdigest()
    assert answers == [None]


def test_a_tree_is_hashed_by_them_and_none_is_left(tmp_path: Path, answers: list[str | None]) -> None:
    (tmp_path / "content").write_bytes(CONTENT)
    assert digest_in(tmp_path) == hashlib.sha256(CONTENT).hexdigest()
    assert answers == [hashlib.sha256(CONTENT).hexdigest()]
    assert not children()


def test_a_file_that_is_cut_ends_the_process_and_is_a_finding(
    tmp_path: Path, endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal of a mapped file that is gone would otherwise end the verification."""
    ended = []
    genuine = mapped_hash._Process.kill

    def kill(self: mapped_hash._Process) -> None:
        found = os.waitid(os.P_PID, self.id, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        ended.append(None if found is None else found.si_status)
        genuine(self)

    monkeypatch.setattr(mapped_hash._Process, "kill", kill)
    size = endless.stat().st_size
    monkeypatch.setattr("mint2m_verify.file_hash.CHUNK_BYTES", size)  # asked for in one go
    for _ in range(20):  # cut just between two of its windows, it goes on, and says that it cannot
        os.truncate(endless, size)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read_tree, tmp_path, keep=lambda _: 0)
            until(lambda: any(maps(process, endless) for process in children()))
            os.truncate(endless, 0)
            snapshot = reading.result(timeout=60)
        assert [fault.id for fault in snapshot.findings] == ["tree.changed-while-read"]
        if signal.SIGBUS in ended:
            break
    assert signal.SIGBUS in ended


def test_a_process_that_is_killed_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str | None]
) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    (tmp_path / "b").write_bytes(CONTENT[1:])
    genuine = mapped_hash._Process.sha256

    def killed(self: mapped_hash._Process, descriptor: int, start: int, length: int, stopped: Event) -> str | None:
        os.kill(self.id, signal.SIGKILL)
        return genuine(self, descriptor, start, length, stopped)

    monkeypatch.setattr(mapped_hash._Process, "sha256", killed)
    snapshot = read_tree(tmp_path, keep=lambda _: 0)
    assert [file.entry.sha256 for file in snapshot.files] == [
        hashlib.sha256(content).hexdigest() for content in (CONTENT, CONTENT[1:])
    ]
    assert answers == [None, None]


def test_whoever_waits_for_one_can_be_stopped(endless: Path) -> None:
    opened, stopped = os.open(endless, os.O_RDONLY), Event()
    with MappedHashing() as mapped, ThreadPoolExecutor(1) as pool:
        asked: Future[str | None] = pool.submit(mapped.sha256, opened, 0, endless.stat().st_size, stopped)
        until(lambda: any(maps(process, endless) for process in children()))
        stopped.set()
        with pytest.raises(CancelledError):
            asked.result(timeout=60)
    os.close(opened)
    assert not children()


def test_one_ends_by_itself_with_whoever_started_it(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    process = os.fork()
    if process == 0:
        found = mapped_hash._Process()
        os.write(theirs, str(found.id).encode())
        os._exit(0)  # as if killed: nothing is tidied up
    os.waitpid(process, 0)
    started = int(os.read(ours, 32))
    os.close(ours)
    os.close(theirs)
    until(lambda: not Path(f"/proc/{started}").exists() or Path(f"/proc/{started}/stat").read_text().split()[2] == "Z")


def digest_in(root: Path) -> str:
    """The whole digest of the one file there."""
    snapshot = read_tree(root, keep=lambda _: 0)
    assert not snapshot.findings
    (file,) = snapshot.files
    assert isinstance(file, ReadFile)
    assert file.entry.size <= CHUNK_BYTES
    return file.entry.sha256


def children() -> list[int]:
    """Processes that this one started and that hash."""
    listed = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    return [int(process) for words in listed for process in words if _hashes(process)]


def _hashes(process: str) -> bool:
    try:
        return b"mapped_hash_worker" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
