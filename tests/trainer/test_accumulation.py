"""A step over two prompts, one run each, against the one conventional objective over the tokens of both.

The expected gradient comes from two conventional backward passes, each over its own prompt and averaged over its own
tokens by the trainer's plain path, which knows of no other prompt; the test weighs and sums them. All in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from mint2m_trainer.comm.together import RanksFailedError
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update, UpdateError
from mint2m_verify import phases
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import Rollout, RunProfile
from mint2m_verify.documents.inputs import Accumulation, GradientStart
from mint2m_verify.recompute import optimizer

sys.path.insert(0, str(Path(__file__).parent))
from update_kit import GRPO, profile, tokens

#: Prompts of two lengths; the lengths of their responses; how many of their tokens have an old log-prob each.
PROMPTS, RESPONSES, MISSING = (21, 13), ((4, 1, 6), (2, 5, 3)), (1, 0)
REWARDS = ((1.0, -1.0, 0.25), (-1.0, -1.0, 1.0))

GRADIENT, MOMENTS = "artifacts/gradient.safetensors", "artifacts/optimizer-after.safetensors"
BEFORE, AFTER = "artifacts/adapter-before/adapter_model.safetensors", "adapter/adapter_model.safetensors"


def group(prompt: int) -> Rollout:
    """One prompt's responses, with old log-probs far enough from the policy's for both clips."""
    responses = tuple(tokens(count, 100 * prompt + n) for n, count in enumerate(RESPONSES[prompt]))
    generator = torch.Generator().manual_seed(8 + prompt)
    old = tuple(tuple((torch.randn(len(r), generator=generator) * 0.6 - 4.1).tolist()) for r in responses)
    reference = tuple(tuple(-4.1 for _ in r) for r in responses)
    return Rollout(
        prompt_tokens=tokens(PROMPTS[prompt], 1 + prompt),
        responses=responses,
        rewards=REWARDS[prompt],
        old_logprobs=tuple(values[MISSING[prompt] :] for values in old),
        ref_logprobs=reference,
    )


def planned(prompt: int, world: int = 1, *, aggregation: str = "token_mean", distributed: bool = False) -> RunProfile:
    options = replace(GRPO, old_source="rollout", ref_source="rollout", aggregation=aggregation)
    if aggregation == "sequence_sum_norm":
        options = replace(options, norm_tokens=8)
    made = profile(world, grpo_options=options)
    return replace(
        made,
        context=replace(made.context, prompt_tokens=PROMPTS[prompt]),
        model=replace(made.model, dtype="float64", rope_angle_dtype="float64"),
        # A clip below the norm, so that what is clipped is the sum.
        optimizer=replace(made.optimizer, state_dtype="float64", clip_grad=0.02, distributed_optimizer=distributed),
    )


def scored(prompt: int) -> list[int]:
    return [count - MISSING[prompt] for count in RESPONSES[prompt]]


def place(index: int, before: Path | None) -> Accumulation:
    """The run of prompt `index`, on top of the gradient in `before`."""
    every = [*scored(0), *scored(1)]
    start = None
    if before is not None:
        start = GradientStart(path=before.name, sha256=sha256_hex(before.read_bytes()), seal_sha256="ef" * 32)
    return Accumulation(
        index=index, prompts=2, tokens=sum(every), responses=sum(count > 0 for count in every), gradient=start
    )


def make(inputs: RankInputs) -> dict[str, PhaseOutcome]:
    update = Update(inputs)
    try:
        return {phase: update.run(phase) for phase in update.phases}
    finally:
        update.close()


def given(rank: int, world: int, port: int, run_dir: Path, snapshot: Path, prompt: int, **change: Any) -> RankInputs:
    base = RankInputs(
        rank=rank,
        world_size=world,
        master_address="127.0.0.1",
        master_port=port,
        run_dir=run_dir,
        snapshot=snapshot,
        adapter=None,
        profile=planned(prompt, world),
        rollout=group(prompt),
        plan_sha256="ab" * 32,
        execution_id="cd" * 32,
        image_digest=None,
    )
    return replace(base, **change)


def rank_run(rank: int, inputs: RankInputs) -> dict[str, PhaseOutcome]:
    return make(replace(inputs, rank=rank))


def share(aggregation: str, prompt: int) -> float:
    """What the mean over one prompt is worth in the mean over both, by the definition of each aggregation."""
    if aggregation == "token_mean":
        return sum(scored(prompt)) / sum(scored(0) + scored(1))
    if aggregation == "sequence_mean":
        return sum(count > 0 for count in scored(prompt)) / sum(count > 0 for count in scored(0) + scored(1))
    return 1 / 2  # of groups of one size over one constant


def relative(have: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> float:
    assert have.keys() == want.keys()
    off = sum(float(((have[name] - want[name]) ** 2).sum()) for name in want)
    return (off / sum(float((want[name] ** 2).sum()) for name in want)) ** 0.5


@pytest.mark.parametrize(
    ("world", "aggregation", "distributed"),
    [
        (1, "token_mean", False),
        (1, "sequence_mean", False),
        (1, "sequence_sum_norm", False),
        pytest.param(2, "token_mean", False, marks=pytest.mark.slow),
        pytest.param(2, "sequence_mean", True, marks=pytest.mark.slow),
    ],
)
def test_two_runs_leave_the_gradient_of_the_one_objective_over_both_prompts_and_its_adamw_step(
    world: int,
    aggregation: str,
    distributed: bool,
    processes: Callable[..., list[Any]],
    free_port: Callable[[], int],
    small_snapshot: Path,
    tmp_path: Path,
) -> None:
    want: dict[str, np.ndarray] = {}
    for prompt in (0, 1):  # conventional, each by itself, on one rank
        alone = given(0, 1, free_port(), tmp_path / f"alone-{prompt}", small_snapshot, prompt, baseline=True)
        make(replace(alone, profile=planned(prompt, aggregation=aggregation)))
        for name, gradient in load_file(alone.run_dir / GRADIENT).items():
            want[name] = want.get(name, 0.0) + share(aggregation, prompt) * gradient
    before: Path | None = None
    outcomes: list[dict[str, PhaseOutcome]] = []
    for prompt in (0, 1):
        inputs = given(0, world, free_port(), tmp_path / f"run-{prompt}", small_snapshot, prompt)
        options = planned(prompt, world, aggregation=aggregation, distributed=distributed)
        inputs = replace(inputs, profile=options, accumulation=place(prompt, before), gradient=before)
        outcomes = processes(rank_run, world, inputs) if world > 1 else [make(inputs)]
        before = inputs.run_dir / GRADIENT
        ended = {path.relative_to(inputs.run_dir).parts[0] for path in inputs.run_dir.rglob("*") if path.is_file()}
        assert ended == ({"artifacts"} if prompt == 0 else {"artifacts", "adapter", "checkpoint"})
    last = tmp_path / "run-1"
    summed = load_file(last / GRADIENT)
    assert relative(summed, want) < 1e-9
    start = {rank[phases.FINALIZE].evidence.gradient_start_sha256 for rank in outcomes}
    assert len(start) == 1 and None not in start

    contract = planned(1).optimizer
    norm = float(np.sqrt(sum(float((gradient**2).sum()) for gradient in want.values())))
    coefficient = min(1.0, contract.clip_grad / (norm + 1e-6))
    assert coefficient < 0.9  # the clip is of the sum, and it is at work
    assert outcomes[0][phases.FINALIZE].evidence.gradient_norm == pytest.approx(norm, rel=1e-9)
    moments, stepped, began = (load_file(last / name) for name in (MOMENTS, AFTER, BEFORE))
    for name, gradient in want.items():
        clipped = gradient * coefficient
        # The first step from zero state: both bias corrections undo the decay of the moments.
        right = began[name] * (1 - contract.lr * contract.weight_decay)
        right = right - contract.lr * clipped / (np.abs(clipped) + contract.eps)
        sure = np.abs(clipped) > 1e-6 * np.abs(clipped).max(initial=0.0)  # a sum that cancels has a sign by rounding
        np.testing.assert_allclose(stepped[name][sure], right[sure], rtol=2e-6, atol=1e-9)
        first = (1 - contract.beta1) * clipped
        assert np.abs(moments[f"{name}.exp_avg"] - first).max() <= 1e-9 * np.abs(first).max(initial=1e-30)


@pytest.mark.slow
def test_each_rank_adds_the_start_once_and_bit_for_bit(
    processes: Callable[..., list[Any]], free_port: Callable[[], int], small_snapshot: Path, tmp_path: Path
) -> None:
    """The sum is, element by element, the start plus what the same run leaves without one: no rank adds it again."""
    first = given(0, 2, free_port(), tmp_path / "first", small_snapshot, 0, accumulation=place(0, None))
    processes(rank_run, 2, first)
    start = first.run_dir / GRADIENT
    own = given(0, 2, free_port(), tmp_path / "own", small_snapshot, 1, accumulation=place(0, None))
    processes(rank_run, 2, own)
    both = given(0, 2, free_port(), tmp_path / "both", small_snapshot, 1, accumulation=place(1, start), gradient=start)
    processes(rank_run, 2, both)
    left, right, total = (load_file(path / GRADIENT) for path in (first.run_dir, own.run_dir, both.run_dir))
    for name in total:
        assert (total[name] == left[name] + right[name]).all(), name
    assert optimizer.gradient_norm(total.values()) > 0


def test_a_gradient_that_does_not_fit_the_adapter_is_refused_before_anything_is_captured(
    free_port: Callable[[], int], small_snapshot: Path, tmp_path: Path
) -> None:
    first = given(0, 1, free_port(), tmp_path / "first", small_snapshot, 0, accumulation=place(0, None))
    make(first)
    whole = load_file(first.run_dir / GRADIENT)
    some = next(iter(whole))
    for number, (tensors, words) in enumerate(
        [
            ({name: tensor for name, tensor in whole.items() if name != some}, "has no"),
            (whole | {"nobody": whole[some]}, "another gradient"),
            (whole | {some: whole[some].astype("float32")}, "float32"),
            (whole | {some: whole[some][:, :-1].copy()}, "expected"),
        ]
    ):
        path = tmp_path / f"{number}.safetensors"
        save_file(tensors, path)
        inputs = given(0, 1, free_port(), tmp_path / str(number), small_snapshot, 1)
        update = Update(replace(inputs, accumulation=place(1, path), gradient=path))
        try:
            with pytest.raises((UpdateError, RanksFailedError), match=words):
                for phase in (phases.BIND, phases.INITIALIZE, phases.MATERIALIZE):
                    update.run(phase)
        finally:
            update.close()


def test_a_gradient_without_a_place_or_a_place_without_its_gradient_is_refused(
    free_port: Callable[[], int], small_snapshot: Path, tmp_path: Path
) -> None:
    path = tmp_path / "g.safetensors"
    path.write_bytes(b"")
    for change in ({"gradient": path}, {"accumulation": place(1, path)}):
        with pytest.raises(UpdateError, match="the gradient to go on from"):
            Update(given(0, 1, free_port(), tmp_path / "run", small_snapshot, 1, **change))
