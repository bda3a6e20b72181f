"""The byte plan against numbers that others published or measured, and by its scaling."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.documents.inputs import (
    Context,
    FixtureShape,
    GrpoOptions,
    LoraOptions,
    MemoryOptions,
    ModelNumerics,
    OptimizerContract,
    PrefixOptions,
    RunProfile,
    Timeouts,
    Topology,
)
from mint2m_verify.finding import FindingError
from mint2m_verify.memory_plan import check_memory, held_rows, plan_memory, rank_memory
from mint2m_verify.model_numbers import parse_numbers

#: GLM-5 by the defaults of transformers' GlmMoeDsaConfig (zai-org/GLM-5), with 21 full indexers among its 78 layers:
#: the number for which a token's pages are the design's 93 KiB.
GLM5: dict[str, Any] = {
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "kv_lora_rank": 512,
    "q_lora_rank": 2048,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "num_experts_per_tok": 8,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "first_k_dense_replace": 3,
    "indexer_types": ["full" if i < 3 or i % 4 == 2 else "shared" for i in range(78)],
}
GIB = 2**30


def profile(prompt: int, ranks: int, **changes: Any) -> RunProfile:
    made = RunProfile(
        name="p",
        topology=Topology(
            world_size=ranks, tensor_parallel=1, pipeline_parallel=1, context_parallel=ranks, expert_parallel=ranks
        ),
        context=Context(prompt_tokens=prompt, max_response_tokens=16),
        group_size=2,
        model=ModelNumerics(dtype="bfloat16", rope_angle_dtype="float32"),
        lora=LoraOptions(rank=8, alpha=16.0, families=("attention", "dense", "shared", "expert", "unembed"), seed=0),
        optimizer=OptimizerContract(
            name="adam",
            lr=1e-4,
            min_lr=0.0,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.01,
            decoupled_weight_decay=True,
            clip_grad=1.0,
            schedule="constant",
            distributed_optimizer=False,
            state_dtype="float32",
        ),
        grpo=GrpoOptions(
            clip_low=0.2,
            clip_high=0.2,
            clip_dual=None,
            kl_beta=0.0,
            kl_estimator="k3",
            advantage_eps=1e-6,
            aggregation="token_mean",
            norm_tokens=None,
            old_source="recompute",
            ref_source="recompute",
        ),
        prefix=PrefixOptions(gradient="exact", chunk_tokens=8192, decisions="store", route="fetch"),
        memory=MemoryOptions(head_tokens=512, query_tile=64, expert_tokens=1024, rank_bytes=None),
        timeouts_s=Timeouts(start=60, phase=60, cleanup=60),
    )
    return dataclasses.replace(made, **changes)


def test_glm5_has_the_744_billion_parameters_that_its_makers_state() -> None:
    assert parse_numbers(GLM5, file="c").parameters == pytest.approx(744e9, rel=2e-3)


def test_two_million_tokens_on_32_ranks_need_the_pages_that_the_design_states() -> None:
    """93 KiB of pages, 175 of gradient pages and 168 of stored ids a token; 27 GiB a rank."""
    model = parse_numbers(GLM5, file="c")
    plan = rank_memory(model, profile(2_097_152, 32))
    assert plan.page_bytes_per_token == 93 * 1024
    assert plan.gradient_page_bytes_per_token // 1024 == 175
    selected = 4 * 21 * 2048
    assert selected == 168 * 1024
    assert plan.decision_bytes_per_token == selected + 4 * 75 * 8  # and the expert ids
    grows = sum(plan.bytes_of(category) for category in ("pages", "gradient-pages", "decisions"))
    assert round(grows / GIB) == 27


def test_pages_lie_with_the_rank_of_their_token_and_fall_with_the_ranks() -> None:
    model = parse_numbers(GLM5, file="c")
    one = rank_memory(model, profile(65_537, 1))
    many = rank_memory(model, profile(65_537, 8))
    assert one.bytes_of("pages") == 65_536 * 93 * 1024
    for category in ("pages", "gradient-pages", "decisions"):
        assert many.bytes_of(category) * 8 == one.bytes_of(category)  # chunks of 8,192 divide by 8


def test_rows_of_all_ranks_are_the_prefix_and_the_first_ranks_hold_the_odd_ones() -> None:
    """101 rows in chunks of 8 over 3 ranks: twelve chunks of 3, 3, 2 and a last of 5 as 2, 2, 1."""
    given = profile(102, 3)
    given = dataclasses.replace(given, prefix=dataclasses.replace(given.prefix, chunk_tokens=8))
    assert [held_rows(given, rank) for rank in range(3)] == [12 * 3 + 2, 12 * 3 + 2, 12 * 2 + 1]


def test_weights_of_one_rank_are_the_snapshots_and_experts_are_dealt_out() -> None:
    """float32 keeps four bytes of every parameter; with 8 ranks only the experts shrink."""
    model = parse_numbers(GLM5, file="c")
    numerics = ModelNumerics(dtype="float32", rope_angle_dtype="float32")
    experts = 75 * 256 * 3 * 6144 * 2048
    one = rank_memory(model, profile(8192, 1, model=numerics)).bytes_of("weights")
    eight = rank_memory(model, profile(8192, 8, model=numerics)).bytes_of("weights")
    assert one == 4 * model.parameters
    assert one - eight == 4 * experts * 7 // 8


def test_router_and_indexer_head_weights_stay_float32_in_a_bfloat16_model() -> None:
    model = parse_numbers(GLM5, file="c")
    narrow = rank_memory(model, profile(8192, 1)).bytes_of("weights")
    float32 = 75 * 256 * (6144 + 1) + 21 * 32 * 6144  # router with its bias, indexer head weights
    assert narrow == 2 * model.parameters + 2 * float32


def test_lora_and_its_state_are_counted_by_family() -> None:
    """Rank 8 on the unembedding alone: 8 (154880 + 6144) elements; parameter, two gradients, two moments."""
    lora = LoraOptions(rank=8, alpha=16.0, families=("unembed",), seed=0)
    plan = rank_memory(parse_numbers(GLM5, file="c"), profile(8192, 2, lora=lora))
    elements = 8 * (154880 + 6144)
    sizes = [plan.bytes_of(category) for category in ("lora", "gradients", "optimizer")]
    assert sizes == [4 * elements, 8 * elements, 8 * elements]


def test_a_distributed_optimizer_divides_the_moments_of_replicated_parameters_only() -> None:
    model = parse_numbers(GLM5, file="c")
    plain = profile(8192, 4)
    dealt = dataclasses.replace(plain, optimizer=dataclasses.replace(plain.optimizer, distributed_optimizer=True))
    experts = 75 * (256 // 4) * 3 * 8 * (6144 + 2048)
    whole, divided = (rank_memory(model, p).bytes_of("optimizer") for p in (plain, dealt))
    assert divided == 8 * (math.ceil((whole // 8 - experts) / 4) + experts)
    assert rank_memory(model, dealt).bytes_of("gradients") == rank_memory(model, plain).bytes_of("gradients")


def test_detached_and_rescored_prefixes_keep_no_gradient_pages_and_no_decisions() -> None:
    model = parse_numbers(GLM5, file="c")
    detached = PrefixOptions(gradient="detached", chunk_tokens=512, decisions="store", route="fetch")
    rescored = PrefixOptions(gradient="exact", chunk_tokens=512, decisions="rescore", route="fetch")
    plan = rank_memory(model, profile(8192, 1, prefix=detached))
    assert (plan.bytes_of("gradient-pages"), plan.bytes_of("decisions")) == (0, 0)
    assert plan.bytes_of("pages") > 0
    plan = rank_memory(model, profile(8192, 1, prefix=rescored))
    assert plan.bytes_of("decisions") == 0
    assert plan.bytes_of("gradient-pages") > 0


def test_activations_follow_the_chunk_and_not_the_prompt() -> None:
    model = parse_numbers(GLM5, file="c")

    def activations(prompt: int, chunk: int) -> int:
        prefix = PrefixOptions(gradient="exact", chunk_tokens=chunk, decisions="store", route="fetch")
        return rank_memory(model, profile(prompt, 1, prefix=prefix)).bytes_of("activations")

    # 256 queries keep 2,048 rows each: they cannot choose more than 2**19 rows together, however long the prompt.
    assert activations(2**20, 256) == activations(2**21, 256)
    assert 1.8 < activations(2**20, 256) / activations(2**20, 128) < 2.1


def test_activations_of_the_smallest_model_are_the_sum_worked_out_by_hand() -> None:
    """One dense layer, every width 1, ten tokens a pass, four bytes an element.

    A token keeps 4 residual streams, 2 query latents, 2 of 2 + 2 query elements, 2 latent outputs, 1 value, 2 rows of 2
    and 5 LoRA elements: 26; and 1 + 3 + 3 in the MLP: 33 elements. 33 * 4 * 10 = 1,320 bytes, of which the allocator
    makes 1,452 where the prompt is one chunk, and 1,980 where it is two. Ids of one selected row, int64: 80. Scores of
    10 queries over 20 or 30 rows, three times, and a candidate of 16 bytes each: 2,400 + 160 or 3,600 + 160, more than
    anything else that a pass needs for a moment. Together 4,092, or 5,820.
    """
    widths = dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size", "kv_lora_rank"), 1)
    ones = dict.fromkeys((name for name, value in GLM5.items() if isinstance(value, int)), 1)
    model = parse_numbers({**ones, **widths, "indexer_types": ["full"]}, file="c")
    lora = LoraOptions(rank=1, alpha=1.0, families=("attention",), seed=0)
    prefix = PrefixOptions(gradient="exact", chunk_tokens=10, decisions="store", route="fetch")
    made = profile(11, 1, lora=lora, prefix=prefix, model=ModelNumerics(dtype="float32", rope_angle_dtype="float32"))
    for tokens, bytes in ((11, 1_452 + 80 + 2_560), (21, 1_980 + 80 + 3_760)):
        planned = dataclasses.replace(made, context=Context(prompt_tokens=tokens, max_response_tokens=4))
        assert rank_memory(model, planned).bytes_of("activations") == bytes


def test_one_rank_needs_no_communication_buffers() -> None:
    model = parse_numbers(GLM5, file="c")
    assert rank_memory(model, profile(8192, 1)).bytes_of("communication") == 0
    assert rank_memory(model, profile(8192, 2)).bytes_of("communication") > 0


def test_the_plan_for_a_fixture_uses_its_lengths() -> None:
    shape = FixtureShape(vocab_size=154880, prompt_tokens=1025, response_tokens=(9, 12))
    items = plan_memory(json.dumps(GLM5).encode(), profile(2_097_152, 1), shape)
    assert {item.category: item.bytes for item in items}["pages"] == 1024 * 93 * 1024
    assert len(items) == len({item.category for item in items}) == 9


def test_a_plan_that_does_not_fit_is_a_finding_with_both_numbers() -> None:
    plan = rank_memory(parse_numbers(GLM5, file="c"), profile(65_537, 1))
    assert check_memory(plan, available_bytes=plan.total, source="/memory/rank_bytes") == ()
    (fault,) = check_memory(plan, available_bytes=plan.total - 1, source="/memory/rank_bytes")
    assert fault.id == "memory.does-not-fit"
    assert str(plan.total) in str(fault.actual)
    assert str(plan.total - 1) in str(fault.expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", 64.0),
        ("hidden_size", True),
        ("vocab_size", None),
        ("indexer_types", ["full"]),
        ("indexer_types", ["half"] * 78),
        ("mlp_layer_types", "dense"),
    ],
)
def test_a_config_without_its_numbers_gives_no_plan(name: str, value: object) -> None:
    with pytest.raises(FindingError) as fault:
        parse_numbers(GLM5 | {name: value}, file="config.json")  # type: ignore[arg-type]
    assert fault.value.finding.id == "memory.model-numbers"
    assert fault.value.finding.pointer == f"/{name}"


def test_planned_pages_are_the_bytes_that_a_store_holds(shared: Any) -> None:
    """The oracle's model: rows of 48 and, on three full layers, keys of 32; float32; 149 of 150 prompt tokens."""
    from mint2m_verify.model_numbers import read_numbers

    snapshot: Path = shared("oracle") / "indexshare" / "snapshot"
    numerics = ModelNumerics(dtype="float32", rope_angle_dtype="float32")
    plan = rank_memory(read_numbers(snapshot), profile(150, 1, model=numerics))
    assert plan.bytes_of("pages") == 149 * 4 * (5 * 48 + 3 * 32)
    assert plan.bytes_of("gradient-pages") == 149 * 4 * 5 * 48
    assert plan.bytes_of("decisions") == 149 * 4 * (3 * 24 + 4 * 2)
    assert math.isclose(plan.total, sum(item.bytes for item in plan.items))
