"""Digests of a pass over a tree, kept outside it, so that an interrupted pass goes on where it stopped.

The rule: a digest taken from a journal was computed from bytes that lay there then, not now. It is used for the pass
that was interrupted, or where the auditor asks for cached digests, and the report says so either way. An entry belongs
to a file by device, inode, size and time of change, which no program sets; a file that changed shortly before it was
read gets none, since a second change in the same tick of the clock would not show. Whoever can write the journal, or
set the clock of the machine, decides what the report says is cached: it belongs to the auditor alone.

Lines of text, each with a check of its own, appended as digests are computed. From the first line that does not check
on, the journal is cut: a lost line costs the hashing of one piece, a damaged one must never be believed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from mint2m_verify.files import write_atomic
from mint2m_verify.finding import FindingError, found

_HEAD = "mint2m.hash-journal/v1"
_LINE = re.compile(r"d (\d+) (\d+) (\d+) (\d+) (\d+|whole) ([0-9a-f]{64}) ([0-9a-f]{8})")
_CHECK_DIGITS = 8

#: A file that changed this shortly before it is read may change again without a new time of change.
_SETTLED_NS = 2 * 10**9

#: 300 bytes for each 64 MiB of 100 TB; a longer file is no journal of ours.
_MOST_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class FileKey:
    """What a file was when it was read: another of these is another file, or another content."""

    device: int
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileKey:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)


class HashJournal:
    """The journal of one pass; made by `open_journal`. Threads may share it."""

    def __init__(self, descriptor: int, path: Path, known: dict[FileKey, dict[str, bytes]]) -> None:
        self._descriptor, self._path, self._known, self._lock = descriptor, path, known, Lock()

    def chunk(self, key: FileKey, index: int) -> str | None:
        """The digest of a 64 MiB piece of the file, where it is known."""
        return self._get(key, str(index))

    def whole(self, key: FileKey) -> str | None:
        """The digest of the whole file, where it is known."""
        return self._get(key, "whole")

    def add_chunk(self, key: FileKey, index: int, sha256: str) -> None:
        """Keep what was computed."""
        self._add(key, str(index), sha256)

    def add_whole(self, key: FileKey, sha256: str) -> None:
        """Keep what was computed."""
        self._add(key, "whole", sha256)

    def _get(self, key: FileKey, part: str) -> str | None:
        digest = self._known.get(key, {}).get(part)
        return None if digest is None else digest.hex()

    def _add(self, key: FileKey, part: str, sha256: str) -> None:
        if not key.changed_ns < time.time_ns() - _SETTLED_NS:
            return
        self._append(f"d {key.device} {key.inode} {key.size} {key.changed_ns} {part} {sha256}")

    def finish(self) -> None:
        """The pass is over: the next one begins anew, unless cached digests are asked for."""
        self._append("end")

    def _append(self, words: str) -> None:
        """One write for one line: it outlives the process, and what a crash of the machine tears is cut later."""
        try:
            with self._lock:
                os.write(self._descriptor, _line(words))
        except OSError as fault:  # the journal's, not that of the file that was read
            raise FindingError(found("file.unwritable", file=str(self._path), actual=fault.strerror)) from fault


@contextmanager
def open_journal(path: Path, *, root: Path, use_cached: bool) -> Iterator[HashJournal]:
    """The journal in the file `path`, made where it is not there.

    Args:
        root: the tree that is hashed; the journal must not lie in it, where the evidence could bring its own.
        use_cached: take digests of passes that ended, too.

    Raises:
        FindingError: `usage.invalid` for a file in the tree, one that others may write, one that is no journal or one
            in use; `file.unreadable`, `file.unwritable`.
    """
    if path.resolve().is_relative_to(root.resolve()):
        raise _refused("--hash-journal outside the tree that is hashed", path)
    try:
        if not os.path.lexists(path):
            write_atomic(path, _line(_HEAD), mode=0o600)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as fault:
        raise FindingError(found("file.unreadable", file=str(path), actual=fault.strerror)) from fault
    try:
        _check_owner(descriptor, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise _refused("--hash-journal that no other command is using", path) from fault
        known = _read(descriptor, path, use_cached=use_cached)
        yield HashJournal(descriptor, path, known)
    finally:
        os.close(descriptor)


def _check_owner(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISREG(status.st_mode) or others or status.st_uid != os.geteuid():
        raise _refused("--hash-journal that is a file of your own which nobody else may write", path)


def _read(descriptor: int, path: Path, *, use_cached: bool) -> dict[FileKey, dict[str, bytes]]:
    """What is known; the file is cut after its last good line, and emptied where a new pass begins."""
    size = os.fstat(descriptor).st_size
    if size > _MOST_BYTES:
        raise _refused(f"--hash-journal of at most {_MOST_BYTES} bytes", path)
    known: dict[FileKey, dict[str, bytes]] = {}
    ended, good = False, 0
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        for number, raw in enumerate(stream):
            words = _checked(raw)
            if number == 0:
                if words != _HEAD:
                    raise _refused("--hash-journal that mint2m wrote", path)
            elif words is None:
                break
            elif words == "end":
                ended = True
                if not use_cached:
                    known.clear()
            elif not _keep(known, raw):
                break
            else:
                ended = False
            good += len(raw)
    if good == 0:
        raise _refused("--hash-journal that mint2m wrote", path)
    if ended and not use_cached:
        good = len(_line(_HEAD))
    if good != size:
        os.ftruncate(descriptor, good)
    return known


def _keep(known: dict[FileKey, dict[str, bytes]], raw: bytes) -> bool:
    match = _LINE.fullmatch(raw.decode("ascii").rstrip("\n"))
    if match is None:
        return False
    device, inode, size, changed, part, sha256, _ = match.groups()
    key = FileKey(int(device), int(inode), int(size), int(changed))
    known.setdefault(key, {})[part] = bytes.fromhex(sha256)
    return True


def _line(words: str) -> bytes:
    """`words` and the beginning of their SHA-256: enough to see a torn or zeroed line."""
    raw = words.encode("ascii")
    return raw + b" " + hashlib.sha256(raw).hexdigest()[:_CHECK_DIGITS].encode("ascii") + b"\n"


def _checked(raw: bytes) -> str | None:
    """The words of a line; None where its check does not fit, or its end is missing."""
    try:
        words = raw.decode("ascii").rpartition(" ")[0]
    except UnicodeDecodeError:
        return None
    return words if raw == _line(words) else None


def _refused(expected: str, path: Path) -> FindingError:
    return FindingError(found("usage.invalid", expected=expected, actual=str(path)))
