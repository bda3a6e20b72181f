"""The safetensors reader against the library that defines the format, and against files that it should never open."""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest
import rfc8785
from safetensors.numpy import save

from mint2m_verify.finding import FindingError
from mint2m_verify.recompute.tensors import read_tensors, tensors_sha256

TENSORS = {
    "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.weight": np.array([[1.5, -2.5]], dtype=np.float64),
}


def raw(header: object, body: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8), **more: object) -> dict[str, object]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


def test_what_the_library_writes_is_read_back() -> None:
    read = read_tensors(save(TENSORS, metadata={"format": "pt"}), file="f")
    assert list(read) == ["a.weight", "b.weight"]
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert np.array_equal(read[name], tensor)


def test_the_digest_is_of_lines_and_bytes_in_the_order_of_names() -> None:
    digest = hashlib.sha256()
    for name, kind in (("a.weight", "F64"), ("b.weight", "F32")):
        line = rfc8785.dumps({"name": name, "dtype": kind, "shape": list(TENSORS[name].shape)})
        digest.update(line + b"\n" + TENSORS[name].tobytes())
    assert tensors_sha256(read_tensors(save(TENSORS), file="f")) == digest.hexdigest()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "tensor.malformed"),
        (struct.pack("<Q", 2**63), "tensor.malformed"),
        (struct.pack("<Q", 100) + b"{}", "tensor.malformed"),
        (raw({}, b""), "tensor.none"),
        (raw({"__metadata__": {}}, b""), "tensor.none"),
        (raw([]), "tensor.malformed"),
        (raw(b'{"t":1,"t":2}'), "json.duplicate-key"),
        (raw(b'{"t":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}'), "json.not-finite"),
        (raw(entry(dtype="I64")), "tensor.malformed"),
        (raw(entry(dtype="BF16")), "tensor.malformed"),
        (raw(entry(shape=[3])), "tensor.malformed"),
        (raw(entry(shape=[-2])), "tensor.malformed"),
        (raw(entry(shape=[True, 2])), "tensor.malformed"),
        (raw(entry(shape=[0], offsets=[0, 0])), "tensor.malformed"),
        (raw(entry(shape=[2**40, 2**40])), "tensor.malformed"),
        (raw(entry(offsets=[8, 0])), "tensor.malformed"),
        (raw(entry(offsets=[0, 8, 8])), "tensor.malformed"),
        (raw(entry(more=1)), "tensor.malformed"),
        (raw(entry(), b"\0" * 9), "tensor.malformed"),  # a tail
        (raw(entry(offsets=[4, 12]), b"\0" * 12), "tensor.malformed"),  # a hole
        (raw(entry(), b"\0" * 4), "tensor.malformed"),  # cut short
        (raw({**entry(), "u": entry()["t"]}), "tensor.malformed"),  # an overlap
    ],
)
def test_a_file_whose_header_does_not_describe_it_exactly_is_refused(content: bytes, expected: str) -> None:
    with pytest.raises(FindingError) as caught:
        read_tensors(content, file="f")
    assert caught.value.finding.id == expected
