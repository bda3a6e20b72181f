"""Hugging Face's names, and where each tensor lives in the megatron model. The only such mapping.

Loading, adapters and export all walk these lists, so a name means one tensor everywhere. Experts carry their
global number; a rank lists only its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mint2m_trainer.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The part of a megatron tensor that one tensor of the snapshot fills."""

    name: str
    tensor: Tensor
    rows: slice

    @property
    def view(self) -> Tensor:
        """The memory to fill."""
        return self.tensor.data[self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A linear map of the Hugging Face model: rows of a megatron module's weight."""

    name: str
    module: nn.Module
    rows: slice

    @property
    def leaf(self) -> str:
        """The last part of the name, such as `gate_proj`."""
        return self.name.rsplit(".", 1)[-1]


def tensor_shapes(spec: ModelSpec) -> Mapping[str, tuple[int, ...]]:
    """Every tensor a snapshot of this model holds, with its shape."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab, spec.hidden),
        "model.norm.weight": (spec.hidden,),
        "lm_head.weight": (spec.vocab, spec.hidden),
    }
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{norm}.weight"] = (spec.hidden,)
        attention = f"{prefix}.self_attn"
        shapes |= {
            f"{attention}.q_a_proj.weight": (spec.q_rank, spec.hidden),
            f"{attention}.q_a_layernorm.weight": (spec.q_rank,),
            f"{attention}.q_b_proj.weight": (spec.heads * spec.query_width, spec.q_rank),
            f"{attention}.kv_a_proj_with_mqa.weight": (spec.row_width, spec.hidden),
            f"{attention}.kv_a_layernorm.weight": (spec.kv_rank,),
            f"{attention}.kv_b_proj.weight": (spec.heads * (spec.nope_width + spec.value_width), spec.kv_rank),
            f"{attention}.o_proj.weight": (spec.hidden, spec.heads * spec.value_width),
        }
        if spec.full_indexer(layer):
            indexer = f"{attention}.indexer"
            shapes |= {
                f"{indexer}.wq_b.weight": (spec.index_heads * spec.index_width, spec.q_rank),
                f"{indexer}.wk.weight": (spec.index_width, spec.hidden),
                f"{indexer}.k_norm.weight": (spec.index_width,),
                f"{indexer}.k_norm.bias": (spec.index_width,),
                f"{indexer}.weights_proj.weight": (spec.index_heads, spec.hidden),
            }
        if spec.mlps[layer] == "dense":
            shapes |= _mlp_shapes(f"{prefix}.mlp", spec.hidden, spec.dense_width)
            continue
        shapes[f"{prefix}.mlp.gate.weight"] = (spec.experts, spec.hidden)
        shapes[f"{prefix}.mlp.gate.e_score_correction_bias"] = (spec.experts,)
        shapes |= _mlp_shapes(f"{prefix}.mlp.shared_experts", spec.hidden, spec.expert_width * spec.shared_experts)
        for expert in range(spec.experts):
            shapes |= _mlp_shapes(f"{prefix}.mlp.experts.{expert}", spec.hidden, spec.expert_width)
    return shapes


def _mlp_shapes(prefix: str, hidden: int, width: int) -> Mapping[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def projection_names(spec: ModelSpec) -> frozenset[str]:
    """Every projection that may carry an adapter, experts of all ranks included."""
    names = (name.removesuffix(".weight") for name, shape in tensor_shapes(spec).items() if len(shape) == 2)
    frozen = (".indexer.", ".mlp.gate.", "model.embed_tokens.")
    return frozenset(name for name in names if not any(part in f"{name}." for part in frozen))


def projections(model: Any, spec: ModelSpec) -> Iterator[Projection]:
    """The projections that this rank holds and that may carry an adapter, in a fixed order."""
    for index, layer in enumerate(model.decoder.layers):
        prefix, attention = f"model.layers.{index}", layer.self_attention
        for leaf, module in (
            ("q_a_proj", attention.linear_q_down_proj),
            ("q_b_proj", attention.linear_q_up_proj),
            ("kv_a_proj_with_mqa", attention.linear_kv_down_proj),
            ("kv_b_proj", attention.linear_kv_up_proj),
            ("o_proj", attention.linear_proj),
        ):
            yield _whole(f"{prefix}.self_attn.{leaf}", module)
        if spec.mlps[index] == "dense":
            yield from _mlp_projections(f"{prefix}.mlp", layer.mlp)
            continue
        for number, expert in zip(layer.mlp.local_expert_indices, layer.mlp.experts.local_experts, strict=True):
            yield from _mlp_projections(f"{prefix}.mlp.experts.{number}", expert)
        yield from _mlp_projections(f"{prefix}.mlp.shared_experts", layer.mlp.shared_experts)
    yield _whole("lm_head", model.output_layer)


def _whole(name: str, module: Any) -> Projection:
    return Projection(name=name, module=module, rows=slice(0, module.weight.shape[0]))


def _mlp_projections(prefix: str, mlp: Any) -> Iterator[Projection]:
    half = mlp.linear_fc1.weight.shape[0] // 2  # megatron's gated fc1 is gate, then up
    yield Projection(name=f"{prefix}.gate_proj", module=mlp.linear_fc1, rows=slice(0, half))
    yield Projection(name=f"{prefix}.up_proj", module=mlp.linear_fc1, rows=slice(half, 2 * half))
    yield _whole(f"{prefix}.down_proj", mlp.linear_fc2)


def slots(model: Any, spec: ModelSpec) -> Iterator[Slot]:
    """Every snapshot tensor that this rank holds."""
    for projection in projections(model, spec):
        weight = projection.module.weight
        yield Slot(name=f"{projection.name}.weight", tensor=weight, rows=projection.rows)

    def whole(name: str, tensor: Tensor) -> Slot:
        return Slot(name=name, tensor=tensor, rows=slice(0, tensor.shape[0]))

    yield whole("model.embed_tokens.weight", model.embedding.word_embeddings.weight)
    yield whole("model.norm.weight", model.decoder.final_layernorm.weight)
    for index, layer in enumerate(model.decoder.layers):
        prefix, attention = f"model.layers.{index}", layer.self_attention
        yield whole(f"{prefix}.input_layernorm.weight", layer.input_layernorm.weight)
        yield whole(f"{prefix}.post_attention_layernorm.weight", layer.pre_mlp_layernorm.weight)
        yield whole(f"{prefix}.self_attn.q_a_layernorm.weight", attention.q_layernorm.weight)
        yield whole(f"{prefix}.self_attn.kv_a_layernorm.weight", attention.kv_layernorm.weight)
        if spec.full_indexer(index):
            for leaf, tensor in attention.indexer.named_parameters():
                yield whole(f"{prefix}.self_attn.indexer.{leaf}", tensor)
        if spec.mlps[index] == "sparse":
            yield whole(f"{prefix}.mlp.gate.weight", layer.mlp.router.weight)
            yield whole(f"{prefix}.mlp.gate.e_score_correction_bias", layer.mlp.router.expert_bias)
