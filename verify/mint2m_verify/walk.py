"""Reads a directory of untrusted files once: every name seen, every regular file hashed, nothing followed.

The rule: a file is opened once, relative to the open directory that listed it, without following links, and the bytes
that were hashed are the bytes that later checks parse. Looking twice would let a file be one thing to the hash and
another to the parser; following a link would let evidence borrow files from outside. Nothing is memory-mapped, since a
mapped file can change under its reader.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore, Event, Lock
from typing import TypeAlias

from mint2m_verify.documents import TreeEntry
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.statement import path_fault

#: A manifest commits each consecutive piece of this length, so that a change can be placed.
CHUNK_BYTES = 64 << 20

#: Called with what is being done, bytes done and bytes in all.
Progress: TypeAlias = Callable[[str, int, int], None]

_BLOCK_BYTES = 1 << 20
_THREADS = 2
_OPEN_FILES = 64
_MAX_FILES = 200_000
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A regular file as it was read: its tree entry, its identity on this machine, its bytes where they were kept."""

    entry: TreeEntry
    device: int
    inode: int
    raw: bytes | None

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


def read_tree(root: Path, *, keep: Callable[[str], int], progress: Progress | None = None) -> Snapshot:
    """Read everything below `root`.

    Args:
        root: the directory; this one path may be a link, since the caller chose it.
        keep: for a path, the largest size at which its bytes are kept for parsing; 0 keeps none.
        progress: told as bytes are hashed.

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
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hash") as pool:
        reader = _Reader(pool=pool, keep=keep, meter=meter)
        try:
            reader.directory(descriptor, "", depth=0)
            return reader.snapshot()
        except BaseException:
            reader.stop()  # leaving the pool waits for it, and a file may be terabytes
            raise
        finally:
            os.close(descriptor)


def hash_bytes(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """SHA-256 of `raw` and of each of its chunks."""
    whole = hashlib.sha256(raw).hexdigest()
    if len(raw) <= CHUNK_BYTES:
        return whole, (whole,) if raw else ()
    pieces = (memoryview(raw)[start : start + CHUNK_BYTES] for start in range(0, len(raw), CHUNK_BYTES))
    return whole, tuple(hashlib.sha256(piece).hexdigest() for piece in pieces)


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

    def __init__(self, *, pool: ThreadPoolExecutor, keep: Callable[[str], int], meter: _Meter | None) -> None:
        self._pool, self._keep, self._meter = pool, keep, meter
        self._slots = BoundedSemaphore(_OPEN_FILES)
        self._pending: list[Future[ReadFile | Finding]] = []
        self._findings: list[Finding] = []
        self._stopped = Event()

    def stop(self) -> None:
        """Nobody wants the answer any more."""
        self._stopped.set()

    def snapshot(self) -> Snapshot:
        """Waits for the hashing."""
        files: list[ReadFile] = []
        for future in self._pending:
            result = future.result()
            if isinstance(result, Finding):
                self._findings.append(result)
            else:
                files.append(result)
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
        if stat.S_ISREG(mode):
            self._submit(descriptor, path)
            return
        try:
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
        self._slots.acquire()
        self._pending.append(self._pool.submit(self._read, descriptor, path))

    def _read(self, descriptor: int, path: str) -> ReadFile | Finding:
        try:
            return _read_file(descriptor, path, limit=self._keep(path), meter=self._meter, stopped=self._stopped)
        except OSError as error:
            return found("file.unreadable", file=path, actual=error.strerror)
        finally:
            os.close(descriptor)
            self._slots.release()


def _read_file(descriptor: int, path: str, *, limit: int, meter: _Meter | None, stopped: Event) -> ReadFile | Finding:
    before = os.fstat(descriptor)
    raw: bytes | None = None
    if limit and before.st_size > limit:
        actual = f"{before.st_size} bytes"
        return found("file.too-large", file=path, expected=f"at most {limit} bytes", actual=actual)
    if limit:
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            raw = stream.read(limit + 1)
        size = len(raw)
        whole, chunks = hash_bytes(raw)
        if meter is not None:
            meter.add(size)
    else:
        size, whole, chunks = _hash_stream(descriptor, expected=before.st_size, meter=meter, stopped=stopped)
    after = os.fstat(descriptor)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns) or size != before.st_size:
        return found("tree.changed-while-read", file=path)
    executable = bool(before.st_mode & 0o111)
    entry = TreeEntry(path=path, size=size, executable=executable, sha256=whole, chunks=chunks)
    return ReadFile(entry=entry, device=before.st_dev, inode=before.st_ino, raw=raw)


def _hash_stream(
    descriptor: int, *, expected: int, meter: _Meter | None, stopped: Event
) -> tuple[int, str, tuple[str, ...]]:
    """Size, SHA-256 and chunk digests of an open file, in bounded memory.

    A file of one chunk is hashed once. A larger one is hashed whole and by chunk, the two on two threads. One that is
    longer than `expected` is not read to its end: whoever appends as fast as we read would keep us for ever.
    """
    large = expected > CHUNK_BYTES
    whole, piece, size = hashlib.sha256(), hashlib.sha256(), 0
    chunks: list[str] = []
    buffers = (bytearray(_BLOCK_BYTES), bytearray(_BLOCK_BYTES))  # one is hashed while the other is filled
    with _helper(large) as helper:
        busy: Future[None] | None = None
        turn = 0
        while count := os.readv(descriptor, [buffers[turn]]):
            if stopped.is_set():
                raise CancelledError
            block = memoryview(buffers[turn])[:count]
            if helper is None:
                whole.update(block)
            else:
                if busy is not None:
                    busy.result()
                busy = helper.submit(whole.update, block)
                room = CHUNK_BYTES - size % CHUNK_BYTES
                piece.update(block[:room])
                if count >= room:
                    chunks.append(piece.hexdigest())
                    piece = hashlib.sha256(block[room:])
            size += count
            turn = 1 - turn
            if meter is not None:
                meter.add(count)
            if size > expected:
                break
        if busy is not None:
            busy.result()
    digest = whole.hexdigest()
    if helper is None:
        return size, digest, (digest,) if size else ()
    if size % CHUNK_BYTES:
        chunks.append(piece.hexdigest())
    return size, digest, tuple(chunks)


@contextmanager
def _helper(wanted: bool) -> Iterator[ThreadPoolExecutor | None]:
    if not wanted:
        yield None
        return
    with ThreadPoolExecutor(1, thread_name_prefix="hash-whole") as helper:
        yield helper


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
