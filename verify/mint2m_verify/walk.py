"""Reads a directory of untrusted files once: every name seen, every regular file hashed, nothing followed.

The rule: a file is opened once, relative to the open directory that listed it, without following links, and the bytes
that were hashed are the bytes that later checks parse. Looking twice would let a file be one thing to the hash and
another to the parser; following a link would let evidence borrow files from outside. What is parsed is never
memory-mapped, since a mapped file can change under its reader.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import BoundedSemaphore, Event, Lock
from typing import TypeAlias

from mint2m_verify.documents import TreeEntry
from mint2m_verify.elsewhere import HashedElsewhere
from mint2m_verify.file_hash import (
    CHUNK_BYTES,
    Digests,
    Work,
    chunk_count,
    hash_bytes,
    hash_chunk,
    hash_file,
    unchanged,
)
from mint2m_verify.files import TENSORS, too_large
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.hash_journal import HashJournal
from mint2m_verify.mapped_hash import MappedHashing
from mint2m_verify.statement import path_fault

__all__ = ["CHUNK_BYTES", "Hashing", "Progress", "ReadFile", "Snapshot", "hash_bytes", "read_tree", "shown_name"]

#: Called with what is being done, bytes done and bytes in all.
Progress: TypeAlias = Callable[[str, int, int], None]

_MOST_THREADS = 32
#: Pieces of work that wait for a thread; a file may consist of a hundred thousand.
_WAITING = 64
#: No wait is longer: a signal that comes just before one begins is seen only when it ends.
_LOOK_SECONDS = 0.5
_MAX_FILES = 200_000
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashing:
    """Which digests of a tree are computed; nothing here changes one that is.

    Args:
        committed: entries whose chunk digests something commits that the auditor trusts, by path. A large file whose
            chunks are these is that file, and its whole digest, which takes another pass that cannot be divided, is
            taken from the entry. A file that differs anywhere is hashed whole, so that findings name what lies there.
        chunks: whether chunk digests are wanted of files that are hashed whole.
        journal: digests of an earlier pass, and where those of this one go.
        elsewhere: what other machines of a signer read, by path; nothing of the kind counts for a verification.
        wanted: which regular files are read at all; by default every one.
    """

    committed: Mapping[str, TreeEntry] = field(default_factory=dict)
    chunks: bool = True
    journal: HashJournal | None = None
    elsewhere: Mapping[str, HashedElsewhere] = field(default_factory=dict)
    wanted: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A regular file as it was read: its tree entry, its identity on this machine, its bytes where they were kept.

    `by_chunks`: the chunk digests were computed and are the committed ones, the whole digest is as committed.
    `cached`: so many bytes were not read now; their digests came from a journal. `elsewhere`: another machine read it.
    """

    entry: TreeEntry
    device: int
    inode: int
    raw: bytes | None
    by_chunks: bool = False
    cached: int = 0
    elsewhere: bool = False

    @property
    def path(self) -> str:
        return self.entry.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All regular files below a directory, sorted by path, and what was found there instead of regular files."""

    files: tuple[ReadFile, ...]
    findings: tuple[Finding, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.entry.size for file in self.files)

    def joined_by(self, others: Mapping[str, bytes]) -> Snapshot:
        """As it will be once these files lie there, too.

        Raises:
            FindingError: `file.exists` where one does already, `tree.too-many` past the limit.
        """
        for file in self.files:
            if file.path in others:
                raise FindingError(found("file.exists", file=file.path))
        if len(self.files) + len(others) > _MAX_FILES:
            raise FindingError(found("tree.too-many", expected=f"at most {_MAX_FILES} files"))
        joined = (*self.files, *(_not_yet(path, raw) for path, raw in others.items()))
        return replace(self, files=tuple(sorted(joined, key=lambda file: file.path)))


def read_tree(
    root: Path, *, keep: Callable[[str], int], progress: Progress | None = None, hashing: Hashing | None = None
) -> Snapshot:
    """Read everything below `root`.

    Args:
        root: the directory; this one path may be a link, since the caller chose it.
        keep: for a path, the largest size at which its bytes are kept for parsing; 0 keeps none.
        progress: told as bytes are hashed.
        hashing: which digests; by default all, each computed now.

    Raises:
        FindingError: `input.missing` or `input.not-a-directory` for `root` itself, `tree.too-many` past the limits.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as fault:
        raise FindingError(found("input.missing", file=str(root))) from fault
    except NotADirectoryError as fault:
        raise FindingError(found("input.not-a-directory", file=str(root))) from fault
    except OSError as fault:
        raise FindingError(found("file.unreadable", file=str(root), actual=fault.strerror)) from fault
    meter = None if progress is None else _Meter(progress, total=_size_below(root))
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    with MappedHashing() as mapped, ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
        reader = _Reader(
            pool=pool, keep=keep, meter=meter, mapped=mapped, hashing=Hashing() if hashing is None else hashing
        )
        try:
            reader.directory(descriptor, "", depth=0)
            return reader.snapshot()
        except BaseException:
            reader.stop()  # leaving the pool waits for it, and a file may be terabytes
            raise
        finally:
            os.close(descriptor)


