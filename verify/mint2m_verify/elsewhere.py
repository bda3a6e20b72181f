"""Files hashed by others for a signer, his machines or the ranks that wrote them: what each saw, and its digests.

The rule: this serves whoever signs, over machines that are his own. Names, kinds and executable bits are those that the
signer's machine sees; a digest from elsewhere is taken only for a file of the same size and time, and a report that
rests on one says so. A verification takes none: there the machines would be those of whoever is in question.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from threading import Event

from mint2m_verify.file_hash import Digests, Work, hash_file, unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A regular file as a machine sees it: its path in the tree, and what tells versions of it apart."""

    path: str
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedElsewhere:
    """A file that another machine read."""

    file: Listed
    digests: Digests

    def is_of(self, status: os.stat_result) -> bool:
        """Whether the file here is the one that was read there, as far as size and time tell."""
        return (self.file.size, self.file.modified_ns) == (status.st_size, status.st_mtime_ns)

    def below(self, folder: str) -> HashedElsewhere:
        """The same file, by its path in the tree that holds its own tree as `folder`."""
        return replace(self, file=replace(self.file, path=f"{folder}/{self.file.path}"))


def list_files(root: Path) -> tuple[Listed, ...]:
    """The regular files that this machine sees below `root`; none where it has no such directory."""
    return tuple(sorted(_files(root), key=lambda file: file.path))


def hash_there(root: Path, file: Listed) -> HashedElsewhere | None:
    """The digests of `file`, or None where it is not what was listed; no link is followed below `root`."""
    return _hashed(root, file.path, file)


def hash_now(root: Path, path: str) -> HashedElsewhere | None:
    """The digests of the file at `path` as it is; None where there is none, or it changes meanwhile."""
    return _hashed(root, path, None)


def _hashed(root: Path, path: str, wanted: Listed | None) -> HashedElsewhere | None:
    try:
        descriptor = _open(root, PurePosixPath(path))
    except OSError:
        return None
    try:
        before = os.fstat(descriptor)
        file = Listed(path=path, size=before.st_size, modified_ns=before.st_mtime_ns)
        if not stat.S_ISREG(before.st_mode) or file != (wanted or file):
            return None
        digests = hash_file(descriptor, before, Work(tell=_nobody, stopped=Event()), chunks=True)
        if digests.size != file.size or not unchanged(before, os.fstat(descriptor)):
            return None
        return HashedElsewhere(file=file, digests=digests)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _files(root: Path) -> Iterator[Listed]:
    for folder, _, names in os.walk(root, followlinks=False):
        for name in names:
            place = Path(folder) / name
            try:
                path, status = place.relative_to(root).as_posix(), place.lstat()
                path.encode("utf-8")
            except (OSError, UnicodeEncodeError):  # the signer's own walk says what is wrong with it
                continue
            if stat.S_ISREG(status.st_mode):
                yield Listed(path=path, size=status.st_size, modified_ns=status.st_mtime_ns)


def _open(root: Path, path: PurePosixPath) -> int:
    """Component by component, so that no link on the way leads out of the tree."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not hold anybody up
        return os.open(path.parts[-1], flags, dir_fd=folder)
    finally:
        os.close(folder)


def _nobody(_count: int) -> None:
    """Nobody watches."""
