"""How large a GLM-MoE-DSA model is: the numbers of `config.json`, and the matrices that follow from them.

Only what sizes need is read here, without the trainer; whether the trainer supports the model is the trainer's
to say. Counts must be whole and positive: a zero would make a plan that fits everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.canonical import JsonValue, parse
from mint2m_verify.documents.inputs import Family
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight [rows, columns]; `family` is None where it never carries LoRA, `copies` counts equal ones."""

    name: str
    rows: int
    columns: int
    family: Family | None
    copies: int = 1
    fp32: bool = False

    @property
    def elements(self) -> int:
        """All copies together."""
        return self.rows * self.columns * self.copies

    @property
    def in_plus_out(self) -> int:
        """What a LoRA of rank 1 adds, all copies together."""
        return (self.rows + self.columns) * self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNumbers:
    """Sizes, named as in the trainer's spec."""

    vocab: int
    hidden: int
    layers: int
    dense_layers: int
    full_indexers: int
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
    index_heads: int
    index_width: int
    index_top_k: int

    @property
    def row_width(self) -> int:
        """Width of a page row: the latent and the rotated key part."""
        return self.kv_rank + self.rope_width

    @property
    def sparse_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def query_width(self) -> int:
        return self.nope_width + self.rope_width

    @property
    def parameters(self) -> int:
        """All parameters and buffers of the checkpoint."""
        return sum(matrix.elements for matrix in self.matrices())

    def matrices(self) -> Iterator[Matrix]:
        """Every weight of the model, equal ones of all layers (and experts) in one entry; norms as [1, width]."""
        n, sparse = self.layers, self.sparse_layers
        heads = self.heads
        yield Matrix(name="embed_tokens", rows=self.vocab, columns=self.hidden, family=None)
        yield Matrix(name="lm_head", rows=self.vocab, columns=self.hidden, family="unembed")
        yield Matrix(name="norms", rows=1, columns=self.hidden, family=None, copies=2 * n + 1)
        attention = (
            ("q_a_proj", self.q_rank, self.hidden),
            ("q_b_proj", heads * self.query_width, self.q_rank),
            ("kv_a_proj_with_mqa", self.row_width, self.hidden),
            ("kv_b_proj", heads * (self.nope_width + self.value_width), self.kv_rank),
            ("o_proj", self.hidden, heads * self.value_width),
        )
        for name, rows, columns in attention:
            yield Matrix(name=name, rows=rows, columns=columns, family="attention", copies=n)
        yield Matrix(name="latent norms", rows=1, columns=self.q_rank + self.kv_rank, family=None, copies=n)
        index = self.index_heads * self.index_width
        indexer = (
            ("indexer.wq_b", index, self.q_rank, False),
            ("indexer.wk", self.index_width, self.hidden, False),
            ("indexer.k_norm", 2, self.index_width, False),
            ("indexer.weights_proj", self.index_heads, self.hidden, True),
        )
        for name, rows, columns, fp32 in indexer:
            yield Matrix(name=name, rows=rows, columns=columns, family=None, copies=self.full_indexers, fp32=fp32)
        yield from _mlp("mlp", self.hidden, self.dense_width, "dense", self.dense_layers)
        if sparse:
            yield Matrix(
                name="router", rows=self.experts, columns=self.hidden + 1, family=None, copies=sparse, fp32=True
            )
            shared = self.expert_width * self.shared_experts
            yield from _mlp("shared_experts", self.hidden, shared, "shared", sparse)
            yield from _mlp("experts", self.hidden, self.expert_width, "expert", sparse * self.experts)


def read_numbers(snapshot: Path) -> ModelNumbers:
    """The numbers of `snapshot/config.json`; raises `FindingError` (`file.*`, `json.*`, `memory.model-numbers`)."""
    path = snapshot / "config.json"
    return parse_numbers(parse(read_once(path), file=str(path)), file=str(path))


def parse_numbers(config: JsonValue, *, file: str) -> ModelNumbers:
    """The numbers of a parsed `config.json`."""
    if not isinstance(config, dict):
        raise _fault(file, "", "an object", type(config).__name__)

    def count(name: str, least: int = 1) -> int:
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _fault(file, f"/{name}", f"an integer of at least {least}", repr(value))
        return value

    def kinds(name: str, default: list[str], allowed: tuple[str, str]) -> list[str]:
        value = config.get(name)
        if value is None:
            return default
        if not isinstance(value, list) or len(value) != layers or not all(kind in allowed for kind in value):
            raise _fault(file, f"/{name}", f"{layers} of {' or '.join(allowed)}", repr(value))
        return [str(kind) for kind in value]

    layers = count("num_hidden_layers")
    dense = min(count("first_k_dense_replace", 0), layers)
    mlps = kinds("mlp_layer_types", ["dense"] * dense + ["sparse"] * (layers - dense), ("dense", "sparse"))
    indexers = kinds("indexer_types", ["full"] * layers, ("full", "shared"))
    return ModelNumbers(
        vocab=count("vocab_size"),
        hidden=count("hidden_size"),
        layers=layers,
        dense_layers=mlps.count("dense"),
        full_indexers=indexers.count("full"),
        heads=count("num_attention_heads"),
        q_rank=count("q_lora_rank"),
        kv_rank=count("kv_lora_rank"),
        nope_width=count("qk_nope_head_dim"),
        rope_width=count("qk_rope_head_dim"),
        value_width=count("v_head_dim"),
        dense_width=count("intermediate_size"),
        expert_width=count("moe_intermediate_size"),
        experts=count("n_routed_experts"),
        experts_per_token=count("num_experts_per_tok"),
        shared_experts=count("n_shared_experts"),
        index_heads=count("index_n_heads"),
        index_width=count("index_head_dim"),
        index_top_k=count("index_topk"),
    )


def _mlp(name: str, hidden: int, width: int, family: Family, copies: int) -> Iterator[Matrix]:
    yield Matrix(name=f"{name}.gate_proj", rows=width, columns=hidden, family=family, copies=copies)
    yield Matrix(name=f"{name}.up_proj", rows=width, columns=hidden, family=family, copies=copies)
    yield Matrix(name=f"{name}.down_proj", rows=hidden, columns=width, family=family, copies=copies)


def _fault(file: str, pointer: str, expected: str, actual: str) -> FindingError:
    return FindingError(found("memory.model-numbers", file=file, pointer=pointer, expected=expected, actual=actual))
