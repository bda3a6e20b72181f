"""The bytes that one update needs on its fullest rank, by category, before anything is allocated.

The rule: what grows with the prompt is counted exactly (pages, gradient pages, decisions, weights, LoRA and its
state), and what is bounded by a chunk, a tile or a response is bounded from above. Without a plan that is right
about the first kind a run of hours would end in the memory of one rank; the second kind does not decide.

Nothing here is measured, and the interpreter and its libraries (about 0.4 GiB a rank) are not counted.

Legend: P prompt tokens, T tokens of one pass on one rank, K kept rows a query, D row width, r LoRA rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mint2m_verify.canonical import parse
from mint2m_verify.documents import RunProfile
from mint2m_verify.documents.inputs import Context, FixtureShape
from mint2m_verify.documents.plan import MemoryCategory, MemoryItem
from mint2m_verify.finding import Finding, found
from mint2m_verify.model_numbers import ModelNumbers, parse_numbers

_ID_BYTES = 4  # selected positions and expert ids are kept as int32

#: Tenths of a pass's bytes that stay resident: forward and backward free tensors of many sizes in another order than
#: they made them, and the allocator cannot give all of it back. From the second chunk on it does so over and over.
#: Measured with glibc over models whose pass takes 16 to 215 MiB (`tests/benchmarks/bench_memory.py`): 1.25 to 1.75
#: times with several chunks, 1.0 to 1.25 with one.
_RESIDENT_TENTHS, _RESIDENT_TENTHS_OF_ONE_CHUNK = 15, 11

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}

#: Queries of all ranks that are scored in one round of selection.
_ROUND_QUERIES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Planned bytes of the fullest rank, by category, and what one prompt token costs on the rank that holds it."""

    items: tuple[MemoryItem, ...]
    page_bytes_per_token: int
    gradient_page_bytes_per_token: int
    decision_bytes_per_token: int

    @property
    def total(self) -> int:
        return sum(item.bytes for item in self.items)

    def bytes_of(self, category: MemoryCategory) -> int:
        """Planned bytes of one category."""
        return next(item.bytes for item in self.items if item.category == category)


def plan_memory(config: bytes, profile: RunProfile, shape: FixtureShape) -> tuple[MemoryItem, ...]:
    """The plan's `memory` member, for the lengths that a fixture has.

    Args:
        config: the snapshot's `config.json`.
        shape: of a fixture that fits the profile; its longest response bounds a pass.

    Raises:
        FindingError: `json.*` or `memory.model-numbers`.
    """
    model = parse_numbers(parse(config, file="config.json"), file="config.json")
    context = Context(prompt_tokens=shape.prompt_tokens, max_response_tokens=max(shape.response_tokens))
    return rank_memory(model, replace(profile, context=context)).items


def rank_memory(model: ModelNumbers, profile: RunProfile) -> MemoryPlan:
    """The plan of one rank under `profile`: pages, their gradient and decisions lie with the rank of their token."""
    topology, prefix = profile.topology, profile.prefix
    base = _DTYPE_BYTES[profile.model.dtype]
    state = 8 if profile.model.dtype == "float64" else 4  # LoRA, its gradients and gradient pages: fp32 or fp64
    cp, ep = topology.context_parallel, topology.expert_parallel
    exact, stored = prefix.gradient == "exact", prefix.decisions == "store"

    captured = profile.context.prompt_tokens - 1  # the last prompt token is replayed with each response
    own = held_rows(profile, 0)  # the first rank takes the larger shares
    page = base * (model.layers * model.row_width + model.full_indexers * model.index_width)
    gradient_page = state * model.layers * model.row_width if exact else 0
    decision = 0
    if exact and stored:
        kept = model.full_indexers * model.index_top_k + model.sparse_layers * model.experts_per_token
        decision = _ID_BYTES * kept

    replicated, experts = _lora_elements(model, profile)
    lora = replicated + experts
    stepped = lora
    if profile.optimizer.distributed_optimizer:  # moments of replicated parameters are dealt over the ranks
        stepped = math.ceil(replicated / cp) + experts
    items = (
        ("weights", _weight_bytes(model, base, ep)),
        ("lora", state * lora),
        ("gradients", 2 * state * lora),  # main_grad, and its clipped copy during the step
        ("optimizer", 2 * state * stepped),  # exp_avg and exp_avg_sq
        ("pages", page * own),
        ("gradient-pages", gradient_page * own),
        ("decisions", decision * own),
        ("activations", _activation_bytes(model, profile, base, captured)),
        ("communication", _communication_bytes(model, profile, base, captured)),
    )
    return MemoryPlan(
        items=tuple(MemoryItem(category=_category(name), bytes=count) for name, count in items),
        page_bytes_per_token=page,
        gradient_page_bytes_per_token=gradient_page,
        decision_bytes_per_token=decision,
    )


