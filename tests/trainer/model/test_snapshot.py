"""A snapshot that is not exactly the model's is refused by the name of what differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.evidence import base_tensors, weights_sha256
from mint2m_trainer.model.glm import Bounds, LoraPlan, build_model
from mint2m_trainer.model.snapshot import INDEX, SnapshotError, load_snapshot
from mint2m_trainer.model.spec import read_spec

NAME = "model.layers.2.mlp.experts.3.up_proj.weight"


def load(comm: Comm, snapshot: Path) -> Any:
    spec = read_spec(snapshot)
    model = build_model(
        spec,
        world_size=comm.size,
        dtype="float32",
        angle_dtype="float32",
        lora=LoraPlan(rank=1, alpha=1.0, projections=frozenset()),
        bounds=Bounds(head_tokens=8, expert_tokens=8),
    )
    load_snapshot(model, spec, snapshot)
    return model


def held(comm: Comm, snapshot: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in base_tensors(load(comm, snapshot)).items()}


@pytest.fixture
def copy(small_snapshot: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_snapshot, tmp_path / "copy"))


def all_tensors(snapshot: Path) -> dict[str, torch.Tensor]:
    return {name: t for shard in snapshot.glob("*.safetensors") for name, t in load_file(shard).items()}


def edit(snapshot: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the shard that holds `NAME`, leaving the index as it is."""
    shard = snapshot / json.loads((snapshot / INDEX).read_text())["weight_map"][NAME]
    tensors = load_file(shard)
    change(tensors)
    save_file(tensors, shard)


def edit_index(snapshot: Path, change: Callable[[dict[str, str]], None]) -> None:
    index = json.loads((snapshot / INDEX).read_text())
    change(index["weight_map"])
    (snapshot / INDEX).write_text(json.dumps(index))


def test_every_tensor_lands_where_its_name_says(single: Comm, small_snapshot: Path) -> None:
    want, found = all_tensors(small_snapshot), held(single, small_snapshot)
    assert found.keys() == want.keys()
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_two_ranks_hold_all_tensors_together_and_experts_once(
    ranks: Callable[..., list[Any]], small_snapshot: Path
) -> None:
    want, parts = all_tensors(small_snapshot), ranks(held, 2, small_snapshot)
    assert parts[0].keys() | parts[1].keys() == want.keys()
    both = parts[0].keys() & parts[1].keys()
    assert both == {name for name in want if ".mlp.experts." not in name}
    assert all(torch.equal(tensor, want[name]) for part in parts for name, tensor in part.items())


def test_a_single_file_without_index_loads_too(single: Comm, small_snapshot: Path, tmp_path: Path) -> None:
    shutil.copy(small_snapshot / "config.json", tmp_path)
    save_file(all_tensors(small_snapshot), tmp_path / "model.safetensors")
    assert weights_sha256(load(single, tmp_path)) == weights_sha256(load(single, small_snapshot))


def refused(comm: Comm, snapshot: Path) -> str:
    with pytest.raises(SnapshotError) as caught:
        load(comm, snapshot)
    return str(caught.value)


def test_a_missing_tensor_is_refused(single: Comm, copy: Path) -> None:
    edit(copy, lambda tensors: tensors.pop(NAME))
    edit_index(copy, lambda names: names.pop(NAME))
    assert refused(single, copy) == f"{NAME}: expected a tensor, found nothing"


def test_an_unknown_tensor_is_refused(single: Comm, copy: Path) -> None:
    edit_index(copy, lambda names: names.update({"model.mtp.weight": "model-00001-of-00004.safetensors"}))
    assert refused(single, copy) == "model.mtp.weight: expected no such tensor, found a tensor"


def test_a_shard_that_lacks_what_the_index_says_is_refused(single: Comm, copy: Path) -> None:
    edit(copy, lambda tensors: tensors.pop(NAME))
    assert NAME in refused(single, copy)


def test_a_shard_that_holds_more_than_the_index_says_is_refused(single: Comm, copy: Path) -> None:
    edit(copy, lambda tensors: tensors.update(stowaway=torch.zeros(1)))
    assert "stowaway" in refused(single, copy)


def test_a_tensor_of_another_shape_is_refused(single: Comm, copy: Path) -> None:
    edit(copy, lambda tensors: tensors.update({NAME: tensors[NAME].t().contiguous()}))
    assert refused(single, copy) == f"{NAME}: expected (16, 32), found (32, 16)"


def test_an_integer_tensor_is_refused(single: Comm, copy: Path) -> None:
    edit(copy, lambda tensors: tensors.update({NAME: tensors[NAME].to(torch.int32)}))
    assert "found I32" in refused(single, copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(single: Comm, copy: Path, value: float) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[NAME].view(-1)[-1] = value

    edit(copy, spoil)
    assert refused(single, copy) == f"{NAME}: expected finite values as torch.float32, found NaN or an infinity"


def test_a_shard_outside_the_snapshot_is_refused(single: Comm, copy: Path) -> None:
    edit_index(copy, lambda names: names.update({NAME: "../elsewhere.safetensors"}))
    assert "../elsewhere.safetensors" in refused(single, copy)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_a_broken_index_is_refused(single: Comm, copy: Path, text: str) -> None:
    (copy / INDEX).write_text(text)
    refused(single, copy)


def test_a_truncated_shard_is_refused(single: Comm, copy: Path) -> None:
    shard = next(copy.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-5])
    assert shard.name in refused(single, copy)


def test_a_missing_shard_is_refused(single: Comm, copy: Path) -> None:
    shard = next(copy.glob("*.safetensors"))
    shard.unlink()
    assert shard.name in refused(single, copy)


def test_the_digest_covers_every_weight_and_buffer(single: Comm, small_snapshot: Path) -> None:
    model = load(single, small_snapshot)
    before = weights_sha256(model)
    for tensor in base_tensors(model).values():
        flat = tensor.view(-1)
        kept = flat[0].clone()
        flat[0] += 1
        assert weights_sha256(model) != before
        flat[0] = kept
    assert weights_sha256(model) == before
