"""Decoding from pages against the trainer's own scoring pass, other layouts, and Hugging Face's whole sequence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.prefix.rows import PrefixError
from mint2m_trainer.sampling.decode import Sampled, SamplingError
from mint2m_verify.documents.sampling import SamplingParameters

sys.path.insert(0, str(Path(__file__).parents[1] / "prefix"))  # a rank's process has only this file
from prefix_sessions import PROMPT, policy, session, token_ids

SEEDS = (11, 12, 13)


def parameters(**change: Any) -> SamplingParameters:
    given: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": None, "stop_tokens": (), "max_tokens": 12}
    return SamplingParameters(**(given | change))


def sampled(
    comm: Comm,
    snapshot: Path,
    dtype: str = "float64",
    *,
    seeds: tuple[int, ...] = SEEDS,
    prompt: int = PROMPT,
    layout: dict[str, Any] | None = None,
    **change: Any,
) -> tuple[tuple[Sampled, ...], list[torch.Tensor]]:
    """What is drawn, and the log-probs that the scoring pass of an update gives the finished responses."""
    made = policy(comm, snapshot, dtype)
    given, _ = token_ids(prompt)
    run = session(made, comm, "exact", tokens=(given, []), **(layout or {}))
    run.capture()
    drawn = run.sample(parameters(**change), seeds)
    run.close()
    tails = [torch.tensor(response.tokens) for response in drawn]
    scoring = session(made, comm, "exact", tokens=(given, tails), **(layout or {}))
    scoring.capture()
    return drawn, [scoring.score(response) for response in range(len(tails))]


def worst(drawn: tuple[Sampled, ...], scored: list[torch.Tensor]) -> float:
    """The largest difference between recorded and scored log-probs."""
    return max(
        float((torch.tensor(one.logp, dtype=torch.float64) - other.double()).abs().max())
        for one, other in zip(drawn, scored, strict=True)
    )


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("prompt", [PROMPT, 1, 2])
def test_recorded_log_probs_are_those_of_the_scoring_pass(
    single: Comm, small_snapshot: Path, dtype: str, bound: float, prompt: int
) -> None:
    drawn, scored = sampled(single, small_snapshot, dtype, prompt=prompt)
    assert worst(drawn, scored) < bound
    assert [len(response.tokens) for response in drawn] == [12, 12, 12]
    assert {response.finish for response in drawn} == {"length"}
    assert len({response.tokens for response in drawn}) == 3  # seeds differ, and so do draws


@pytest.mark.parametrize(
    ("change", "bound"), [({"temperature": 0.5, "top_p": 0.8, "top_k": 20}, 1e-12), ({"temperature": 0.0}, 1e-12)]
)
def test_what_shapes_the_draw_leaves_the_log_probs_those_of_the_policy(
    single: Comm, small_snapshot: Path, change: dict[str, Any], bound: float
) -> None:
    assert worst(*sampled(single, small_snapshot, **change)) < bound


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_draw_the_tokens_that_one_rank_draws(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path, world: int
) -> None:
    right, _ = sampled(single, small_snapshot)
    for drawn, scored in ranks(sampled, world, small_snapshot):
        assert [response.tokens for response in drawn] == [response.tokens for response in right]
        assert worst(drawn, scored) < 1e-12


def test_ranks_without_a_response_go_along(ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path) -> None:
    right, _ = sampled(single, small_snapshot, prompt=2)
    for drawn, scored in ranks(two_of_four, 4, small_snapshot):
        assert [response.tokens for response in drawn] == [response.tokens for response in right[:2]]
        assert worst(drawn, scored) < 1e-12


def two_of_four(comm: Comm, snapshot: Path) -> tuple[tuple[Sampled, ...], list[torch.Tensor]]:
    return sampled(comm, snapshot, prompt=2, seeds=SEEDS[:2])


@pytest.mark.parametrize("layout", [{"chunk": 1}, {"chunk": 64}, {"route": "lse"}, {"store": "mapped"}])
def test_no_cut_of_the_prefix_changes_a_draw(single: Comm, small_snapshot: Path, layout: dict[str, Any]) -> None:
    right, _ = sampled(single, small_snapshot)
    drawn, scored = sampled(single, small_snapshot, layout=layout)
    assert [response.tokens for response in drawn] == [response.tokens for response in right]
    assert worst(drawn, scored) < 1e-12


def test_a_response_is_drawn_alike_alone_and_in_company(single: Comm, small_snapshot: Path) -> None:
    together, _ = sampled(single, small_snapshot)
    for seed, response in zip(SEEDS, together, strict=True):
        alone, _ = sampled(single, small_snapshot, seeds=(seed,))
        assert alone[0].tokens == response.tokens


def test_a_stop_token_ends_its_response_and_no_other(single: Comm, small_snapshot: Path) -> None:
    free, _ = sampled(single, small_snapshot)
    stop = free[1].tokens[3]
    drawn, scored = sampled(single, small_snapshot, stop_tokens=(stop,))
    for response, whole in zip(drawn, free, strict=True):
        length = whole.tokens.index(stop) + 1 if stop in whole.tokens else 12
        assert response.tokens == whole.tokens[:length]
        assert response.finish == ("stop" if stop in whole.tokens else "length")
    assert len(drawn[1].tokens) <= 4
    assert worst(drawn, scored) < 1e-12


def test_the_pages_can_be_sampled_again_and_stay_as_captured(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    run = session(made, single, "exact", tokens=(token_ids()[0], []))
    witness = run.capture()
    first, second = run.sample(parameters(), SEEDS), run.sample(parameters(), SEEDS)
    assert first == second
    assert run._store.witness() == witness


def test_nothing_is_sampled_before_capture_under_other_weights_or_without_pages(
    single: Comm, small_snapshot: Path
) -> None:
    made = policy(single, small_snapshot)
    run = session(made, single, "exact", tokens=(token_ids()[0], []))
    with pytest.raises(PrefixError):
        run.sample(parameters(), SEEDS)
    run.capture()
    for change, seeds in (({"stop_tokens": (64,)}, SEEDS), ({"max_tokens": 0}, SEEDS), ({}, ())):
        with pytest.raises(SamplingError):
            run.sample(parameters(**change), seeds)
    with torch.no_grad():
        dict(made.trainable())["base_model.model.lm_head.lora_A.weight"].add_(1.0)
    with pytest.raises(PrefixError, match="other weights"):
        run.sample(parameters(), SEEDS)
    bare = session(policy(single, small_snapshot), single, "conventional", tokens=(token_ids()[0], []))
    bare.capture()
    with pytest.raises(PrefixError, match="no pages"):
        bare.sample(parameters(), SEEDS)


def test_weights_that_are_no_numbers_are_refused(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot)
    with torch.no_grad():
        dict(made.trainable())["base_model.model.lm_head.lora_B.weight"].fill_(float("nan"))
    run = session(made, single, "exact", tokens=(token_ids()[0], []))
    run.capture()
    with pytest.raises(SamplingError, match="nan"):
        run.sample(parameters(), SEEDS)


def greedy(comm: Comm, snapshot: Path) -> tuple[int, ...]:
    made = policy(comm, snapshot, "float64")
    with made.inner.base_only():
        run = session(made, comm, "exact", tokens=(token_ids()[0], []))
        run.capture()
        return run.sample(parameters(temperature=0.0, max_tokens=10), (0,))[0].tokens


def _ties_by_position(scores: torch.Tensor, k: int, dim: int = -1, **options: Any) -> Any:
    """Index scores [1, T, S], whose ties Hugging Face leaves to torch, by position; anything else as it was."""
    if scores.dim() != 3:
        return _TOPK(scores, k, dim=dim, **options)
    values, indices = scores.sort(dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values[..., :k], indices[..., :k]))


_TOPK = torch.Tensor.topk


def test_greedy_decoding_is_hugging_faces(single: Comm, small_snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GlmMoeDsaForCausalLM.from_pretrained(
        small_snapshot, attn_implementation="eager", experts_implementation="eager", dtype=torch.float64
    )
    sequence = token_ids()[0][None]
    monkeypatch.setattr(torch.Tensor, "topk", _ties_by_position)
    with torch.no_grad():
        for _ in range(10):  # whole sequences, so that no cache of theirs is taken on trust
            logits = model(sequence, use_cache=False).logits[0, -1]
            sequence = torch.cat([sequence, logits.argmax()[None, None]], dim=1)
    monkeypatch.undo()
    assert greedy(single, small_snapshot) == tuple(sequence[0, PROMPT:].tolist())
