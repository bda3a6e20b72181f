"""A model's shape, parsed strictly from the `config.json` of a Hugging Face snapshot.

Every member is either understood, known to have no effect on the numbers, or refused: a silently ignored
member would train another model than the snapshot's. The refusal names the member, what is supported and what
was found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mint2m_trainer.contract.positions import LongPositions
from mint2m_trainer.faults import InputError

#: Members that change no number of a forward or backward pass.
WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "layer_types",
        "max_position_embeddings",
        "num_key_value_heads",
        "output_router_logits",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)

#: Members that are supported with exactly one value.
FIXED: Mapping[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "mlp_bias": False,
    "model_type": "glm_moe_dsa",
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "indexer_rope_interleave": True,
    "rope_interleave": True,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
}

ROPE_MEMBERS = frozenset(
    {
        "rope_type",
        "rope_theta",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "truncate",
    }
)


class SpecError(InputError):
    """The snapshot's configuration is not one this trainer computes exactly."""

    def __init__(self, pointer: str, expected: str, actual: str) -> None:
        super().__init__(f"config.json {pointer}: expected {expected}, found {actual}")
        self.pointer = pointer
        self.expected = expected
        self.actual = actual


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN's constants (arXiv 2309.00071), named as Hugging Face does."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    mscale_all_dim: float
    truncate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Numbers of one GLM-MoE-DSA model; lengths of `indexers` and `mlps` are `layers`."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    q_rank: int
    kv_rank: int
    nope_width: int
    rope_width: int
    value_width: int
    dense_width: int
    expert_width: int
    experts: int
    experts_per_token: int
    shared_experts: int
    groups: int
    groups_per_token: int
    normalize_top_k: bool
    routed_scaling: float
    index_heads: int
    index_width: int
    index_top_k: int
    indexers: tuple[Literal["full", "shared"], ...]
    mlps: tuple[Literal["dense", "sparse"], ...]
    norm_eps: float
    rope_theta: float
    yarn: Yarn | None

    @property
    def query_width(self) -> int:
        """Width of one head's query and key before absorption."""
        return self.nope_width + self.rope_width

    @property
    def row_width(self) -> int:
        """Width of a page row: the latent and the rotated key part."""
        return self.kv_rank + self.rope_width

    @property
    def softmax_scale(self) -> float:
        """1/sqrt(query width), times YaRN's squared magnitude where the model has one."""
        scale = self.query_width**-0.5
        if self.yarn is not None and self.yarn.mscale_all_dim:
            magnitude = yarn_magnitude(self.yarn.factor, self.yarn.mscale_all_dim)
            scale *= magnitude * magnitude
        return scale

    def full_indexer(self, layer: int) -> bool:
        """Whether this layer scores for itself (0-based)."""
        return self.indexers[layer] == "full"


def yarn_magnitude(factor: float, mscale: float) -> float:
    """`0.1 m ln(factor) + 1`, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def read_spec(snapshot: Path, positions: LongPositions | None = None) -> ModelSpec:
    """Parse `snapshot/config.json`.

    Args:
        positions: to be put on the checkpoint in place of its own; None leaves them as they are.

    Raises:
        SpecError: a member is missing, unknown or outside what is supported.
        PositionsError: the positions do not fit the checkpoint.
    """
    try:
        config = json.loads((snapshot / "config.json").read_text(encoding="utf-8"))
    except ValueError as fault:
        raise SpecError("", "a JSON object", str(fault)) from fault
    if not isinstance(config, dict):
        raise SpecError("", "a JSON object", type(config).__name__)
    return parse_spec(config if positions is None else positions.applied(config))


def parse_spec(config: Mapping[str, Any]) -> ModelSpec:
    """The spec of one parsed `config.json`; see `read_spec`."""
    for name, only in FIXED.items():
        if name in config and config[name] != only:
            raise SpecError(f"/{name}", repr(only), repr(config[name]))
    if config.get("model_type") != "glm_moe_dsa":
        raise SpecError("/model_type", "'glm_moe_dsa'", repr(config.get("model_type")))
    members = _Members(config)
    layers = members.count("num_hidden_layers")
    first_dense = members.count("first_k_dense_replace", least=0)
    rope_width = members.count("qk_rope_head_dim")
    heads = members.count("num_attention_heads")
    theta, yarn = _rope(members.take("rope_parameters"))
    spec = ModelSpec(
        vocab=members.count("vocab_size"),
        hidden=members.count("hidden_size"),
        layers=layers,
        heads=heads,
        q_rank=members.count("q_lora_rank"),
        kv_rank=members.count("kv_lora_rank"),
        nope_width=members.count("qk_nope_head_dim"),
        rope_width=rope_width,
        value_width=members.count("v_head_dim"),
        dense_width=members.count("intermediate_size"),
        expert_width=members.count("moe_intermediate_size"),
        experts=members.count("n_routed_experts"),
        experts_per_token=members.count("num_experts_per_tok"),
        shared_experts=members.count("n_shared_experts"),
        groups=members.count("n_group"),
        groups_per_token=members.count("topk_group"),
        normalize_top_k=members.flag("norm_topk_prob"),
        routed_scaling=members.number("routed_scaling_factor"),
        index_heads=members.count("index_n_heads"),
        index_width=members.count("index_head_dim"),
        index_top_k=members.count("index_topk"),
        indexers=_kinds(config, "indexer_types", layers, ("full", "shared"), ["full"] * layers),
        mlps=_kinds(
            config,
            "mlp_layer_types",
            layers,
            ("dense", "sparse"),
            ["dense"] * min(first_dense, layers) + ["sparse"] * max(layers - first_dense, 0),
        ),
        norm_eps=members.number("rms_norm_eps"),
        rope_theta=theta,
        yarn=yarn,
    )
    _check_derived(config, spec)
    known = members.taken | WITHOUT_EFFECT | FIXED.keys()
    known |= {"indexer_types", "mlp_layer_types", "head_dim", "qk_head_dim"}
    for name in config:
        if name not in known:
            raise SpecError(f"/{name}", "no such member", repr(config[name]))
    return spec


class _Members:
    """Typed access to a configuration that remembers what was asked for."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.taken: set[str] = set()

    def take(self, name: str) -> Any:
        self.taken.add(name)
        if name not in self._config:
            raise SpecError(f"/{name}", "a value", "nothing")
        return self._config[name]

    def count(self, name: str, *, least: int = 1) -> int:
        value = self.take(name)
        if type(value) is not int or value < least:
            raise SpecError(f"/{name}", f"an integer of at least {least}", repr(value))
        return value

    def number(self, name: str) -> float:
        return _positive(f"/{name}", self.take(name))

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if type(value) is not bool:
            raise SpecError(f"/{name}", "true or false", repr(value))
        return value


