"""Named tensors one after another in a file: for each a line of canonical JSON (name, dtype, shape), then its bytes.

The rule: an extent of the file is hashed whole against the digest that was committed before the first tensor of it is
read, so whatever is parsed is what was written. Bits are kept as they are, in the machine's order.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mint2m_trainer.resume.faults import ProgressError
from mint2m_verify.canonical import canonical, parse

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

#: A header is a name and a shape; longer than this is none of ours.
_HEADER_LIMIT = 4096

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Bytes [offset, offset + size) of a file, and their SHA-256."""

    offset: int
    size: int
    sha256: str


def write_tensors(descriptor: int, tensors: Iterable[tuple[str, Tensor]], *, offset: int) -> Extent:
    """Write tensors at `offset`; they are on their way to the disk, not yet synced. Raises `OSError`."""
    digest, size = hashlib.sha256(), 0
    for part in _parts(tensors):
        write_all(descriptor, part, offset=offset + size)
        digest.update(part)
        size += len(part)
    return Extent(offset=offset, size=size, sha256=digest.hexdigest())


def digest_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The digest that the tensors would have in a file."""
    digest = hashlib.sha256()
    for part in _parts(tensors):
        digest.update(part)
    return digest.hexdigest()


def holds(descriptor: int, extent: Extent) -> bool:
    """Whether the bytes of `extent` are those that were committed."""
    digest, at, end = hashlib.sha256(), extent.offset, extent.offset + extent.size
    while at < end:
        block = os.pread(descriptor, min(_BLOCK_BYTES, end - at), at)
        if not block:
            return False
        digest.update(block)
        at += len(block)
    return digest.hexdigest() == extent.sha256


def read_tensors(descriptor: int, extent: Extent) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an extent that `holds`, on the CPU, in the order in which they were written."""
    at, end = extent.offset, extent.offset + extent.size
    while at < end:
        head, newline, _ = os.pread(descriptor, min(_HEADER_LIMIT, end - at), at).partition(b"\n")
        value = parse(head, file="a tensor's header") if newline else None
        if not isinstance(value, dict):
            raise ProgressError(f"no tensor at byte {at}")
        name, dtype, shape = value["name"], _DTYPES[str(value["dtype"])], value["shape"]
        if not isinstance(name, str) or not isinstance(shape, list):
            raise ProgressError(f"no tensor at byte {at}")
        sizes = [int(str(length)) for length in shape]
        raw = bytearray(math.prod(sizes) * dtype.itemsize)
        at += len(head) + 1
        _fill(descriptor, raw, at)
        at += len(raw)
        whole = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        yield name, whole.view(sizes)


def write_all(descriptor: int, part: bytes | memoryview, *, offset: int) -> None:
    """Write every byte at `offset`; raises `OSError`."""
    view = memoryview(part)
    while view:
        written = os.pwrite(descriptor, view, offset)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        view, offset = view[written:], offset + written


def _parts(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[bytes | memoryview]:
    for name, tensor in tensors:
        held = tensor.detach().cpu().contiguous()
        yield canonical({"dtype": _NAMES[held.dtype], "name": name, "shape": list(held.shape)}) + b"\n"
        if held.numel():
            flat = held.view(-1)
            if flat.stride(0) != 1:  # one element of a strided tensor counts as contiguous, and has no bytes to view
                flat = flat.clone(memory_format=torch.contiguous_format)
            yield memoryview(flat.view(torch.uint8).numpy())


def _fill(descriptor: int, raw: bytearray, at: int) -> None:
    view = memoryview(raw)
    while view:
        count = os.preadv(descriptor, [view], at)
        if not count:
            raise ProgressError(f"the file ends at byte {at}")
        view, at = view[count:], at + count
