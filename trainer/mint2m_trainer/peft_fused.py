"""An adapter in the form that Hugging Face's fused experts need.

transformers 5 keeps all experts of a layer in two parameters, `gate_up_proj` [E, 2 I, H] and `down_proj`
[E, H, I]. PEFT 0.21 then reads every target called `gate_proj`, `up_proj` or `down_proj` as an expert's, and drops
LoRA on the dense and shared MLPs in silence: log-probs of the oracle's adapter are off by up to 2.6. So the canonical
adapter must not be loaded there directly; convert it with `fuse_experts` first.

The rule: the function stays the same. Gate and up have an A each, so their fused pair has rank 2r: A is [A_gate;
A_up], B is block-diagonal. All pairs are padded with zeros to that rank and `lora_alpha` doubles, which leaves
alpha / r and every delta as they were. MLP projections are targeted as parameters, which PEFT does not rename.

Legend: E experts, r LoRA rank, I expert width, H hidden width.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from mint2m_trainer.contract.directory import new_directory, write_synced
from mint2m_trainer.peft import CONFIG_NAME, PREFIX, WEIGHTS_NAME, Adapter, AdapterError, tensor_name

_EXPERT = re.compile(r"(?P<block>.+\.mlp\.experts)\.(?P<expert>\d+)\.(?P<projection>gate_proj|up_proj|down_proj)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedAdapter:
    """What PEFT loads on a transformers 5 model: whole module names, and the experts' parameters by name."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    target_parameters: tuple[str, ...]
    tensors: Mapping[str, Tensor]


def fuse_experts(adapter: Adapter) -> FusedAdapter:
    """The same function, with the experts of each layer in one pair per fused parameter.

    Raises:
        AdapterError: a layer where an expert, or one of its projections, has no LoRA.
    """
    rank = 2 * adapter.rank
    tensors: dict[str, Tensor] = {}
    blocks: dict[str, dict[tuple[int, str], str]] = {}
    modules: list[str] = []
    parameters: list[str] = []
    for module in adapter.modules:
        match = _EXPERT.fullmatch(module)
        if match is not None:
            blocks.setdefault(match["block"], {})[int(match["expert"]), match["projection"]] = module
            continue
        if ".mlp." in module:
            parameters.append(f"{module}.weight")
        else:
            modules.append(module)
        a, b = _pair(adapter, module)
        tensors[tensor_name(module, "A")] = _pad(a, rank, 0)  # [2r, in]
        tensors[tensor_name(module, "B")] = _pad(b, rank, 1)  # [out, 2r]
    for block, experts in sorted(blocks.items()):
        count = 1 + max(expert for expert, _ in experts)
        for expert in range(count):
            for projection in ("gate_proj", "up_proj", "down_proj"):
                if (expert, projection) not in experts:
                    expected = f"LoRA on {block}.{expert}.{projection}"
                    raise AdapterError(WEIGHTS_NAME, block, expected=expected, actual="absent")
        # PEFT nests one wrapper per parameter: the first in name order is the outer one.
        for parameter, stem in (("down_proj", block), ("gate_up_proj", f"{block}.base_layer")):
            pairs = [_expert_pair(adapter, experts, expert, parameter, rank) for expert in range(count)]
            a = torch.stack([a for a, _ in pairs])  # [E, 2r, in]
            b = torch.stack([b for _, b in pairs])  # [E, out, 2r]
            tensors[f"{PREFIX}{stem}.lora_A.weight"] = a.flatten(0, 1).contiguous()  # [E 2r, in], expert-major
            # PEFT reads B as [out, rank, E]: the expert varies fastest.
            tensors[f"{PREFIX}{stem}.lora_B.weight"] = b.permute(1, 2, 0).flatten(1).contiguous()  # [out, 2r E]
            parameters.append(f"{block}.{parameter}")
    return FusedAdapter(
        rank=rank,
        alpha=2 * adapter.alpha,
        target_modules=tuple(sorted(modules)),
        target_parameters=tuple(sorted(parameters)),
        tensors=dict(sorted(tensors.items())),
    )


def write_fused(directory: Path | str, adapter: FusedAdapter) -> None:
    """Writes a PEFT directory for `PeftModel.from_pretrained` on a transformers 5 model; whole or not at all."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": list(adapter.target_modules),
        "target_parameters": list(adapter.target_parameters) or None,
    }
    with new_directory(Path(directory)) as folder:
        write_synced(folder / CONFIG_NAME, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
        write_synced(folder / WEIGHTS_NAME, save(dict(adapter.tensors), metadata={"format": "pt"}))


def _expert_pair(
    adapter: Adapter, experts: Mapping[tuple[int, str], str], expert: int, parameter: str, rank: int
) -> tuple[Tensor, Tensor]:
    """(A [2r, in], B [out, 2r]) of one expert's fused parameter."""
    if parameter == "down_proj":
        a, b = _pair(adapter, experts[expert, "down_proj"])
        return _pad(a, rank, 0), _pad(b, rank, 1)
    gate_a, gate_b = _pair(adapter, experts[expert, "gate_proj"])
    up_a, up_b = _pair(adapter, experts[expert, "up_proj"])
    return torch.cat([gate_a, up_a]), torch.block_diag(gate_b, up_b)  # [2r, H], [2 I, 2r]


def _pair(adapter: Adapter, module: str) -> tuple[Tensor, Tensor]:
    return adapter.tensors[tensor_name(module, "A")], adapter.tensors[tensor_name(module, "B")]


def _pad(tensor: Tensor, rank: int, axis: int) -> Tensor:
    """Zeros after the last entry along `axis`, up to `rank`; they add nothing to the product B A."""
    shape = list(tensor.shape)
    shape[axis] = rank - shape[axis]
    return torch.cat([tensor, tensor.new_zeros(shape)], axis).contiguous()
