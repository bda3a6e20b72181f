"""Adapter files: read strictly, written whole, and the same function in peft on Hugging Face's model."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from mint2m_trainer.peft import AdapterError, read_adapter, write_adapter
from mint2m_trainer.peft_fused import fuse_experts, write_fused

DOWN = "base_model.model.model.layers.0.mlp.down_proj"


def pair(rank: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        f"{DOWN}.lora_A.weight": torch.randn(rank, 6, generator=generator),
        f"{DOWN}.lora_B.weight": torch.randn(5, rank, generator=generator),
    }


def a_directory(folder: Path, *, tensors: dict[str, torch.Tensor] | None = None, **config: object) -> Path:
    """A valid adapter directory with the given changes; a value of `...` removes the key."""
    settings: dict[str, object] = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["down_proj"],
        "lora_dropout": 0.0,
        "bias": "none",
    }
    settings |= config
    folder.mkdir()
    kept = {key: value for key, value in settings.items() if value is not ...}
    (folder / "adapter_config.json").write_text(json.dumps(kept))
    save_file(tensors or pair(), folder / "adapter_model.safetensors")
    return folder


def test_the_oracles_adapter_is_read_whole(shared: Callable[[str], Path]) -> None:
    folder = shared("oracle") / "indexshare" / "adapter"
    adapter = read_adapter(folder)
    assert (adapter.rank, adapter.alpha) == (8, 16.0)
    right = load_file(folder / "adapter_model.safetensors")
    assert adapter.tensors.keys() == right.keys()
    assert all(torch.equal(adapter.tensors[name], right[name]) for name in right)
    assert len(adapter.modules) == len(right) // 2


def test_what_is_written_is_read_back_bit_for_bit_and_has_peft_names(tmp_path: Path) -> None:
    write_adapter(tmp_path / "out", pair(), rank=2, alpha=4)

    adapter = read_adapter(tmp_path / "out")
    assert all(torch.equal(adapter.tensors[name], tensor) for name, tensor in pair().items())
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["down_proj"]
    assert (config["r"], config["lora_alpha"]) == (2, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_peft_itself_reads_the_config_that_is_written(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    write_adapter(tmp_path / "out", pair(), rank=2, alpha=5)
    config = peft.LoraConfig.from_pretrained(tmp_path / "out")
    assert (config.r, config.lora_alpha, set(config.target_modules)) == (2, 5, {"down_proj"})


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_adapter(tmp_path / "out", pair(), rank=2, alpha=4)
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    write_adapter(tmp_path / "out", pair(), rank=2, alpha=4)
    before = (tmp_path / "out" / "adapter_model.safetensors").read_bytes()
    with pytest.raises(FileExistsError):
        write_adapter(tmp_path / "out", pair(), rank=2, alpha=8)
    assert (tmp_path / "out" / "adapter_model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("pointer", "config"),
    [
        ("/peft_type", {"peft_type": "LOHA"}),
        ("/r", {"r": 0}),
        ("/r", {"r": True}),
        ("/r", {"r": ...}),
        ("/lora_alpha", {"lora_alpha": -1}),
        ("/lora_alpha", {"lora_alpha": "4"}),
        ("/target_modules", {"target_modules": ".*down_proj"}),
        ("/target_modules", {"target_modules": []}),
        ("/lora_dropout", {"lora_dropout": 0.1}),
        ("/bias", {"bias": "all"}),
        ("/use_dora", {"use_dora": True}),
        ("/use_rslora", {"use_rslora": True}),
        ("/rank_pattern", {"rank_pattern": {"down_proj": 4}}),
        ("/alpha_pattern", {"alpha_pattern": {"down_proj": 4}}),
        ("/modules_to_save", {"modules_to_save": ["lm_head"]}),
        ("/target_parameters", {"target_parameters": ["mlp.experts.down_proj"]}),
    ],
)
def test_a_setting_that_would_be_another_function_is_refused(
    tmp_path: Path, pointer: str, config: dict[str, object]
) -> None:
    with pytest.raises(AdapterError) as fault:
        read_adapter(a_directory(tmp_path / "in", **config))
    assert fault.value.pointer == pointer


def _change(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    tensors = pair()
    tensors.pop(name, None)
    return tensors if tensor is None else tensors | {name: tensor}


@pytest.mark.parametrize(
    "tensors",
    [
        _change(f"{DOWN}.lora_B.weight", None),
        _change(f"{DOWN}.lora_A.weight", torch.zeros(3, 6)),
        _change(f"{DOWN}.lora_B.weight", torch.zeros(2, 5)),
        _change(f"{DOWN}.lora_A.weight", torch.full((2, 6), float("nan"))),
        _change(f"{DOWN}.lora_A.weight", torch.zeros(2, 6, dtype=torch.int32)),
        _change("base_model.model.model.embed_tokens.weight", torch.zeros(2, 6)),
        {name.replace("down_proj", "up_proj"): tensor for name, tensor in pair().items()},
    ],
    ids=["unpaired", "other rank", "transposed", "nan", "integers", "not lora", "not a target"],
)
def test_tensors_that_are_no_adapter_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(AdapterError):
        read_adapter(a_directory(tmp_path / "in", tensors=tensors))


def test_a_repeated_key_in_the_config_is_refused(tmp_path: Path) -> None:
    folder = a_directory(tmp_path / "in")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "r": 4}')
    with pytest.raises(AdapterError, match="repeated key"):
        read_adapter(folder)


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00notjson!", b"\xff" * 64])
def test_a_damaged_safetensors_file_is_a_fault_with_its_name(tmp_path: Path, content: bytes) -> None:
    folder = a_directory(tmp_path / "in")
    (folder / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors"):
        read_adapter(folder)


def test_bfloat16_tensors_are_widened_without_loss(tmp_path: Path) -> None:
    narrow = {name: tensor.bfloat16() for name, tensor in pair().items()}
    adapter = read_adapter(a_directory(tmp_path / "in", tensors=narrow))
    for name, tensor in narrow.items():
        assert adapter.tensors[name].dtype == torch.float32
        assert torch.equal(adapter.tensors[name].bfloat16(), tensor)


def test_only_fp32_is_written(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="expected float32"):
        write_adapter(tmp_path / "out", {n: t.double() for n, t in pair().items()}, rank=2, alpha=4)
    assert list(tmp_path.iterdir()) == []


def test_an_expert_without_lora_cannot_be_fused(shared: Callable[[str], Path]) -> None:
    adapter = read_adapter(shared("oracle") / "yarn" / "adapter")
    missing = "base_model.model.model.layers.1.mlp.experts.2.up_proj"
    tensors = {name: tensor for name, tensor in adapter.tensors.items() if not name.startswith(missing)}
    with pytest.raises(AdapterError, match=r"experts\.2\.up_proj"):
        fuse_experts(type(adapter)(rank=8, alpha=8.0, target_modules=adapter.target_modules, tensors=tensors))


class TopK(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


@pytest.fixture
def one_order_of_ties() -> Iterator[None]:
    """Hugging Face's indexer with ties broken as the oracle breaks them: by position."""
    plain = torch.Tensor.topk

    def stable(self: torch.Tensor, k: int, dim: int = -1, **options: object) -> object:
        if self.dim() != 3:
            return plain(self, k, dim=dim, **options)
        values, indices = torch.sort(self, dim=dim, descending=True, stable=True)
        return TopK(values[..., :k], indices[..., :k])

    torch.Tensor.topk = stable  # type: ignore[method-assign,assignment]
    yield
    torch.Tensor.topk = plain  # type: ignore[method-assign]


@pytest.mark.usefixtures("one_order_of_ties")
@pytest.mark.parametrize("case", ["indexshare", "yarn"])
def test_a_fused_adapter_gives_the_oracles_logprobs_in_transformers_and_peft(
    shared: Callable[[str], Path], tmp_path: Path, case: str
) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    folder = shared("oracle") / case
    canonical = read_adapter(folder / "adapter")
    write_adapter(tmp_path / "canonical", canonical.tensors, canonical.rank, canonical.alpha)
    write_fused(tmp_path / "fused", fuse_experts(read_adapter(tmp_path / "canonical")))
    model = transformers.GlmMoeDsaForCausalLM.from_pretrained(
        folder / "snapshot", attn_implementation="eager", experts_implementation="eager"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(model, tmp_path / "fused")
    rollout = json.loads((folder / "rollout.json").read_text())
    expected = load_file(folder / "expected.safetensors")
    prompt = rollout["prompt_tokens"]

    for g, response in enumerate(rollout["responses"]):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
        # float32 against float64
        torch.testing.assert_close(logprobs.double(), expected[f"ratio1.logprobs.{g}"], rtol=0, atol=5e-5)
