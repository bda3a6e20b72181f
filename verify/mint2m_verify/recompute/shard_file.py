"""Tensors of a safetensors file that is too large to be held: one at a time, from a file that is opened once.

The rule: the file is hashed whole before anything of it is believed, and each tensor's own digest is taken on the way;
a tensor that is read later must still have it. So the bytes that are computed with are the bytes that were committed,
and no more than one tensor a file is in memory.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mint2m_verify.finding import FindingError, found
from mint2m_verify.recompute.tensors import Floats, elements, header_end, read_layout

_BLOCK_BYTES = 1 << 20


class ShardFile(Mapping[str, Floats]):
    """The tensors of one file by name, in name order; each is read when it is asked for."""

    def __init__(self, path: Path, *, name: str, sha256: str) -> None:
        """Open, hash and lay out.

        Args:
            path: where the file lies.
            name: what findings call it.
            sha256: what its bytes must hash to.

        Raises:
            FindingError: `file.*`, `tensor.*`, `json.*`, or `tree.changed-while-read` for other bytes.
        """
        self._name = name
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as fault:
            raise FindingError(found("file.unreadable", file=name, actual=fault.strerror)) from fault
        try:
            status = os.fstat(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FindingError(found("file.not-regular", file=name))
            self._begin = header_end(os.pread(self._descriptor, 8, 0), status.st_size, file=name)
            header = os.pread(self._descriptor, self._begin - 8, 8)
            self._pieces = {piece.name: piece for piece in read_layout(header, status.st_size - self._begin, file=name)}
            self._digests = self._hash(status.st_size, sha256)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Floats:
        piece = self._pieces[name]
        raw = os.pread(self._descriptor, piece.end - piece.start, self._begin + piece.start)
        while len(raw) < piece.end - piece.start:  # one call reads two gigabytes at most
            more = os.pread(self._descriptor, piece.end - piece.start - len(raw), self._begin + piece.start + len(raw))
            if not more:
                raise FindingError(found("tree.changed-while-read", file=self._name))
            raw += more
        if hashlib.sha256(raw).hexdigest() != self._digests[name]:
            raise FindingError(found("tree.changed-while-read", file=self._name))
        return np.frombuffer(raw, dtype=piece.dtype, count=elements(piece.shape)).reshape(piece.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, from the header alone."""
        return self._pieces[name].shape

    def close(self) -> None:
        """Give the file back; harmless twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()

    def _hash(self, size: int, want: str) -> dict[str, str]:
        """Each tensor's digest, once the whole file has the one that was committed."""
        whole = hashlib.sha256()
        places = sorted(self._pieces.values(), key=lambda piece: piece.start)
        digests: dict[str, str] = {}
        self._feed(0, self._begin, (whole,))
        for piece in places:
            own = hashlib.sha256()
            self._feed(self._begin + piece.start, self._begin + piece.end, (whole, own))
            digests[piece.name] = own.hexdigest()
        if whole.hexdigest() != want:
            raise FindingError(
                found("tree.changed-while-read", file=self._name, expected=want, actual=whole.hexdigest())
            )
        return digests

    def _feed(self, start: int, end: int, digests: Sequence[hashlib._Hash]) -> None:
        while start < end:
            block = os.pread(self._descriptor, min(_BLOCK_BYTES, end - start), start)
            if not block:
                raise FindingError(found("tree.changed-while-read", file=self._name))
            for digest in digests:
                digest.update(block)
            start += len(block)


class Union(Mapping[str, Floats]):
    """Tensors of several files by name, in name order; one that lies in several is the first file's."""

    def __init__(self, files: Sequence[ShardFile]) -> None:
        self._of: dict[str, ShardFile] = {}
        for file in files:
            for name in file:
                self._of.setdefault(name, file)
        self._of = dict(sorted(self._of.items()))

    def __getitem__(self, name: str) -> Floats:
        return self._of[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def holder(self, name: str) -> ShardFile:
        """The file that a tensor is taken from."""
        return self._of[name]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape, from the headers alone."""
        return {name: file.shape(name) for name, file in self._of.items()}
