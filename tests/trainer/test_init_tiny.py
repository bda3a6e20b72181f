"""The snapshot made from a seed: what Hugging Face makes of it, and that the seed alone decides it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mint2m_trainer.model.init_tiny import TensorPlan, TinyConfigError, init_tiny, values
from mint2m_verify.model_numbers import read_numbers


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def tensors(folder: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": 3, "first_k_dense_replace": 0, "n_group": 2, "topk_group": 1, "n_routed_experts": 8},
        {"num_hidden_layers": 2, "first_k_dense_replace": 2, "n_shared_experts": 2},
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 8e6,
                "factor": 2.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "truncate": True,
            }
        },
    ],
    ids=["default", "groups, no dense", "dense only", "yarn"],
)
def test_transformers_loads_it_whole_and_writes_the_same_config(tmp_path: Path, config: dict[str, object]) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    init_tiny(tmp_path / "m", 3, config)  # type: ignore[arg-type]
    model, info = transformers.GlmMoeDsaForCausalLM.from_pretrained(
        tmp_path / "m", output_loading_info=True, attn_implementation="eager"
    )
    assert {key: len(value) for key, value in info.items()} == dict.fromkeys(info, 0)
    with torch.no_grad():
        logits = model(torch.arange(200)[None]).logits
    assert bool(torch.isfinite(logits).all())
    assert 0.3 < logits.std() < 3  # neither dead nor saturated
    model.config.save_pretrained(tmp_path / "c")
    ours, theirs = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("m", "c"))
    assert ours.pop("transformers_version").split(".")[0] == theirs.pop("transformers_version").split(".")[0]
    assert ours == theirs


def test_names_and_shapes_are_those_of_a_snapshot_that_hugging_face_wrote(
    tmp_path: Path, shared: Callable[[str], Path]
) -> None:
    oracle = shared("oracle") / "indexshare"
    case = json.loads((oracle / "expected.json").read_text())["case"]["config"]
    case.pop("num_key_value_heads")
    init_tiny(tmp_path / "m", 0, case)
    right = {name: value.shape for name, value in tensors(oracle / "snapshot").items()}
    assert {name: value.shape for name, value in tensors(tmp_path / "m").items()} == right
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    theirs = json.loads((oracle / "snapshot" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == theirs["weight_map"].keys()
    assert index["metadata"] == theirs["metadata"]
    assert json.loads((tmp_path / "m" / "config.json").read_text()) == json.loads(
        (oracle / "snapshot" / "config.json").read_text()
    )


def test_index_names_the_shard_that_holds_each_tensor_and_there_are_several(tmp_path: Path) -> None:
    init_tiny(tmp_path / "m", 0)
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    shards = {path.name: load_file(path) for path in (tmp_path / "m").glob("*.safetensors")}
    assert len(shards) > 2
    assert {name: file for file, held in shards.items() for name in held} == index["weight_map"]
    assert sum(value.nbytes for held in shards.values() for value in held.values()) == index["metadata"]["total_size"]


def test_the_seed_alone_decides_every_byte(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        init_tiny(tmp_path / name, seed)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert digests(tmp_path / "a") != digests(tmp_path / "c")


def test_a_weight_does_not_depend_on_the_other_tensors(tmp_path: Path) -> None:
    init_tiny(tmp_path / "small", 1, {"num_hidden_layers": 2})
    init_tiny(tmp_path / "large", 1, {"num_hidden_layers": 6})
    small, large = tensors(tmp_path / "small"), tensors(tmp_path / "large")
    assert small.keys() < large.keys()
    assert all(np.array_equal(small[name], large[name]) for name in small)


def test_values_are_near_normal_and_no_two_tensors_share_them() -> None:
    a, b = (values(TensorPlan(name=name, shape=(400, 500), mean=2.0, std=0.5), 0) for name in ("a", "b"))
    assert a.dtype == np.float32
    assert abs(a.mean() - 2.0) < 0.005
    assert abs(a.std() - 0.5) < 0.005
    centred = (a.astype(np.float64) - 2.0) / 0.5
    assert abs((centred**4).mean() - 2.9) < 0.05  # Irwin-Hall of twelve: kurtosis 3 - 1.2 / 12
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.01


def test_the_first_values_are_those_of_the_rule_written_out() -> None:
    """SHA-256 of seed and name seeds PCG64; twelve 16-bit words a value. Written with integers only."""
    digest = hashlib.sha256(b"mint2m.init-tiny/v1\n7\nlm_head.weight").digest()
    words = np.random.PCG64(int.from_bytes(digest, "big")).random_raw(6)
    right = []
    for value in range(2):
        parts = [
            (int(word) >> shift) & 0xFFFF for word in words[3 * value : 3 * value + 3] for shift in (0, 16, 32, 48)
        ]
        right.append(np.float32(0.25 * ((sum(parts) - 6 * 65535) / 65535.0)))
    plan = TensorPlan(name="lm_head.weight", shape=(2, 1), mean=0.0, std=0.25)
    assert values(plan, 7).ravel().tolist() == [float(value) for value in right]


def test_parameters_counted_from_the_config_are_those_written(tmp_path: Path) -> None:
    init_tiny(tmp_path / "m", 0)
    assert read_numbers(tmp_path / "m").parameters == sum(value.size for value in tensors(tmp_path / "m").values())


@pytest.mark.parametrize(
    ("pointer", "config"),
    [
        ("/hiden_size", {"hiden_size": 3}),
        ("/hidden_size", {"hidden_size": 0}),
        ("/hidden_size", {"hidden_size": True}),
        ("/indexer_types", {"indexer_types": ["shared", "full", "full", "full"]}),
        ("/indexer_types", {"indexer_types": ["full"]}),
        ("/first_k_dense_replace", {"first_k_dense_replace": 5}),
        ("/num_experts_per_tok", {"num_experts_per_tok": 9}),
        ("/n_group", {"n_group": 3}),
        ("/qk_rope_head_dim", {"qk_rope_head_dim": 15}),
        ("/qk_rope_head_dim", {"qk_rope_head_dim": 64}),
    ],
)
def test_a_config_that_makes_no_model_is_refused_and_writes_nothing(
    tmp_path: Path, pointer: str, config: dict[str, object]
) -> None:
    with pytest.raises(TinyConfigError) as fault:
        init_tiny(tmp_path / "m", 0, config)  # type: ignore[arg-type]
    assert fault.value.pointer == pointer
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    plain = os.fsync

    def third_fails(descriptor: int) -> None:
        writes.append(descriptor)
        if len(writes) == 3:
            raise OSError(28, "No space left on device")
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", third_fails)
    with pytest.raises(OSError, match="No space left"):
        init_tiny(tmp_path / "m", 0)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_snapshot_is_not_overwritten(tmp_path: Path) -> None:
    init_tiny(tmp_path / "m", 0)
    before = digests(tmp_path / "m")
    with pytest.raises(FileExistsError):
        init_tiny(tmp_path / "m", 1)
    assert digests(tmp_path / "m") == before


def test_it_needs_no_torch() -> None:
    code = "import sys, mint2m_trainer.model.init_tiny; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