def check_memory(plan: MemoryPlan, *, available_bytes: int, source: str) -> tuple[Finding, ...]:
    """A finding where the plan does not fit.

    Args:
        available_bytes: what one rank may use.
        source: where that number comes from, for the reader (`profile /memory/rank_bytes`).
    """
    if plan.total <= available_bytes:
        return ()
    largest = max(plan.items, key=lambda item: item.bytes)
    return (
        found(
            "memory.does-not-fit",
            pointer=source,
            expected=f"at most {available_bytes} bytes a rank",
            actual=f"{plan.total} bytes, of which {largest.category} {largest.bytes}",
        ),
    )


def pass_tokens(profile: RunProfile) -> int:
    """Tokens of the largest pass on one rank: a chunk's share, or the last prompt token and a response's share."""
    cp = profile.topology.context_parallel
    chunk = min(profile.prefix.chunk_tokens, profile.context.prompt_tokens - 1)
    return max(math.ceil(chunk / cp), math.ceil((profile.context.max_response_tokens + 1) / cp), 1)


def held_rows(profile: RunProfile, rank: int, *, chunks: int | None = None) -> int:
    """Prefix rows that a rank holds: each chunk is split to within one row, the first ranks take the larger shares.

    Of the first `chunks` chunks, or of all where it is None.
    """
    whole, rest = _split(profile, chunks)
    return whole * _dealt(profile, rank, profile.prefix.chunk_tokens) + _dealt(profile, rank, rest)


def held_chunks(profile: RunProfile, rank: int, chunks: int) -> int:
    """Of how many of the first `chunks` chunks a rank holds a row."""
    whole, rest = _split(profile, chunks)
    of_whole = whole if _dealt(profile, rank, profile.prefix.chunk_tokens) else 0
    return of_whole + (1 if _dealt(profile, rank, rest) else 0)


def _split(profile: RunProfile, chunks: int | None) -> tuple[int, int]:
    """Whole chunks, and tokens of the last one."""
    tokens = profile.context.prompt_tokens - 1
    if chunks is not None:
        tokens = min(tokens, chunks * profile.prefix.chunk_tokens)
    return divmod(tokens, profile.prefix.chunk_tokens)


def _dealt(profile: RunProfile, rank: int, tokens: int) -> int:
    """A rank's share of a chunk of `tokens`."""
    cp = profile.topology.context_parallel
    return tokens // cp + (rank < tokens % cp)


def _category(name: str) -> MemoryCategory:
    match name:
        case "weights" | "lora" | "gradients" | "optimizer" | "pages":
            return name
        case "gradient-pages" | "decisions" | "activations" | "communication":
            return name
        case _:
            raise ValueError(f"no memory category {name}")


def _share(copies: int, ranks: int) -> int:
    """The largest share of `copies` things dealt over ranks."""
    return math.ceil(copies / ranks)


def _weight_bytes(model: ModelNumbers, base: int, ep: int) -> int:
    """Frozen weights: experts of this rank, everything else whole. Router and indexer head weights stay fp32."""
    total = 0
    for matrix in model.matrices():
        per_copy = matrix.rows * matrix.columns * (max(base, 4) if matrix.fp32 else base)
        if matrix.family == "expert":
            total += per_copy * model.sparse_layers * _share(model.experts, ep)
        else:
            total += per_copy * matrix.copies
    return total


