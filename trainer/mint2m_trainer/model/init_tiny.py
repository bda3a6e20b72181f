"""A small GLM-MoE-DSA snapshot in Hugging Face layout, made from a seed.

The rule: a weight is a function of the seed and of its own global name, in integer arithmetic up to one last
scaling. Without it the same seed would give other weights under another numpy, another order of tensors or
another sharding, and a run could not be repeated from its inputs.

Layout: `config.json` as transformers 5.24 writes it, safetensors shards with per-expert names, their index.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mint2m_trainer.contract.directory import new_directory, write_synced

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

#: Shards a snapshot is cut into, about; the largest tensor is never cut.
SHARDS = 4

#: What may be changed, with the values of the demo model (byte tokens).
DEFAULTS: Mapping[str, Json] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 16,
    "index_topk": 64,
    "index_head_dim": 32,
    "index_n_heads": 4,
    "first_k_dense_replace": 1,
    "indexer_types": ["full", "shared", "full", "shared"],
    "max_position_embeddings": 16384,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "rms_norm_eps": 1e-05,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}


class TinyConfigError(ValueError):
    """A configuration that init-tiny does not make a snapshot of."""

    def __init__(self, pointer: str, *, expected: str, actual: str) -> None:
        super().__init__(f"config {pointer}: expected {expected}, got {actual}")
        self.pointer = pointer
        self.expected = expected
        self.actual = actual


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """One tensor of the snapshot: mean and standard deviation of its values."""

    name: str
    shape: tuple[int, ...]
    mean: float
    std: float


def init_tiny(output: Path | str, seed: int, config: Mapping[str, Json] | None = None) -> None:
    """Writes the snapshot directory, whole or not at all.

    Args:
        output: a directory that does not exist yet, or is empty.
        seed: any non-negative integer.
        config: Hugging Face keys to change from `DEFAULTS`; others are refused.

    Raises:
        TinyConfigError: an unknown key or a value that makes no model.
        FileExistsError: the directory is not empty.
    """
    if seed < 0:
        raise TinyConfigError("seed", expected=">= 0", actual=str(seed))
    settings = _settings(config or {})
    plans = sorted(tensor_plans(settings), key=lambda plan: plan.name)
    total = sum(4 * math.prod(plan.shape) for plan in plans)
    shards = _shards(plans, math.ceil(total / SHARDS))
    weight_map: dict[str, str] = {}
    with new_directory(Path(output)) as folder:
        for index, shard in enumerate(shards, 1):
            file = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
            tensors = {plan.name: values(plan, seed) for plan in shard}
            write_synced(folder / file, save(tensors, metadata={"format": "pt"}))
            weight_map |= dict.fromkeys(tensors, file)
        # Hugging Face counts parameters without buffers, bytes with them.
        buffers = sum(math.prod(plan.shape) for plan in plans if plan.name.endswith("e_score_correction_bias"))
        metadata = {"total_parameters": total // 4 - buffers, "total_size": total}
        index_file = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
        write_synced(folder / "model.safetensors.index.json", _json(index_file))
        write_synced(folder / "config.json", _json(hugging_face_config(settings)))


def values(plan: TensorPlan, seed: int) -> npt.NDArray[np.float32]:
    """The tensor's values: near normal, as the sum of twelve uniform 16-bit integers (Irwin-Hall).

    Raw PCG64 output is fixed by its authors; numpy's normal variates may change between versions.
    """
    digest = hashlib.sha256(f"mint2m.init-tiny/v1\n{seed}\n{plan.name}".encode()).digest()
    count = math.prod(plan.shape)
    words = np.random.PCG64(int.from_bytes(digest, "big")).random_raw(3 * count).astype("<u8")
    sums = words.view("<u2").reshape(count, 12).astype(np.int64).sum(axis=1)  # mean 12 * 65535 / 2
    normal = (sums - 6 * 65535) / 65535.0  # [-6, 6], standard deviation 1
    return (plan.mean + plan.std * normal).astype(np.float32).reshape(plan.shape)


def tensor_plans(settings: Mapping[str, Json]) -> Iterator[TensorPlan]:
    """Every tensor of the model, by its name in the checkpoint. Shapes are [out, in]."""
    n = _numbers(settings)
    hidden, qk = n["hidden_size"], n["qk_nope_head_dim"] + n["qk_rope_head_dim"]
    heads, q_rank, kv_rank = n["num_attention_heads"], n["q_lora_rank"], n["kv_lora_rank"]
    yield TensorPlan(name="model.embed_tokens.weight", shape=(n["vocab_size"], hidden), mean=0.0, std=0.5)
    yield _matrix("lm_head", n["vocab_size"], hidden)
    yield _norm("model.norm", hidden)
    for layer, indexer in enumerate(_indexer_types(settings)):
        stem = f"model.layers.{layer}"
        yield _norm(f"{stem}.input_layernorm", hidden)
        yield _norm(f"{stem}.post_attention_layernorm", hidden)
        attention = f"{stem}.self_attn"
        yield _matrix(f"{attention}.q_a_proj", q_rank, hidden)
        yield _norm(f"{attention}.q_a_layernorm", q_rank)
        yield _matrix(f"{attention}.q_b_proj", heads * qk, q_rank)
        yield _matrix(f"{attention}.kv_a_proj_with_mqa", kv_rank + n["qk_rope_head_dim"], hidden)
        yield _norm(f"{attention}.kv_a_layernorm", kv_rank)
        yield _matrix(f"{attention}.kv_b_proj", heads * (n["qk_nope_head_dim"] + n["v_head_dim"]), kv_rank)
        yield _matrix(f"{attention}.o_proj", hidden, heads * n["v_head_dim"])
        if indexer == "full":
            width = n["index_head_dim"]
            yield _matrix(f"{attention}.indexer.wq_b", n["index_n_heads"] * width, q_rank)
            yield _matrix(f"{attention}.indexer.wk", width, hidden)
            yield _norm(f"{attention}.indexer.k_norm", width)
            yield TensorPlan(name=f"{attention}.indexer.k_norm.bias", shape=(width,), mean=0.0, std=0.01)
            yield _matrix(f"{attention}.indexer.weights_proj", n["index_n_heads"], hidden)
        if layer < n["first_k_dense_replace"]:
            yield from _mlp(f"{stem}.mlp", hidden, n["intermediate_size"])
            continue
        experts, width = n["n_routed_experts"], n["moe_intermediate_size"]
        yield _matrix(f"{stem}.mlp.gate", experts, hidden)
        bias = f"{stem}.mlp.gate.e_score_correction_bias"
        yield TensorPlan(name=bias, shape=(experts,), mean=0.0, std=0.05)
        yield from _mlp(f"{stem}.mlp.shared_experts", hidden, width * n["n_shared_experts"])
        for expert in range(experts):
            yield from _mlp(f"{stem}.mlp.experts.{expert}", hidden, width)


def hugging_face_config(settings: Mapping[str, Json]) -> dict[str, Json]:
    """`config.json`: the settings with what transformers derives from them, key for key as it writes them."""
    n = _numbers(settings)
    layers, dense = n["num_hidden_layers"], n["first_k_dense_replace"]
    derived: dict[str, Json] = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "dtype": "float32",
        "eos_token_id": 1,
        "head_dim": n["qk_rope_head_dim"],
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["indexed_attention"] * layers,
        "mlp_bias": False,
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(layers)],
        "model_type": "glm_moe_dsa",
        "num_key_value_heads": n["num_attention_heads"],
        "output_router_logits": False,
        "pad_token_id": None,
        "qk_head_dim": n["qk_nope_head_dim"] + n["qk_rope_head_dim"],
        "tie_word_embeddings": False,
        "transformers_version": "5.24.0",
        "use_cache": True,
    }
    return dict(sorted((derived | dict(settings)).items()))


def _settings(changes: Mapping[str, Json]) -> dict[str, Json]:
    """The defaults with the changes, every number checked against the others it must agree with."""
    unknown = sorted(changes.keys() - DEFAULTS.keys())
    if unknown:
        raise TinyConfigError(f"/{unknown[0]}", expected=f"one of {sorted(DEFAULTS)}", actual="another key")
    settings = dict(DEFAULTS) | dict(changes)
    for key, value in settings.items():
        default = DEFAULTS[key]
        if isinstance(default, bool) or not isinstance(default, int):
            continue
        least = 0 if key == "first_k_dense_replace" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise TinyConfigError(f"/{key}", expected=f"an integer >= {least}", actual=repr(value))
    n = _numbers(settings)
    if "indexer_types" not in changes:
        # Another depth keeps the default's alternation: full, shared, full, ...
        pattern: list[Json] = ["full" if layer % 2 == 0 else "shared" for layer in range(n["num_hidden_layers"])]
        settings["indexer_types"] = pattern
    types = _indexer_types(settings)
    if len(types) != n["num_hidden_layers"] or types[0] != "full" or not set(types) <= {"full", "shared"}:
        expected = f"{n['num_hidden_layers']} of full or shared, the first full"
        raise TinyConfigError("/indexer_types", expected=expected, actual=repr(types))
    for smaller, larger in (
        ("first_k_dense_replace", "num_hidden_layers"),
        ("num_experts_per_tok", "n_routed_experts"),
        ("topk_group", "n_group"),
        ("qk_rope_head_dim", "index_head_dim"),
    ):
        if n[smaller] > n[larger]:
            raise TinyConfigError(f"/{smaller}", expected=f"at most {larger}, {n[larger]}", actual=str(n[smaller]))
    per_group, odd = divmod(n["n_routed_experts"], n["n_group"])
    if odd or (n["n_group"] > 1 and per_group < 2) or n["num_experts_per_tok"] > per_group * n["topk_group"]:
        expected = "equal groups of two or more that hold num_experts_per_tok together"
        raise TinyConfigError("/n_group", expected=expected, actual=str(n["n_group"]))
    if n["qk_rope_head_dim"] % 2:
        raise TinyConfigError("/qk_rope_head_dim", expected="an even number", actual=str(n["qk_rope_head_dim"]))
    return settings


def _numbers(settings: Mapping[str, Json]) -> dict[str, int]:
    return {k: v for k, v in settings.items() if isinstance(v, int) and not isinstance(v, bool)}


def _indexer_types(settings: Mapping[str, Json]) -> list[str]:
    types = settings["indexer_types"]
    if not isinstance(types, list) or not types or not all(isinstance(kind, str) for kind in types):
        raise TinyConfigError("/indexer_types", expected="a list of full or shared", actual=repr(types))
    return [str(kind) for kind in types]


def _matrix(module: str, rows: int, columns: int) -> TensorPlan:
    return TensorPlan(name=f"{module}.weight", shape=(rows, columns), mean=0.0, std=columns**-0.5)


def _norm(module: str, width: int) -> TensorPlan:
    # Not exactly one: a norm that is skipped or loaded into another then shows in the logits.
    return TensorPlan(name=f"{module}.weight", shape=(width,), mean=1.0, std=0.1)


def _mlp(module: str, hidden: int, width: int) -> Iterator[TensorPlan]:
    yield _matrix(f"{module}.gate_proj", width, hidden)
    yield _matrix(f"{module}.up_proj", width, hidden)
    yield _matrix(f"{module}.down_proj", hidden, width)


def _shards(plans: list[TensorPlan], limit: int) -> list[list[TensorPlan]]:
    """Consecutive tensors, each shard at most `limit` bytes unless one tensor alone is larger."""
    shards: list[list[TensorPlan]] = []
    used = limit
    for plan in plans:
        size = 4 * math.prod(plan.shape)
        if used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(plan)
        used += size
    return shards


def _json(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
