"""Bytes from and to disk: read once without following links, written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from mint2m_verify.finding import Finding, FindingError, found

#: A document longer than this is not a document of ours.
DOCUMENT_LIMIT = 64 << 20

#: How the name of a file of tensors ends.
TENSORS = ".safetensors"


def read_once(path: Path, *, name: str | None = None, limit: int = DOCUMENT_LIMIT) -> bytes:
    """All bytes of a regular file, opened once and without following a link at its last component.

    What was read is what the caller hashes and parses; the path is not opened again.

    Raises:
        FindingError: `file.missing`, `file.not-regular`, `file.too-large` (`tensors.too-large` where the name ends in
            `.safetensors`) or `file.unreadable`, for `name` or the path.
    """
    shown = name if name is not None else str(path)
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as fault:
        raise FindingError(_open_fault(fault, shown)) from fault
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FindingError(found("file.not-regular", file=shown))
        if status.st_size > limit:
            raise FindingError(too_large(shown, limit, status.st_size))
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            raw = stream.read(limit + 1)
    except OSError as fault:
        raise FindingError(found("file.unreadable", file=shown, actual=fault.strerror)) from fault
    finally:
        os.close(descriptor)
    if len(raw) > limit:
        raise FindingError(too_large(shown, limit, len(raw)))
    return raw


def too_large(shown: str, limit: int, size: int) -> Finding:
    """The finding for a file of more than `limit` bytes.

    A document's limit belongs to its format, so that a longer one is malformed. Tensors have none: there the limit is
    the reader's own, and passing it says nothing about who wrote them.
    """
    id = "tensors.too-large" if shown.endswith(TENSORS) else "file.too-large"
    return found(id, file=shown, expected=f"at most {limit} bytes", actual=f"{size} bytes")


def write_atomic(path: Path, raw: bytes, *, mode: int = 0o644) -> None:
    """Write `raw` under a temporary name, sync it, rename it, sync the directory; the old file stands until then.

    Raises:
        FindingError: `file.unwritable`; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as fault:
        raise FindingError(found("file.unwritable", file=str(path), actual=fault.strerror)) from fault


def sync_directory(path: Path) -> None:
    """Make a rename inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_fault(fault: OSError, shown: str) -> Finding:
    if fault.errno in (errno.ENOENT, errno.ENOTDIR):
        return found("file.missing", file=shown)
    if fault.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
        return found("file.not-regular", file=shown)
    return found("file.unreadable", file=shown, actual=fault.strerror)
