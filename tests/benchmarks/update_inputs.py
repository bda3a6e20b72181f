"""Inputs of a benchmarked update, made from seeds: a snapshot, an adapter with both sides drawn, a rollout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from one_update import LORA_ALPHA, LORA_RANK
from safetensors import safe_open

from mint2m_trainer.contract.ledger import ledger
from mint2m_trainer.model.init_tiny import init_tiny
from mint2m_trainer.model.names import projection_names
from mint2m_trainer.model.spec import read_spec
from mint2m_trainer.peft import tensor_name, write_adapter

#: A prompt past this many positions is legal everywhere: positions are rotated, not looked up.
POSITIONS = 1 << 21


def make_model(folder: Path, config: Mapping[str, Any]) -> tuple[Path, Path]:
    """(snapshot, adapter) below `folder`; `config` changes members of the tiny model's."""
    snapshot, adapter = folder / "model", folder / "adapter"
    init_tiny(snapshot, 7, {"max_position_embeddings": POSITIONS, **config})
    shapes: dict[str, tuple[int, ...]] = {}
    for shard in sorted(snapshot.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    generator = torch.Generator().manual_seed(11)
    lora: dict[str, torch.Tensor] = {}
    for projection in sorted(projection_names(read_spec(snapshot))):
        rows, columns = shapes[f"{projection}.weight"]
        lora[tensor_name(projection, "A")] = torch.randn(LORA_RANK, columns, generator=generator) / columns**0.5
        lora[tensor_name(projection, "B")] = torch.randn(rows, LORA_RANK, generator=generator) * 0.02
    write_adapter(adapter, lora, LORA_RANK, LORA_ALPHA)
    return snapshot, adapter


def make_rollout(path: Path, *, prompt: int, group: int, response: int) -> Path:
    """A ledger of `prompt` tokens, `group` random responses of `response` tokens, alternating rewards."""
    generator = torch.Generator().manual_seed(13)
    rollout = {
        "prompt_tokens": list(ledger(7, tokens=prompt).text.encode("utf-8")),
        "responses": torch.randint(0, 256, (group, response), generator=generator).tolist(),
        "rewards": [1.0 if g % 2 else -1.0 for g in range(group)],
        # Those of a uniform guess over 256 tokens, about what a random model gives.
        "old_logprobs": [[-5.545177444479562] * response] * group,
    }
    path.write_text(json.dumps(rollout), encoding="utf-8")
    return path
