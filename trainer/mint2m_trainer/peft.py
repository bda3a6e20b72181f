"""LoRA adapters as PEFT writes them: `adapter_config.json` and `adapter_model.safetensors`.

The rule: what is read is understood whole, and what is written appears whole. A setting that would change the
function (rank patterns, DoRA, rsLoRA, dropout, modules saved beside it) is refused, not ignored; an adapter
directory is made under another name, synced and renamed. Without it an adapter trained under other rules
would load in silence, and an interrupted write would leave half a model.

Tensor names are `base_model.model.<module>.lora_A.weight` [r, in] and `...lora_B.weight` [out, r], one pair
for each projection, experts one by one; the delta is `lora_alpha / r * B @ A`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from mint2m_trainer.contract.directory import new_directory, write_synced
from mint2m_trainer.faults import InputError

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PREFIX = "base_model.model."

_NAME = re.compile(r"base_model\.model\.(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<side>[AB])\.weight")

#: Settings with the only value this trainer implements; any other value means another function.
_FIXED: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "lora_dropout": (0, 0.0),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_rslora": (False,),
    "use_dora": (False,),
    "lora_bias": (False,),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "exclude_modules": (None, []),
}


class AdapterError(InputError, ValueError):
    """An adapter that cannot be read or written as it stands; names the file, the place and both sides."""

    def __init__(self, file: str, pointer: str, *, expected: str, actual: str) -> None:
        super().__init__(f"{file} {pointer}: expected {expected}, got {actual}")
        self.file = file
        self.pointer = pointer
        self.expected = expected
        self.actual = actual


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter: fp32 tensors by PEFT name, in pairs, all of one rank."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    tensors: Mapping[str, Tensor]

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that carry LoRA, without the PEFT prefix, sorted."""
        return tuple(sorted({module_of(name)[0] for name in self.tensors}))


def module_of(name: str) -> tuple[str, str]:
    """(module, "A" or "B") of a PEFT tensor name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise AdapterError(WEIGHTS_NAME, name, expected=f"{PREFIX}<module>.lora_A|lora_B.weight", actual=name)
    return match["module"], match["side"]


def tensor_name(module: str, side: str) -> str:
    """PEFT name of side "A" or "B" of a module's adapter."""
    return f"{PREFIX}{module}.lora_{side}.weight"


def read_adapter(directory: Path | str) -> Adapter:
    """Reads and checks an adapter directory.

    Tensors in bf16 or fp16 are widened to fp32, which is exact. `target_modules` may name the last part of a
    module or a longer suffix of it, as in PEFT; a pattern in one string is refused.

    Raises:
        AdapterError: anything malformed, unpaired, unsupported, not finite or of another rank.
        OSError: a file that cannot be read.
    """
    folder = Path(directory)
    config = _config((folder / CONFIG_NAME).read_bytes())
    rank = config["r"]
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise AdapterError(CONFIG_NAME, "/r", expected="a positive integer", actual=repr(rank))
    alpha = config["lora_alpha"]
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < math.inf:
        raise AdapterError(CONFIG_NAME, "/lora_alpha", expected="a positive number", actual=repr(alpha))
    targets = config["target_modules"]
    if not isinstance(targets, list) or not targets or not all(isinstance(t, str) for t in targets):
        raise AdapterError(CONFIG_NAME, "/target_modules", expected="a list of names", actual=repr(targets))
    try:
        tensors = load((folder / WEIGHTS_NAME).read_bytes())
    except SafetensorError as fault:
        raise AdapterError(WEIGHTS_NAME, "/", expected="a safetensors file", actual=str(fault)) from fault
    widened = {name: _widen(name, tensor) for name, tensor in sorted(tensors.items())}
    _check_pairs(widened, rank)
    for name in widened:
        module = module_of(name)[0]
        if not any(module == target or module.endswith("." + target) for target in targets):
            raise AdapterError(WEIGHTS_NAME, name, expected=f"a module of {sorted(targets)}", actual=module)
    return Adapter(rank=rank, alpha=float(alpha), target_modules=tuple(sorted(targets)), tensors=widened)


def write_adapter(directory: Path | str, tensors: Mapping[str, Tensor], rank: int, alpha: float) -> None:
    """Writes an adapter directory that did not exist before; whole or not at all.

    Args:
        tensors: fp32 by PEFT name, in pairs of `rank`.
        alpha: `lora_alpha`; the scale of the delta is alpha / rank.

    Raises:
        AdapterError: tensors that are not such an adapter; nothing was written.
        FileExistsError: the directory exists and is not empty.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise AdapterError(WEIGHTS_NAME, name, expected="float32", actual=str(tensor.dtype))
        if not bool(torch.isfinite(tensor).all()):
            raise AdapterError(WEIGHTS_NAME, name, expected="finite values", actual="NaN or infinity")
    _check_pairs(tensors, rank)
    if not 0 < alpha < math.inf:
        raise AdapterError(CONFIG_NAME, "/lora_alpha", expected="a positive number", actual=repr(alpha))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_rslora": False,
        "use_dora": False,
        "target_modules": sorted({module_of(name)[0].rsplit(".", 1)[-1] for name in tensors}),
    }
    ordered = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    with new_directory(Path(directory)) as folder:
        write_synced(folder / CONFIG_NAME, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
        write_synced(folder / WEIGHTS_NAME, save(ordered, metadata={"format": "pt"}))


def _config(content: bytes) -> Mapping[str, object]:
    """The parsed config, after every setting that has one permitted value was compared with it."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise AdapterError(CONFIG_NAME, "/", expected="each key once", actual="a repeated key")
        return dict(pairs)

    try:
        config = json.loads(content, object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as fault:
        raise AdapterError(CONFIG_NAME, "/", expected="JSON", actual=str(fault)) from fault
    if not isinstance(config, dict):
        raise AdapterError(CONFIG_NAME, "/", expected="an object", actual=type(config).__name__)
    for key in ("peft_type", "r", "lora_alpha", "target_modules"):
        if key not in config:
            raise AdapterError(CONFIG_NAME, f"/{key}", expected="present", actual="absent")
    for key, permitted in _FIXED.items():
        if key in config and config[key] not in permitted:
            raise AdapterError(CONFIG_NAME, f"/{key}", expected=repr(permitted[0]), actual=repr(config[key]))
    return config


def _widen(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise AdapterError(WEIGHTS_NAME, name, expected="F32, BF16 or F16", actual=str(tensor.dtype))
    if not bool(torch.isfinite(tensor).all()):
        raise AdapterError(WEIGHTS_NAME, name, expected="finite values", actual="NaN or infinity")
    return tensor.float()


def _check_pairs(tensors: Mapping[str, Tensor], rank: int) -> None:
    """Every module has both sides, and each has the rank where the rank belongs."""
    if not tensors:
        raise AdapterError(WEIGHTS_NAME, "/", expected="at least one pair", actual="no tensor")
    for name, tensor in tensors.items():
        module, side = module_of(name)
        other = tensor_name(module, "B" if side == "A" else "A")
        if other not in tensors:
            raise AdapterError(WEIGHTS_NAME, name, expected=f"beside {other}", actual="absent")
        shape = list(tensor.shape)
        if len(shape) != 2 or shape[0 if side == "A" else 1] != rank:
            expected = f"[{rank}, in]" if side == "A" else f"[out, {rank}]"
            raise AdapterError(WEIGHTS_NAME, name, expected=expected, actual=str(shape))
