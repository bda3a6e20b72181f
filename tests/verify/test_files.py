"""Bytes are read once from regular files only, and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import FindingError


def _fault(path: Path, limit: int = 100, *, name: str = "name") -> str:
    with pytest.raises(FindingError) as caught:
        read_once(path, name=name, limit=limit)
    assert caught.value.finding.file == name
    return caught.value.finding.id


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    assert read_once(tmp_path / "real") == b"x"
    assert _fault(tmp_path / "absent") == "file.missing"
    for other in ("link", "pipe", "."):
        assert _fault(tmp_path / other) == "file.not-regular"


def test_a_file_past_the_limit_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 101)
    assert _fault(tmp_path / "big") == "file.too-large"
    assert _fault(tmp_path / "big", name="adapter/big.safetensors") == "tensors.too-large"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_atomic(target, b"old")
    with pytest.raises(TypeError):
        write_atomic(target, "not bytes")  # type: ignore[arg-type]  # the fault under test
    assert target.read_bytes() == b"old"
    with pytest.raises(FindingError) as caught:
        write_atomic(tmp_path / "absent" / "b.json", b"new")
    assert caught.value.finding.id == "file.unwritable"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_atomic(target, b"a longer text")
    write_atomic(target, b"short")
    assert target.read_bytes() == b"short"
    assert target.stat().st_mode & 0o111 == 0
