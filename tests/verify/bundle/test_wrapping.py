"""Headers and wrapping against Python's own tarfile and gzip."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mint2m_verify.bundle import ustar
from mint2m_verify.bundle.gzipped import STORED_BYTES, GzipReader, GzipWriter
from mint2m_verify.bundle.ustar import LARGEST_MEMBER, Member
from mint2m_verify.finding import FindingError

SEGMENT = st.text(st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)


def stored(content: bytes) -> bytes:
    made = io.BytesIO()
    writer = GzipWriter(made.write)
    writer.write(content)
    writer.close()
    return made.getvalue()


def read_back(raw: bytes, count: int) -> bytes:
    """All content, asked for in pieces of `count` bytes."""
    with tempfile.TemporaryFile() as file:
        file.write(raw)
        file.seek(0)
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        reader = GzipReader(file.fileno(), file="x")
        pieces = []
        while piece := reader.read(count):
            assert len(piece) <= count
            pieces.append(piece)
        assert all(len(piece) == count for piece in pieces[:-1])
        return b"".join(pieces)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(parts=st.lists(SEGMENT, min_size=1, max_size=12), size=st.integers(0, LARGEST_MEMBER), executable=st.booleans())
def test_a_header_is_the_one_that_tarfile_writes(
    kit: ModuleType, parts: list[str], size: int, executable: bool
) -> None:
    path = "/".join(parts)
    member = Member(path=path, size=size, executable=executable)
    try:
        block = kit.Entry(name=path, size=size, executable=executable).block()
    except ValueError:  # what tarfile says of a name that ustar cannot hold
        with pytest.raises(FindingError) as caught:
            ustar.header(member)
        assert caught.value.finding.id == "release.path-too-long"
        return
    assert ustar.header(member) == block
    assert ustar.parse(block, offset=0) == member


@pytest.mark.parametrize(
    ("path", "fits"),
    [
        ("a" * 100, True),
        ("a" * 101, False),
        ("a" * 155 + "/" + "b" * 100, True),
        ("a" * 156 + "/" + "b" * 100, False),
        ("a" * 155 + "/" + "b" * 101, False),
        ("\u00e9" * 50, True),
        ("\u00e9" * 51, False),
    ],
)
def test_a_name_fits_where_ustar_has_room_for_it(path: str, fits: bool) -> None:
    member = Member(path=path, size=0, executable=False)
    if fits:
        assert ustar.parse(ustar.header(member), offset=0) == member
    else:
        with pytest.raises(FindingError) as caught:
            ustar.header(member)
        assert caught.value.finding.id == "release.path-too-long"


def test_a_size_fits_where_eleven_digits_hold_it() -> None:
    assert b"77777777777\0" in ustar.header(Member(path="a", size=LARGEST_MEMBER, executable=False))
    with pytest.raises(FindingError) as caught:
        ustar.header(Member(path="a", size=LARGEST_MEMBER + 1, executable=False))
    assert caught.value.finding.id == "release.member-too-large"


@pytest.mark.parametrize("size", [1, 2, STORED_BYTES - 1, STORED_BYTES, STORED_BYTES + 1, 2 * STORED_BYTES, 200_000])
def test_what_is_wrapped_is_what_gzip_unwraps_and_we_do(size: int) -> None:
    content = bytes(number * 7 % 251 for number in range(size))
    raw = stored(content)
    assert gzip.decompress(raw) == content
    blocks = -(-size // STORED_BYTES)
    assert len(raw) == 10 + 5 * blocks + size + 8
    for count in (1 if size < 10 else 999, 512, 70_000, 1 << 20):
        assert read_back(raw, count) == content


@settings(deadline=None, derandomize=True, max_examples=100)
@given(pieces=st.lists(st.binary(max_size=40_000), max_size=6), more=st.integers(0, 70_000))
def test_the_wrapping_does_not_depend_on_how_content_came(pieces: list[bytes], more: int) -> None:
    pieces = [*pieces, bytes(more), b"x"]
    made = io.BytesIO()
    writer = GzipWriter(made.write)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    assert made.getvalue() == stored(b"".join(pieces))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    content=st.binary(max_size=3000), repeat=st.integers(1, 200), level=st.integers(1, 9), count=st.integers(1, 9000)
)
def test_what_gzip_compressed_is_read_in_pieces_of_any_size(
    content: bytes, repeat: int, level: int, count: int
) -> None:
    raw = gzip.compress(content * repeat, compresslevel=level, mtime=0)
    assert read_back(raw, count) == content * repeat