def _lora_elements(model: ModelNumbers, profile: RunProfile) -> tuple[int, int]:
    """Elements of A and B on the fullest rank: those equal on all ranks, and those of its experts."""
    ep, replicated, experts = profile.topology.expert_parallel, 0, 0
    for matrix in model.matrices():
        if matrix.family is None or matrix.family not in profile.lora.families:
            continue
        of_one = profile.lora.rank * (matrix.rows + matrix.columns)
        if matrix.family == "expert":
            experts += of_one * model.sparse_layers * _share(model.experts, ep)
        else:
            replicated += of_one * matrix.copies
    return replicated, experts


def _activation_bytes(model: ModelNumbers, profile: RunProfile, base: int, captured: int) -> int:
    """An upper bound of what one pass keeps for its backward, and of the largest transient beside it."""
    tokens, rank = pass_tokens(profile), profile.lora.rank
    attention = (
        4 * model.hidden  # residual stream and normed input, before attention and before the MLP
        + 2 * model.q_rank
        + 2 * model.heads * (model.query_width + model.row_width)  # queries, then absorbed into latent width
        + 2 * model.heads * model.kv_rank  # latent output of attention and its gradient
        + model.heads * model.value_width
        + 2 * model.row_width
        + 5 * rank
    )
    dense = model.hidden + 3 * model.dense_width + 3 * rank
    routed = model.experts_per_token * (2 * model.hidden + 3 * model.expert_width + 3 * rank)
    shared = model.hidden + 3 * model.expert_width * model.shared_experts + 3 * rank
    sparse = routed + shared + 2 * model.experts
    kept = tokens * base * (model.layers * attention + model.dense_layers * dense + model.sparse_layers * sparse)
    selected = tokens * 8 * model.full_indexers * model.index_top_k  # int64 ids while a pass runs

    tile, top_k = min(profile.memory.query_tile, tokens), model.index_top_k
    wide = max(base, 4)
    # A tile's scores over one block of keys: the sum, one head's product, and the copy that top-k works on.
    scoring = tile * 4 * min(captured + tokens, 1 << 13) * 3 + tile * 16 * top_k
    # Rows of a tile are gathered once forward, and once more with their gradient backward.
    gathering = 3 * tile * top_k * model.row_width * wide
    # The rows that this rank's queries chose: the table and what it is put together from, its gradient and what of it
    # goes back to the owners.
    fetching = 2 * _chosen_rows(model, profile, captured) * model.row_width * (base + wide)
    head = 3 * min(profile.memory.head_tokens, profile.context.max_response_tokens + 1) * model.vocab * 4
    experts = 4 * min(profile.memory.expert_tokens, tokens * model.experts_per_token) * model.expert_width * base
    # One after another, so the largest counts.
    resident = _RESIDENT_TENTHS if captured > profile.prefix.chunk_tokens else _RESIDENT_TENTHS_OF_ONE_CHUNK
    return kept * resident // 10 + selected + max(scoring, gathering, fetching, head, experts)


def _chosen_rows(model: ModelNumbers, profile: RunProfile, captured: int) -> int:
    """The most rows that the queries of one pass choose on one rank."""
    tokens = pass_tokens(profile)
    return min(tokens * model.index_top_k, captured + profile.context.max_response_tokens + 1)


def _communication_bytes(model: ModelNumbers, profile: RunProfile, base: int, captured: int) -> int:
    """Buffers of one layer: the experts' all-to-all, sent and received, rows for other ranks, a round's candidates."""
    if profile.topology.world_size == 1:
        return 0
    tokens = pass_tokens(profile)
    cp = profile.topology.context_parallel
    # Received tokens may all be for one rank's experts: every rank's tokens at most once for each of its experts.
    local = min(model.experts_per_token, _share(model.experts, profile.topology.expert_parallel))
    dispatch = tokens * model.experts_per_token + tokens * cp * local
    # On average a rank sends as many rows as it receives; the received are counted where they are used.
    rows = _chosen_rows(model, profile, captured) * model.row_width * max(base, 4)
    queries = min(_ROUND_QUERIES, tokens * cp)
    # Scores and positions, sent and received, and what sorting them takes.
    candidates = queries * model.index_top_k * (2 * 12 + 3 * 8)
    asking = 2 * queries * model.index_heads * (model.index_width * base + 4)
    return 2 * dispatch * model.hidden * base + rows + candidates + asking
