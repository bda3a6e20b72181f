"""Reads safetensors from bytes that were already hashed: strict, bounded, and never by path.

The rule: the header must describe the buffer exactly, each byte once. A hole, an overlap or a tail could hold values
that one reader sees and another does not. Format: safetensors (huggingface/safetensors, format.md).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from mint2m_verify.canonical import JsonValue, Limits, canonical, parse
from mint2m_verify.finding import FindingError, found

Floats: TypeAlias = npt.NDArray[np.floating]
Tensors: TypeAlias = Mapping[str, Floats]

_DTYPES: Mapping[str, np.dtype[np.floating]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_LENGTH = struct.Struct("<Q")
#: LoRA matrices have two axes; a product over a million of them would not end.
_MOST_AXES = 8
_HEADER_LIMITS = Limits(size_bytes=32 << 20, depth=4, members=2_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One tensor's place in the buffer after the header, [start, end)."""

    name: str
    dtype: np.dtype[np.floating]
    shape: tuple[int, ...]
    start: int
    end: int


def read_tensors(raw: bytes, *, file: str) -> Tensors:
    """Tensors by name, views of `raw`, in name order; float32 or float64.

    Raises:
        FindingError: `tensor.malformed`, `tensor.none` or `json.*` of the header.
    """
    begin = header_end(raw[: _LENGTH.size], len(raw), file=file)
    pieces = read_layout(raw[_LENGTH.size : begin], len(raw) - begin, file=file)
    return {
        piece.name: np.frombuffer(
            raw, dtype=piece.dtype, count=elements(piece.shape), offset=begin + piece.start
        ).reshape(piece.shape)
        for piece in pieces
    }


def header_end(first: bytes, size: int, *, file: str) -> int:
    """Where the header ends in a file of `size` bytes whose first 8 are `first`; raises as `read_tensors`."""
    if len(first) < _LENGTH.size:
        _refuse(file, "a header length of 8 bytes", f"{len(first)} bytes")
    (length,) = _LENGTH.unpack_from(first)
    if length > min(_HEADER_LIMITS.size_bytes, size - _LENGTH.size):
        _refuse(file, f"a header within {size} bytes", f"{length} bytes")
    return _LENGTH.size + int(length)


def read_layout(raw: bytes, size: int, *, file: str) -> list[Piece]:
    """The tensors that a header names, sorted by name; together they are the `size` bytes after it, each byte once.

    Raises:
        FindingError: `tensor.malformed`, `tensor.none` or `json.*`.
    """
    header = parse(raw, file=file, limits=_HEADER_LIMITS)
    if not isinstance(header, dict):
        _refuse(file, "an object as header", type(header).__name__)
    pieces = sorted(_pieces(header, file), key=lambda piece: (piece.start, piece.end))
    at = 0
    for piece in pieces:
        if piece.start != at:
            _refuse(file, f"{piece.name} at byte {at}", f"byte {piece.start}")
        at = piece.end
    if at != size:
        _refuse(file, f"{at} bytes of tensors", f"{size} bytes")
    if not pieces:
        raise FindingError(found("tensor.none", file=file))
    return sorted(pieces, key=lambda piece: piece.name)


def _pieces(header: dict[str, JsonValue], file: str) -> list[Piece]:
    pieces = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            _refuse(file, f"dtype, shape and data_offsets of {name}", "other members")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            _refuse(file, f"{name} in F32 or F64", repr(dtype))
        sizes, bounds = _integers(shape), _integers(offsets)
        if sizes is None or bounds is None or len(bounds) != 2 or 0 in sizes or len(sizes) > _MOST_AXES:
            wanted = f"at most {_MOST_AXES} positive whole numbers as shape of {name}, and two offsets"
            _refuse(file, wanted, f"{shape}, {offsets}"[:200])
        kind = _DTYPES[dtype]
        if bounds[1] - bounds[0] != elements(sizes) * kind.itemsize:
            _refuse(file, f"{elements(sizes) * kind.itemsize} bytes for {name}", f"{bounds[1] - bounds[0]}")
        pieces.append(Piece(name=name, dtype=kind, shape=sizes, start=bounds[0], end=bounds[1]))
    return pieces


def _integers(value: JsonValue) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    numbers = tuple(item for item in value if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
    return numbers if len(numbers) == len(value) else None


def elements(shape: tuple[int, ...]) -> int:
    """The product of the sizes."""
    count = 1
    for size in shape:
        count *= size
    return count


def _refuse(file: str, expected: str, actual: str) -> NoReturn:
    raise FindingError(found("tensor.malformed", file=file, expected=expected, actual=actual))


def tensors_sha256(tensors: Tensors) -> str:
    """Digest of tensors by name: for each, the RFC 8785 line of dtype, name and shape, then its little-endian bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        kind = next(word for word, dtype in _DTYPES.items() if dtype == tensor.dtype)
        digest.update(canonical({"dtype": kind, "name": name, "shape": list(tensor.shape)}) + b"\n")
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()