def _positive(pointer: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise SpecError(pointer, "a positive number", repr(value))
    return float(value)


def _kinds(
    config: Mapping[str, Any], name: str, layers: int, allowed: tuple[str, str], default: list[str]
) -> tuple[Any, ...]:
    value = config.get(name)
    kinds = default if value is None else value
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= set(allowed):
        raise SpecError(f"/{name}", f"{layers} of {allowed}", repr(value))
    return tuple(kinds)


def _check_derived(config: Mapping[str, Any], spec: ModelSpec) -> None:
    """Members that follow from others must agree with them; ratios must divide."""
    for name, value in (
        ("head_dim", spec.rope_width),
        ("qk_head_dim", spec.query_width),
        ("num_key_value_heads", spec.heads),
    ):
        if config.get(name, value) != value:
            raise SpecError(f"/{name}", str(value), repr(config[name]))
    if spec.indexers[0] != "full":
        raise SpecError("/indexer_types/0", "'full': a shared layer reuses an earlier one", "'shared'")
    if spec.rope_width % 2 or spec.rope_width > spec.index_width:
        raise SpecError("/qk_rope_head_dim", "even and at most index_head_dim", str(spec.rope_width))
    if spec.experts % spec.groups or spec.groups_per_token > spec.groups:
        raise SpecError("/n_group", "a divisor of n_routed_experts, at least topk_group", str(spec.groups))
    if spec.experts // spec.groups < 2:
        raise SpecError("/n_group", "groups of two experts or more", str(spec.groups))
    if spec.experts_per_token > spec.groups_per_token * (spec.experts // spec.groups):
        raise SpecError("/num_experts_per_tok", "no more than the chosen groups hold", str(spec.experts_per_token))
    allowed = set(config.get("layer_types") or ["indexed_attention"])
    if allowed != {"indexed_attention"}:
        raise SpecError("/layer_types", "only 'indexed_attention'", repr(sorted(allowed)))


def _rope(parameters: Any) -> tuple[float, Yarn | None]:
    if not isinstance(parameters, dict):
        raise SpecError("/rope_parameters", "an object", repr(parameters))
    for name in parameters:
        if name not in ROPE_MEMBERS:
            raise SpecError(f"/rope_parameters/{name}", "no such member", repr(parameters[name]))
    theta = _positive("/rope_parameters/rope_theta", parameters.get("rope_theta"))
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        return theta, None
    if kind != "yarn":
        raise SpecError("/rope_parameters/rope_type", "'default' or 'yarn'", repr(kind))
    factor = _positive("/rope_parameters/factor", parameters.get("factor"))
    original = parameters.get("original_max_position_embeddings")
    if type(original) is not int or original < 1:
        raise SpecError("/rope_parameters/original_max_position_embeddings", "a positive integer", repr(original))
    truncate = parameters.get("truncate", True)
    if type(truncate) is not bool:
        raise SpecError("/rope_parameters/truncate", "true or false", repr(truncate))
    mscale = float(parameters.get("mscale") or 0)
    mscale_all_dim = float(parameters.get("mscale_all_dim") or 0)
    attention_factor = parameters.get("attention_factor")
    if attention_factor is None:
        if mscale and mscale_all_dim:
            attention_factor = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
        else:
            attention_factor = yarn_magnitude(factor, 1.0)
    return theta, Yarn(
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        attention_factor=_positive("/rope_parameters/attention_factor", attention_factor),
        mscale_all_dim=mscale_all_dim,
        truncate=truncate,
    )
