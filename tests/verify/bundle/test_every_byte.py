"""A release bundle has one spelling: no byte of it can change, and none can be missing or too many."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mint2m_verify.anchor import VerifyOptions
from mint2m_verify.bundle import BundleQuestion, verify_bundle
from mint2m_verify.finding import Report, Verdict


def report_on(raw: bytes, release: Any, kit: ModuleType) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / kit.NAME
        archive.write_bytes(raw)
        return verify_bundle(BundleQuestion(archive=archive), release.anchor, VerifyOptions())


def borders(raw: bytes, kit: ModuleType) -> list[int]:
    """Where something begins or ends: gzip header, deflate blocks, tar headers, contents, the end, the trailer."""
    places = {0, 1, 2, 3, 4, 8, 9, 10, len(raw) - 8, len(raw) - 4, len(raw) - 1}
    block = 10
    while block < len(raw) - 8:
        length = int.from_bytes(raw[block + 1 : block + 3], "little")
        places |= {block, block + 1, block + 3, block + 5, block + 5 + length}
        block += 5 + length

    def in_file(offset: int) -> int:
        return 10 + 5 * (offset // 65_535 + 1) + offset

    offset = 0
    for entry in kit.entries_of(raw):
        size = len(entry.content)
        end = offset + 512 + size + -size % 512
        places |= {in_file(place) for place in (offset, offset + 511, offset + 512, offset + 512 + size, end)}
        offset = end
    places |= {in_file(offset), in_file(offset + 512), in_file(offset + 1023)}
    return sorted(place for place in places if place < len(raw))


def test_the_bundle_itself_is_accepted(kit: ModuleType, release: Any) -> None:
    report = report_on(release.archive, release, kit)
    assert (report.verdict, report.findings) == (Verdict.ACCEPTED, ())


def test_cut_at_any_border_it_is_refused(kit: ModuleType, release: Any) -> None:
    places = borders(release.archive, kit)
    assert len(places) > 60
    for place in places:
        report = report_on(release.archive[:place], release, kit)
        assert report.roots[0].id in {"bundle.truncated", "bundle.gzip-damaged"}, place
        assert report.verdict is Verdict.FAILED


def test_a_byte_at_any_border_cannot_change(kit: ModuleType, release: Any) -> None:
    for place in borders(release.archive, kit):
        for bit in (1, 0x80):
            raw = bytearray(release.archive)
            raw[place] ^= bit
            assert report_on(bytes(raw), release, kit).verdict is not Verdict.ACCEPTED, (place, bit)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(where=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_no_random_byte_can_change(kit: ModuleType, release: Any, where: float, change: int) -> None:
    raw = bytearray(release.archive)
    raw[int(where * len(raw))] ^= change
    report = report_on(bytes(raw), release, kit)
    assert report.verdict in {Verdict.FAILED, Verdict.UNTRUSTED}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(where=st.floats(0, 1), more=st.binary(min_size=1, max_size=600))
def test_nothing_can_be_put_in_between(kit: ModuleType, release: Any, where: float, more: bytes) -> None:
    place = int(where * len(release.archive))
    raw = release.archive[:place] + more + release.archive[place:]
    assert report_on(raw, release, kit).verdict is not Verdict.ACCEPTED


@settings(max_examples=100, deadline=None, derandomize=True)
@given(where=st.floats(0, 1, exclude_max=True), count=st.integers(1, 3000))
def test_nothing_can_be_taken_out(kit: ModuleType, release: Any, where: float, count: int) -> None:
    place = int(where * len(release.archive))
    raw = release.archive[:place] + release.archive[place + count :]
    assert report_on(raw, release, kit).verdict is not Verdict.ACCEPTED


@pytest.mark.slow
def test_no_byte_of_the_head_can_change(kit: ModuleType, release: Any) -> None:
    """One bit of each byte of the wrapping, the manifest, the signature and the first header behind them."""
    names = [entry.name for entry in kit.entries_of(release.archive)]
    assert names[:2] == ["release.json", "release.sigstore.json"]
    end = release.archive.index(names[2].encode()) + 512
    for place in range(end):
        raw = bytearray(release.archive)
        raw[place] ^= 1 << place % 8
        assert report_on(bytes(raw), release, kit).verdict is not Verdict.ACCEPTED, place
