"""The prefix's gradient against plain autograd over the whole sequence, and misuse of a session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.prefix.rows import PrefixError

sys.path.insert(0, str(Path(__file__).parent))  # a rank's process has only this file
from prefix_sessions import (
    RESPONSES,
    Cut,
    Forcing,
    Watching,
    gradients,
    policy,
    relative,
    session,
    weighted,
)


def whole(comm: Comm, snapshot: Path, mode: str, **options: Any) -> tuple[dict[str, Tensor], list[Tensor]]:
    made = policy(comm, snapshot)
    return gradients(made, session(made, comm, mode, **options), mode)


@pytest.mark.parametrize(("chunk", "decisions"), [(8, "store"), (8, "rescore"), (1, "store"), (64, "store")])
def test_the_exact_gradient_is_that_of_the_whole_sequence(
    single: Comm, small_snapshot: Path, chunk: int, decisions: str
) -> None:
    right, right_logp = whole(single, small_snapshot, "conventional")
    found, logp = whole(single, small_snapshot, "exact", cut=Cut(chunk=chunk, decisions=decisions))
    assert relative(found, right) < 1e-12
    for a, b in zip(logp, right_logp, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_detached_gradient_is_another_though_log_probs_are_equal(single: Comm, small_snapshot: Path) -> None:
    right, _ = whole(single, small_snapshot, "exact")
    _, logp = whole(single, small_snapshot, "exact")
    found, detached_logp = whole(single, small_snapshot, "detached")
    assert all(torch.equal(a, b) for a, b in zip(logp, detached_logp, strict=True))
    assert relative(found, right) > 0.05


def test_the_exact_gradient_passes_a_finite_difference(single: Comm, small_snapshot: Path) -> None:
    found, _ = whole(single, small_snapshot, "exact")
    for name in (
        "base_model.model.model.layers.0.self_attn.kv_a_proj_with_mqa.lora_A.weight",
        "base_model.model.model.layers.1.self_attn.kv_b_proj.lora_B.weight",
        "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight",
        "base_model.model.lm_head.lora_A.weight",
    ):
        values = []
        for step in (1e-5, -1e-5):
            made = policy(single, small_snapshot)
            parameter = dict(made.trainable())[name]
            direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            with torch.no_grad():
                parameter += step * direction
            run = session(made, single, "detached")
            run.capture()
            scored = [run.score(response) for response in range(len(RESPONSES))]
            values.append(sum(float(weighted(logp, slice(0, logp.numel())).total) for logp in scored))
        measured = (values[0] - values[1]) / 2e-5
        assert measured == pytest.approx(float((found[name] * direction).sum()), rel=1e-5, abs=1e-8), name


def test_small_expert_batches_change_nothing(single: Comm, small_snapshot: Path) -> None:
    results = []
    for expert_tokens in (4096, 2):
        made = policy(single, small_snapshot, expert_tokens=expert_tokens)
        results.append(gradients(made, session(made, single, "exact"), "exact")[0])
    assert relative(results[1], results[0]) < 1e-13


@pytest.mark.parametrize("families", [("expert",), ("unembed",), ("dense", "unembed")])
def test_rows_below_the_first_adapter_take_no_gradient_and_the_rest_is_right(
    single: Comm, small_snapshot: Path, families: tuple[str, ...]
) -> None:
    found = {}
    for mode in ("conventional", "exact"):
        made = policy(single, small_snapshot, families=families)
        found[mode] = gradients(made, session(made, single, mode), mode)[0]
    assert relative(found["exact"], found["conventional"]) < 1e-12


def test_two_ranks_give_the_gradient_of_one_though_a_response_has_one_token(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path
) -> None:
    right, right_logp = whole(single, small_snapshot, "exact")
    results = ranks(whole, 2, small_snapshot, "exact")
    for found, logp in results:
        assert relative(found, right) < 1e-12
        for a, b in zip(logp, right_logp, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_chunks_smaller_than_the_world_leave_ghosts_and_the_same_gradient(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path
) -> None:
    right, _ = whole(single, small_snapshot, "conventional")
    for found, _ in ranks(chunk_of_three, 4, small_snapshot):
        assert relative(found, right) < 1e-12


@pytest.mark.parametrize("prompt", [1, 2, 3])
def test_the_shortest_prompts_have_the_gradient_of_the_whole_sequence(
    single: Comm, small_snapshot: Path, prompt: int
) -> None:
    right, _ = whole(single, small_snapshot, "conventional", prompt=prompt)
    found, _ = whole(single, small_snapshot, "exact", prompt=prompt)
    assert relative(found, right) < 1e-12


def test_a_prefix_of_one_row_on_two_ranks_is_reversed_with_a_ghost(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path
) -> None:
    right, _ = whole(single, small_snapshot, "conventional", prompt=2)
    for found, _ in ranks(prompt_of_two, 2, small_snapshot):
        assert relative(found, right) < 1e-12


def prompt_of_two(comm: Comm, snapshot: Path) -> tuple[dict[str, Tensor], list[Tensor]]:
    return whole(comm, snapshot, "exact", prompt=2)


def chunk_of_three(comm: Comm, snapshot: Path) -> tuple[dict[str, Tensor], list[Tensor]]:
    return whole(comm, snapshot, "exact", chunk=3)


def test_scoring_twice_and_replaying_give_the_same_bits(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot, dtype="float32")
    run = session(made, single, "exact")
    run.capture()
    first, second = run.score(0), run.score(0)
    assert torch.equal(first, second)
    assert torch.equal(run.replay(0, weighted).logp, first)


def test_pages_in_bfloat16_reverse_bit_for_bit(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot, dtype="bfloat16")
    found, _ = gradients(made, session(made, single, "exact"), "exact")
    assert all(bool(torch.isfinite(value).all()) for value in found.values())
    right, _ = whole(single, small_snapshot, "exact")
    inner = sum(float((found[name].double() * right[name]).sum()) for name in right)
    norms = [sum(float(v.double().square().sum()) for v in side.values()) ** 0.5 for side in (found, right)]
    assert inner / (norms[0] * norms[1]) > 0.95


def test_bfloat16_is_as_near_to_float64_as_conventional_bfloat16(single: Comm, small_snapshot: Path) -> None:
    """Relative L2 of the gradient, the same rows and experts chosen; its bound is 1.2 times the conventional one."""
    watching = Watching()
    made = policy(single, small_snapshot)
    right, _ = gradients(made, session(made, single, "exact", prompt=257, decisions=watching), "exact")
    error = {}
    for mode in ("conventional", "exact"):
        made = policy(single, small_snapshot, dtype="bfloat16")
        run = session(made, single, mode, prompt=257, chunk=32, decisions=Forcing(watching.noted))
        error[mode] = relative(gradients(made, run, mode)[0], right)
    print(error)
    assert 0 < error["exact"] <= 1.2 * error["conventional"]


def ghost_counts(comm: Comm, snapshot: Path) -> list[int]:
    """Tokens that this rank's routers counted while it replayed the response of one token."""
    made = policy(comm, snapshot)
    run = session(made, comm, "exact")
    run.capture()
    run.replay(1, weighted)
    counted = [layer.mlp.router.local_tokens_per_expert for layer in made.inner.decoder.layers[1:]]
    return [int(count.sum()) for count in counted]


