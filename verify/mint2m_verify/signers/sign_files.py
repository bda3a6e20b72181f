"""Signs files: each gets a bundle of its own beside it, `F.sigstore.json`.

The rule: all inputs and all places are looked at before the first signature, no output that exists is replaced, and
what is signed is the digest of bytes that were read once.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.finding import FindingError, found
from mint2m_verify.named_input import read_named, resolve_named
from mint2m_verify.signers.signer import Signer
from mint2m_verify.signing import create_file

SUFFIX = ".sigstore.json"

#: Above this, only a signer that signs digests can sign a file: the others hold all of it in memory.
WHOLE_LIMIT = 256 << 20

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedFile:
    """A file, its SHA-256 and the bundle over it."""

    file: Path
    sha256: str
    bundle: Path


def sign_files(files: Sequence[Path], signer: Signer, *, output: Path | None = None) -> tuple[SignedFile, ...]:
    """Sign each file; `output` is the bundle's place where there is one file.

    Raises:
        FindingError: `usage.invalid`, `file.exists`, `input.missing`, `file.*`, `signer.*`. Bundles of files before the
            one that failed stay: they are whole and true.
    """
    if output is not None and len(files) != 1:
        raise FindingError(found("usage.invalid", expected="one file with --output", actual=f"{len(files)} files"))
    places = [file.with_name(file.name + SUFFIX) if output is None else output for file in files]
    if len(set(places)) != len(places):
        raise FindingError(found("usage.invalid", expected="each file once"))
    for file, place in zip(files, places, strict=True):
        resolve_named(file)
        if place.exists() or place.is_symlink():
            raise FindingError(found("file.exists", file=str(place)))
    return tuple(_sign(file, place, signer) for file, place in zip(files, places, strict=True))


def _sign(file: Path, place: Path, signer: Signer) -> SignedFile:
    digest = _digest(file)
    try:
        bundle = signer.sign_digest(digest)
    except FindingError as fault:
        if fault.finding.id != "signer.needs-bytes":
            raise
        raw = read_named(file, limit=WHOLE_LIMIT)
        digest = hashlib.sha256(raw).digest()
        bundle = signer.sign_artifact(raw)
    create_file(place, bundle)
    return SignedFile(file=file, sha256=digest.hex(), bundle=place)


def _digest(file: Path) -> bytes:
    """SHA-256 of a regular file of any size, in pieces."""
    digest, buffer = hashlib.sha256(), bytearray(_CHUNK)
    view = memoryview(buffer)
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(resolve_named(file), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FindingError(found("file.not-regular", file=str(file)))
            while count := stream.readinto(buffer):
                digest.update(view[:count])
    except OSError as fault:
        raise FindingError(found("file.unreadable", file=str(file), actual=fault.strerror)) from fault
    return digest.digest()
