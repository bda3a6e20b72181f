"""Digests of bytes as they pass, against digests of the same bytes cut by hand."""

from __future__ import annotations

import hashlib
import random

import pytest

from mint2m_verify import file_hash
from mint2m_verify.file_hash import RunningDigests

CHUNK = 1000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hash, "CHUNK_BYTES", CHUNK)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 1, 3 * CHUNK, 7 * CHUNK + 123])
@pytest.mark.parametrize("longest", [1, 7, CHUNK, 10 * CHUNK])
def test_pieces_of_any_length_give_the_digests_of_the_whole(size: int, longest: int) -> None:
    chance = random.Random(size * longest)
    raw, running, start = chance.randbytes(size), RunningDigests(), 0
    while start < size:
        length = chance.randint(1, longest)
        running.update(memoryview(raw)[start : start + length])
        start += length
    found = running.digests()
    assert (found.size, found.sha256) == (size, hashlib.sha256(raw).hexdigest())
    assert found.chunks == tuple(hashlib.sha256(raw[at : at + CHUNK]).hexdigest() for at in range(0, size, CHUNK))


def test_bytes_of_wider_elements_count_as_bytes() -> None:
    running = RunningDigests()
    running.update(memoryview(bytes(2 * CHUNK)).cast("Q"))
    assert running.digests().size == 2 * CHUNK
    assert len(running.digests().chunks) == 2