def test_a_ghost_is_not_counted_as_routed(ranks: Callable[..., list[Any]], small_snapshot: Path) -> None:
    # One token goes to two experts in each of three sparse layers; the other rank carried only its ghost.
    assert ranks(ghost_counts, 2, small_snapshot) == [[2, 2, 2], [0, 0, 0]]


def test_two_threads_reverse_bit_for_bit(single: Comm, small_snapshot: Path) -> None:
    torch.set_num_threads(2)
    try:
        made = policy(single, small_snapshot, dtype="float32")
        run = session(made, single, "exact")
        run.capture()
        scored = [run.score(response) for response in range(len(RESPONSES))]
        for response, logp in enumerate(scored):
            assert torch.equal(run.replay(response, weighted).logp, logp)
        assert run.reverse().row_difference == 0.0
    finally:
        torch.set_num_threads(1)


def test_passes_out_of_order_are_refused(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    run = session(made, single, "exact")
    with pytest.raises(PrefixError, match="scoring after new"):
        run.score(0)
    with pytest.raises(PrefixError, match="reversed after new"):
        run.reverse()
    run.capture()
    with pytest.raises(PrefixError, match="captured after captured"):
        run.capture()
    run.replay(0, weighted)
    with pytest.raises(PrefixError, match="scoring after replaying"):
        run.score(0)
    with pytest.raises(PrefixError, match="replayed already"):
        run.replay(0, weighted)
    with pytest.raises(PrefixError, match="1 of 3 responses"):
        run.reverse()


def test_a_detached_session_has_no_reverse_pass(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    run = session(made, single, "detached")
    run.capture()
    for response in range(len(RESPONSES)):
        run.replay(response, weighted)
    with pytest.raises(PrefixError, match="no reverse pass"):
        run.reverse()


def test_pages_under_other_weights_are_refused(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    run = session(made, single, "exact")
    run.capture()
    with torch.no_grad():
        made.trainable()[0][1].add_(1e-3)
    with pytest.raises(PrefixError, match="other weights"):
        run.replay(0, weighted)


def test_a_changed_page_is_refused(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    run = session(made, single, "exact")
    run.capture()
    run._store.chunk_rows(0).rows[0][0, 0] += 1e-6
    with pytest.raises(PrefixError, match="changed since"):
        run.score(0)


def test_a_recomputed_row_that_differs_by_one_bit_aborts_the_reverse_pass(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    run = session(made, single, "exact")
    run.capture()
    for response in range(len(RESPONSES)):
        run.replay(response, weighted)
    row = run._store.chunk_rows(2).rows[1]
    row.view(torch.int64)[0, 0] ^= 1
    run._witness = run._store.witness()  # hide the write from the witness: the comparison must see it by itself
    with pytest.raises(PrefixError, match=r"chunk 2 layer 1: recomputed rows differ"):
        run.reverse()


def test_closing_drops_pages_and_ends_the_session(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    run = session(made, single, "exact")
    run.capture()
    run.replay(0, weighted)
    run.close()
    run.close()
    assert run._store.length == 0
    with pytest.raises(PrefixError, match="after closed"):
        run.replay(1, weighted)
