"""The artifact that a user names: a file, or only its digest.

The rule: a file is opened once, and its name is the last part of the path that the user typed. Given as `sha256:HEX`
nothing but the digest is known, and nothing but the digest is compared. A file of that very name is `./sha256:…`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from pathlib import Path

from mint2m_verify.finding import FindingError, found
from mint2m_verify.named_input import resolve_named
from mint2m_verify.sigstore_bundle.model import Artifact

#: Files up to here are held, so that an Ed25519 signature of their bytes can be verified.
HELD_LIMIT = 64 << 20

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_PIECE = 1 << 20


def named_artifact(text: str) -> Artifact:
    """The artifact that a command line names.

    Raises:
        FindingError: `input.missing`, `file.not-regular` or `file.unreadable`.
    """
    digest = _DIGEST.fullmatch(text)
    return Artifact(name=None, sha256=digest[1]) if digest is not None else read_artifact(Path(text))


def read_artifact(path: Path) -> Artifact:
    """The file at `path`, hashed; its bytes are held where there are not too many."""
    resolved = resolve_named(path)
    total = hashlib.sha256()
    held: list[bytes] = []
    size = 0
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FindingError(found("file.not-regular", file=str(path)))
            while piece := os.read(descriptor, _PIECE):
                total.update(piece)
                size += len(piece)
                if size <= HELD_LIMIT:
                    held.append(piece)
                else:
                    held.clear()
        finally:
            os.close(descriptor)
    except OSError as fault:
        if fault.errno in (errno.EISDIR, errno.ENXIO, errno.ELOOP):
            raise FindingError(found("file.not-regular", file=str(path))) from fault
        raise FindingError(found("file.unreadable", file=str(path), actual=fault.strerror)) from fault
    content = b"".join(held) if size <= HELD_LIMIT else None
    return Artifact(name=path.name, sha256=total.hexdigest(), content=content)
