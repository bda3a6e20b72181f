"""Files that ranks hash as they write them: taken by size and time, and read again where either is another."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_trainer.cluster.directory import Written, hash_written, reference, write_manifest
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import CheckpointManifest
from mint2m_verify.finding import FindingError


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """What the writers of two files of a checkpoint told of them."""
    (tmp_path / "checkpoint").mkdir()
    for name in ("a", "b"):
        (tmp_path / "checkpoint" / name).write_bytes(name.encode())
    hashed = hash_written(tmp_path, ["checkpoint/b", "checkpoint/a"])
    assert [file.file.path for file in hashed] == ["checkpoint/a", "checkpoint/b"]
    return {file.file.path: file for file in hashed}


def digests(root: Path, written: Written) -> dict[str, str]:
    write_manifest(root, "checkpoint", "checkpoint", "checkpoint.json", written)
    manifest = CheckpointManifest.parse((root / "checkpoint.json").read_bytes(), file="checkpoint.json")
    return {entry.path: entry.sha256 for entry in manifest.files}


def test_a_file_that_its_writer_hashed_is_not_read_again(tmp_path: Path, written: Written) -> None:
    place = tmp_path / "checkpoint" / "a"
    before = place.stat()
    place.write_bytes(b"x")  # the same size, and below the same time: only whoever reads it sees it
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digests(tmp_path, written) == {"a": sha256_hex(b"a"), "b": sha256_hex(b"b")}
    assert reference(tmp_path, "checkpoint/a", written).sha256 == sha256_hex(b"a")


@pytest.mark.parametrize(
    "change",
    [lambda place: place.write_bytes(b"xy"), lambda place: (place.write_bytes(b"x"), os.utime(place, ns=(1, 1)))],
    ids=["size", "time"],
)
def test_a_file_that_is_another_by_now_is_read(
    tmp_path: Path, written: Written, change: Callable[[Path], object]
) -> None:
    place = tmp_path / "checkpoint" / "a"
    change(place)
    want = sha256_hex(place.read_bytes())
    assert digests(tmp_path, written) == {"a": want, "b": sha256_hex(b"b")}
    assert reference(tmp_path, "checkpoint/a", written).sha256 == want


def test_a_file_that_no_writer_told_of_is_read(tmp_path: Path, written: Written) -> None:
    (tmp_path / "checkpoint" / "c").write_bytes(b"c")
    assert digests(tmp_path, written)["c"] == sha256_hex(b"c")


def test_a_file_that_is_not_there_is_no_file_that_was_written(tmp_path: Path) -> None:
    with pytest.raises(FindingError) as raised:
        hash_written(tmp_path, ["absent"])
    assert raised.value.finding.id == "file.unreadable"


def test_what_was_hashed_on_its_way_to_the_disk_is_not_read(tmp_path: Path, written: Written) -> None:
    place = tmp_path / "checkpoint" / "a"
    before = place.stat()
    place.write_bytes(b"x")  # the same size, and below the same time: only whoever reads it sees it
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    files = ["checkpoint/a", "checkpoint/b"]
    assert hash_written(tmp_path, files, written.values()) == tuple(written[path] for path in files)
    os.utime(place, ns=(1, 1))
    assert hash_written(tmp_path, files, written.values())[0].digests.sha256 == sha256_hex(b"x")
    place.unlink()
    with pytest.raises(FindingError):
        hash_written(tmp_path, files, written.values())
