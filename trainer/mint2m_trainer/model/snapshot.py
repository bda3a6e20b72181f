"""Load a Hugging Face snapshot: safetensors shards behind an index, experts one by one.

Every tensor of the index must be one the model has, every tensor of the model must be there, shapes must agree,
and each shard must hold exactly what the index says. A rank reads the bytes of its own experts only, but checks
the names and shapes of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mint2m_trainer.faults import InputError
from mint2m_trainer.model.names import slots, tensor_shapes
from mint2m_trainer.model.spec import ModelSpec

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


class SnapshotError(InputError):
    """The snapshot's tensors are not the model's."""

    def __init__(self, subject: str, expected: str, actual: str) -> None:
        super().__init__(f"{subject}: expected {expected}, found {actual}")
        self.subject = subject
        self.expected = expected
        self.actual = actual


@torch.no_grad()
def load_snapshot(model: Any, spec: ModelSpec, snapshot: Path) -> None:
    """Fill the model's base weights; values are cast to each parameter's dtype.

    Raises:
        SnapshotError: a tensor or shard is missing, unknown, misplaced, of another shape or not finite.
    """
    shapes = tensor_shapes(spec)
    shards = _read_index(snapshot)
    listed = {name for names in shards.values() for name in names}
    for name in sorted(listed ^ shapes.keys()):
        held = name in listed
        raise SnapshotError(name, "no such tensor" if held else "a tensor", "a tensor" if held else "nothing")
    wanted = {slot.name: slot for slot in slots(model, spec)}
    filled = 0
    for shard, names in sorted(shards.items()):
        with _open(snapshot / shard) as tensors:
            held = set(tensors.keys())
            if held != set(names):
                difference = sorted(held ^ set(names))[0]
                raise SnapshotError(f"{shard} {difference}", "the tensors of the index", "a difference")
            for name in names:
                part = tensors.get_slice(name)
                if tuple(part.get_shape()) != shapes[name]:
                    raise SnapshotError(name, str(shapes[name]), str(tuple(part.get_shape())))
                if part.get_dtype() not in FLOATS:
                    raise SnapshotError(name, f"one of {sorted(FLOATS)}", part.get_dtype())
                if name in wanted:
                    view = wanted[name].view.copy_(tensors.get_tensor(name))
                    if not bool(torch.isfinite(view).all()):  # after the cast: a half may overflow
                        raise SnapshotError(name, f"finite values as {view.dtype}", "NaN or an infinity")
                    filled += 1
    if filled != len(wanted):
        raise SnapshotError("model", f"{len(wanted)} tensors filled", str(filled))


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as fault:
        raise SnapshotError(path.name, "a safetensors file", str(fault)) from fault


def _read_index(snapshot: Path) -> Mapping[str, list[str]]:
    """Tensor names by shard, in order of name."""
    if not (snapshot / INDEX).is_file():
        if not (snapshot / SINGLE).is_file():
            raise SnapshotError(INDEX, "an index or a single shard", "neither")
        with _open(snapshot / SINGLE) as tensors:
            return {SINGLE: sorted(tensors.keys())}
    try:
        weight_map = json.loads((snapshot / INDEX).read_text(encoding="utf-8"))["weight_map"]
        pairs = sorted(weight_map.items())
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise SnapshotError(INDEX, "an object with a weight_map", repr(fault)) from fault
    shards: dict[str, list[str]] = {}
    for name, shard in pairs:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise SnapshotError(INDEX, "file names beside the index", repr(shard))
        shards.setdefault(shard, []).append(name)
    return shards
