"""A small adapter from a seed, not fresh: both matrices of every pair are set, so both have a gradient."""

from __future__ import annotations

from pathlib import Path

from mint2m_trainer.model.lora import fresh_a
from mint2m_trainer.model.names import tensor_shapes
from mint2m_trainer.model.policy import family_projections
from mint2m_trainer.model.spec import read_spec
from mint2m_trainer.peft import tensor_name, write_adapter
from mint2m_verify.documents.inputs import LoraOptions

#: Of a B entry beside an A entry: the delta stays small against the base.
_B_SCALE = 0.1


def seeded_adapter(directory: Path, snapshot: Path, lora: LoraOptions, *, seed: int) -> None:
    """Write the adapter of `lora`'s families for the model in `snapshot`; `directory` may not exist."""
    spec = read_spec(snapshot)
    shapes = tensor_shapes(spec)
    tensors = {}
    for projection in sorted(family_projections(spec, lora.families)):
        rows, columns = shapes[f"{projection}.weight"]
        tensors[tensor_name(projection, "A")] = fresh_a(projection, seed=seed, rank=lora.rank, columns=columns)
        b = fresh_a(f"{projection}.B", seed=seed, rank=lora.rank, columns=rows)
        tensors[tensor_name(projection, "B")] = (b * _B_SCALE).t().contiguous()
    write_adapter(directory, tensors, lora.rank, lora.alpha)
