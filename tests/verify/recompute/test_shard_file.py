"""Tensors read one at a time are those of the whole file, and of no other bytes than the committed ones."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from mint2m_verify.finding import FindingError
from mint2m_verify.recompute.shard_file import ShardFile, Union
from mint2m_verify.recompute.tensors import read_tensors


def _tensors(seed: int, names: str) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: draw.normal(size=(3, 5 + n)).astype(np.float32) for n, name in enumerate(names)}


def _file(folder: Path, name: str, tensors: dict[str, np.ndarray]) -> ShardFile:
    raw = save(tensors)
    (folder / name).write_bytes(raw)
    return ShardFile(folder / name, name=name, sha256=hashlib.sha256(raw).hexdigest())


def test_every_tensor_is_that_of_the_reader_of_whole_files(tmp_path: Path) -> None:
    tensors = _tensors(1, "cab") | {"wide": np.arange(6, dtype=np.float64)}
    file = _file(tmp_path, "x", tensors)
    whole = read_tensors((tmp_path / "x").read_bytes(), file="x")
    assert list(file) == list(whole) == sorted(tensors)
    for name in tensors:
        assert file[name].dtype == whole[name].dtype and np.array_equal(file[name], whole[name])
        assert file.shape(name) == tensors[name].shape


def test_other_bytes_than_the_committed_ones_are_refused(tmp_path: Path) -> None:
    _file(tmp_path, "x", _tensors(1, "ab"))
    with pytest.raises(FindingError) as caught:
        ShardFile(tmp_path / "x", name="x", sha256="ab" * 32)
    assert caught.value.finding.id == "tree.changed-while-read"


def test_a_tensor_that_changes_after_it_was_hashed_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, "x", _tensors(1, "ab"))
    with (tmp_path / "x").open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\0\0\0\0")
    assert file["a"].shape == (3, 5)
    with pytest.raises(FindingError) as caught:
        file["b"]
    assert caught.value.finding.id == "tree.changed-while-read"


@pytest.mark.parametrize("cut", [0, 4, 8, 40, -1])
def test_a_file_that_is_cut_is_malformed(tmp_path: Path, cut: int) -> None:
    raw = save(_tensors(1, "ab"))[:cut]
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(FindingError) as caught:
        ShardFile(tmp_path / "x", name="x", sha256=hashlib.sha256(raw).hexdigest())
    assert caught.value.finding.id in ("tensor.malformed", "json.malformed", "json.empty")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    _file(tmp_path, "x", _tensors(1, "ab"))
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(FindingError):
        ShardFile(tmp_path / "link", name="link", sha256="ab" * 32)


def test_a_union_takes_a_tensor_from_the_first_file_that_has_it(tmp_path: Path) -> None:
    one, other = _file(tmp_path, "one", _tensors(1, "abc")), _file(tmp_path, "other", _tensors(2, "bcd"))
    union = Union([one, other])
    assert list(union) == ["a", "b", "c", "d"]
    assert union.holder("b") is one and union.holder("d") is other
    assert np.array_equal(union["c"], one["c"]) and not np.array_equal(union["c"], other["c"])
    assert union.shapes() == {name: union[name].shape for name in "abcd"}


def test_memory_is_that_of_one_tensor_and_not_of_the_file(tmp_path: Path) -> None:
    each = 2 << 20
    file = _file(tmp_path, "x", {f"t{n:02d}": np.full(each // 4, n, dtype=np.float32) for n in range(16)})
    tracemalloc.start()
    total = sum(float(tensor.sum()) for tensor in file.values())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == sum(n * each / 4 for n in range(16))
    assert peak < 3 * each