def _not_yet(path: str, raw: bytes) -> ReadFile:
    whole, pieces = hash_bytes(raw)
    entry = TreeEntry(path=path, size=len(raw), executable=False, sha256=whole, chunks=pieces)
    return ReadFile(entry=entry, device=0, inode=0, raw=raw)


def shown_name(name: str) -> str:
    """A file name that can be written down: bytes that are not UTF-8 appear as `\\xNN`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


class _Meter:
    """Adds up bytes from several threads."""

    def __init__(self, progress: Progress, *, total: int) -> None:
        self._progress, self._total, self._done, self._lock = progress, total, 0, Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress("hash", self._done, max(self._total, self._done))


class _Reader:
    """One walk: directories here, in name order; files on the pool, a bounded number at a time."""

    def __init__(
        self,
        *,
        pool: ThreadPoolExecutor,
        keep: Callable[[str], int],
        meter: _Meter | None,
        mapped: MappedHashing,
        hashing: Hashing,
    ) -> None:
        self._pool, self._keep, self._hashing, self._mapped = pool, keep, hashing, mapped
        mapped.expect(sum(entry.size for entry in hashing.committed.values()))
        self._slots = BoundedSemaphore(_WAITING)
        self._pending: list[Future[ReadFile | Finding]] = []
        self._findings: list[Finding] = []
        self._stopped = Event()
        tell = _nobody if meter is None else meter.add
        self._work = Work(tell=tell, stopped=self._stopped, journal=hashing.journal, mapped=mapped)

    def stop(self) -> None:
        """Nobody wants the answer any more."""
        self._stopped.set()

    def snapshot(self) -> Snapshot:
        """Waits for the hashing."""
        files: list[ReadFile] = []
        for future in self._pending:
            while not wait([future], timeout=_LOOK_SECONDS).done:
                pass
            result = future.result()
            if isinstance(result, Finding):
                self._findings.append(result)
                continue
            files.append(result)
            limit = self._keep(result.path)
            if limit and result.raw is None:
                self._findings.append(too_large(result.path, limit, result.entry.size))
        files.sort(key=lambda file: file.path)
        return Snapshot(
            files=tuple(files), findings=tuple(sorted(self._findings, key=lambda fault: (fault.file or "", fault.id)))
        )

    def directory(self, descriptor: int, prefix: str, *, depth: int) -> None:
        shown = prefix.rstrip("/") or "."
        before = os.fstat(descriptor).st_mtime_ns
        try:
            names = sorted(os.listdir(descriptor), key=os.fsencode)
        except OSError as fault:
            self._findings.append(found("file.unreadable", file=shown, actual=fault.strerror))
            return
        for name in names:
            self._entry(descriptor, name, prefix, depth=depth)
        if os.fstat(descriptor).st_mtime_ns != before:
            self._findings.append(found("tree.changed-while-read", file=shown))

    def _entry(self, directory: int, name: str, prefix: str, *, depth: int) -> None:
        path = prefix + name
        shown = shown_name(path)
        fault = "not UTF-8" if _is_undecodable(name) else path_fault(path)
        if fault is not None:
            self._findings.append(found("tree.name-invalid", file=shown, actual=fault))
            return
        try:
            # O_NONBLOCK: opening a pipe must not wait for a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(name, flags, dir_fd=directory)
        except OSError as error:
            self._findings.append(_open_fault(directory, name, shown, error))
            return
        mode = os.fstat(descriptor).st_mode
        wanted = self._hashing.wanted
        if stat.S_ISREG(mode) and (wanted is None or wanted(path)):
            self._submit(descriptor, path)
            return
        try:
            if stat.S_ISREG(mode):
                return
            if not stat.S_ISDIR(mode):
                self._findings.append(found("tree.special-file", file=shown, actual=_kind(mode)))
            elif depth >= _MAX_DEPTH:
                raise FindingError(found("tree.too-many", file=shown, expected=f"at most {_MAX_DEPTH} levels"))
            else:
                self.directory(descriptor, f"{path}/", depth=depth + 1)
        finally:
            os.close(descriptor)

    def _submit(self, descriptor: int, path: str) -> None:
        if len(self._pending) >= _MAX_FILES:
            os.close(descriptor)
            raise FindingError(found("tree.too-many", file=path, expected=f"at most {_MAX_FILES} files"))
        status = os.fstat(descriptor)
        known = self._hashing.elsewhere.get(path)
        if known is not None and not self._keep(path) and known.is_of(status):
            self._pending.append(self._taken(descriptor, path, status, known))
            return
        committed = self._hashing.committed.get(path)
        if committed is None:
            self._mapped.expect(status.st_size)
        if committed is None or self._keep(path) or not _fits(committed, status):
            self._take_slot()
            self._pending.append(self._pool.submit(self._read, descriptor, path))
            return
        file = _ChunkedFile(descriptor, status, committed)
        self._pending.append(file.answer)
        for index in range(chunk_count(status.st_size)):
            self._take_slot()
            self._pool.submit(self._chunk, file, index)

    def _take_slot(self) -> None:
        while not self._slots.acquire(timeout=_LOOK_SECONDS):
            pass

    def _taken(
        self, descriptor: int, path: str, status: os.stat_result, known: HashedElsewhere
    ) -> Future[ReadFile | Finding]:
        answer: Future[ReadFile | Finding] = Future()
        answer.set_result(_read_as(descriptor, path, status, known.digests, elsewhere=True))
        os.close(descriptor)
        self._work.tell(status.st_size)
        return answer

    def _read(self, descriptor: int, path: str) -> ReadFile | Finding:
        try:
            return _read_file(descriptor, path, limit=self._keep(path), work=self._work, chunks=self._hashing.chunks)
        except OSError as error:
            return found("file.unreadable", file=path, actual=error.strerror)
        finally:
            os.close(descriptor)
            self._slots.release()

    def _chunk(self, file: _ChunkedFile, index: int) -> None:
        try:
            file.hash(index, self._work)
        finally:
            self._slots.release()


class _ChunkedFile:
    """A large file whose chunks are hashed by whichever threads are free; the last of them answers for the file."""

    def __init__(self, descriptor: int, status: os.stat_result, committed: TreeEntry) -> None:
        self.answer: Future[ReadFile | Finding] = Future()
        self._descriptor, self._status, self._committed = descriptor, status, committed
        self._chunks = [""] * chunk_count(status.st_size)
        self._left, self._cached = len(self._chunks), 0
        self._fault: BaseException | None = None
        self._lock = Lock()

    def hash(self, index: int, work: Work) -> None:
        """Hash a chunk, unless an earlier one could not be read."""
        try:
            if self._fault is None:
                sha256, cached = hash_chunk(self._descriptor, self._status, index, work)
                with self._lock:
                    self._chunks[index] = sha256
                    self._cached += cached
        except BaseException as fault:
            self._fault = fault
            raise
        finally:
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                self._finish(work)

    def _finish(self, work: Work) -> None:
        path = self._committed.path
        try:
            if isinstance(self._fault, OSError):
                raise self._fault
            if self._fault is not None:
                self.answer.set_exception(self._fault)
            elif tuple(self._chunks) == self._committed.chunks:
                self.answer.set_result(_read_as(self._descriptor, path, self._status, self._digests(), by_chunks=True))
            else:
                self.answer.set_result(_read_file(self._descriptor, path, limit=0, work=work, chunks=True))
        except OSError as error:
            self.answer.set_result(found("file.unreadable", file=path, actual=error.strerror))
        except BaseException as fault:
            self.answer.set_exception(fault)
            raise
        finally:
            os.close(self._descriptor)

    def _digests(self) -> Digests:
        want = self._committed
        return Digests(size=self._status.st_size, sha256=want.sha256, chunks=want.chunks, cached=self._cached)


def _fits(committed: TreeEntry, status: os.stat_result) -> bool:
    """Whether chunk digests can decide: a file of one chunk has its whole digest anyway."""
    count = chunk_count(status.st_size)
    return count > 1 and (committed.size, len(committed.chunks)) == (status.st_size, count)


def _nobody(_count: int) -> None:
    """Nobody watches."""


def _read_file(descriptor: int, path: str, *, limit: int, work: Work, chunks: bool) -> ReadFile | Finding:
    before = os.fstat(descriptor)
    if limit and before.st_size > limit and not path.endswith(TENSORS):
        return too_large(path, limit, before.st_size)
    if not limit or before.st_size > limit:  # tensors that are too large to be kept are hashed all the same
        return _read_as(descriptor, path, before, hash_file(descriptor, before, work, chunks=chunks))
    with os.fdopen(descriptor, "rb", closefd=False) as stream:
        raw = stream.read(limit + 1)
    whole, pieces = hash_bytes(raw)
    work.tell(len(raw))
    return _read_as(descriptor, path, before, Digests(size=len(raw), sha256=whole, chunks=pieces), raw=raw)


def _read_as(
    descriptor: int,
    path: str,
    before: os.stat_result,
    digests: Digests,
    *,
    raw: bytes | None = None,
    by_chunks: bool = False,
    elsewhere: bool = False,
) -> ReadFile | Finding:
    """The file as it was read, if it still is what it was `before`."""
    if not unchanged(before, os.fstat(descriptor)) or digests.size != before.st_size:
        return found("tree.changed-while-read", file=path)
    entry = TreeEntry(
        path=path,
        size=digests.size,
        executable=bool(before.st_mode & 0o111),
        sha256=digests.sha256,
        chunks=digests.chunks,
    )
    return ReadFile(
        entry=entry,
        device=before.st_dev,
        inode=before.st_ino,
        raw=raw,
        by_chunks=by_chunks,
        cached=digests.cached,
        elsewhere=elsewhere,
    )


def _open_fault(directory: int, name: str, shown: str, error: OSError) -> Finding:
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return found("tree.symlink", file=shown, actual=f"-> {shown_name(os.readlink(name, dir_fd=directory))}")
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return found("tree.special-file", file=shown, actual=_kind(mode))
    except OSError:
        return found("tree.changed-while-read", file=shown)
    return found("file.unreadable", file=shown, actual=error.strerror)


def _is_undecodable(name: str) -> bool:
    return not name.isascii() and any("\udc80" <= char <= "\udcff" for char in name)


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
    return next((name for test, name in kinds if test(mode)), "a device")


def _size_below(root: Path) -> int:
    """Bytes below `root`, for a progress bar only: this look is not trusted for anything."""
    total = 0
    for directory, _, names in os.walk(root, followlinks=False):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - bytes may be no path
            except OSError:
                continue
    return total
