"""The numbers of one update: by the verifier's arithmetic, torch's own AdamW, formulas, and one another's bytes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file

from mint2m_trainer.comm.together import RanksFailedError
from mint2m_trainer.optimizer import STANDARD_CONTRACT
from mint2m_trainer.scoring import Group, ScoreError
from mint2m_trainer.update import PhaseOutcome, RankInputs, UpdateError
from mint2m_verify import phases
from mint2m_verify.documents import RunProfile
from mint2m_verify.recompute import grpo, optimizer

sys.path.insert(0, str(Path(__file__).parent))
from update_kit import REWARDS, rank_inputs, recorded, run, scores_of

Done = tuple[RankInputs, dict[str, PhaseOutcome]]


@pytest.fixture(scope="module")
def recorded_run(
    small_snapshot: Path, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[RankInputs, dict[str, PhaseOutcome]]:
    """An update with log-probs from the rollout; for tests that only read it."""
    planned, group = recorded()
    place = tmp_path_factory.mktemp("recorded") / "run"
    given = rank_inputs(place, small_snapshot, free_port(), profile=planned, rollout=group)
    return given, run(given)


def test_losses_and_clips_are_what_the_verifier_computes_from_the_scores(recorded_run: Done) -> None:
    (given, outcomes), planned = recorded_run, recorded()[0]
    assert "score-old" not in outcomes
    assert "score-reference" not in outcomes
    scores = scores_of(given)
    assert scores.advantages == pytest.approx(grpo.group_advantages(REWARDS, 1e-6), abs=1e-14)
    weights = grpo.token_weights([len(r.policy) for r in scores.responses], planned.grpo)
    total, clipped = 0.0, 0
    for response, advantage, weight in zip(scores.responses, scores.advantages, weights, strict=True):
        again = grpo.token_losses(
            policy=response.policy,
            old=response.old,
            reference=response.ref,
            advantage=advantage,
            options=planned.grpo,
            epsilon=1.2e-7,
        )
        assert response.loss == pytest.approx(again.loss, rel=2e-6)
        assert again.clipped_low.holds(response.clipped_low)
        assert again.clipped_high.holds(response.clipped_high)
        clipped += response.clipped_low + response.clipped_high
        total += weight * float(again.loss.sum())
    assert clipped > 0
    assert scores.loss == pytest.approx(total, rel=1e-6)
    assert sum(outcomes[f"grpo-{g}"].evidence.loss or 0.0 for g in range(3)) == pytest.approx(scores.loss)


@pytest.mark.parametrize(
    "contract",
    [
        STANDARD_CONTRACT,
        replace(STANDARD_CONTRACT, weight_decay=0.1, clip_grad=1e6, lr=0.01),
    ],
)
def test_the_step_is_the_one_the_verifier_takes_from_our_own_gradient(
    inputs: Callable[..., RankInputs], recorded_run: Done, contract: Any
) -> None:
    given = recorded_run[0]
    if contract != given.profile.optimizer:
        given = inputs(profile=replace(given.profile, optimizer=contract), rollout=given.rollout)
        run(given)
    gradient = load_file(given.run_dir / "artifacts/gradient.safetensors")
    before = load_file(given.run_dir / "artifacts/adapter-before/adapter_model.safetensors")
    after = load_file(given.run_dir / "adapter/adapter_model.safetensors")
    moments = load_file(given.run_dir / "artifacts/optimizer-after.safetensors")
    assert gradient.keys() == before.keys() == after.keys()
    scores = scores_of(given)
    norm = optimizer.gradient_norm(gradient.values())
    assert scores.gradient_norm == pytest.approx(norm, rel=1e-12)
    coefficient = optimizer.clip_coefficient(norm, contract.clip_grad)
    assert (coefficient < 1) == (contract.clip_grad == 1.0)
    for name in gradient:
        want = optimizer.first_step(before[name], gradient[name], scores.clip_coefficient, contract)
        assert optimizer.within_rounding(want.parameter, after[name], before[name]), name
        assert optimizer.relative_difference(want.exp_avg, moments[f"{name}.exp_avg"]) < 1e-6
        assert optimizer.relative_difference(want.exp_avg_sq, moments[f"{name}.exp_avg_sq"]) < 1e-6
        assert (after[name] != before[name]).any()


def test_a_step_goes_on_from_the_moments_that_another_left(
    inputs: Callable[..., RankInputs], recorded_run: Done, tmp_path: Path
) -> None:
    """Two updates of one run each leave what torch's own AdamW makes of their two gradients in one life."""
    first, (planned, group) = recorded_run[0], recorded()
    left = first.run_dir / "artifacts/optimizer-after.safetensors"
    on = {"adapter": first.run_dir / "adapter", "moments": left, "steps_before": 1}
    second = inputs(profile=planned, rollout=group, run_dir=tmp_path / "second", **on)
    seen = run(second)[phases.OPTIMIZER_STEP].evidence
    assert (seen.optimizer_steps, seen.optimizer_life_steps) == (1, 2)
    before = load_file(first.run_dir / "artifacts/adapter-before/adapter_model.safetensors")
    contract = planned.optimizer
    held = {name: torch.nn.Parameter(torch.from_numpy(tensor.copy())) for name, tensor in before.items()}
    adamw = torch.optim.AdamW(
        held.values(), lr=contract.lr, betas=(contract.beta1, contract.beta2), eps=contract.eps,
        weight_decay=contract.weight_decay, foreach=False,
    )  # fmt: skip
    for update in (first, second):
        coefficient = scores_of(update).clip_coefficient
        for name, gradient in load_file(update.run_dir / "artifacts/gradient.safetensors").items():
            held[name].grad = torch.from_numpy(gradient) * coefficient
        adamw.step()
    after = load_file(second.run_dir / "adapter/adapter_model.safetensors")
    moments = load_file(second.run_dir / "artifacts/optimizer-after.safetensors")
    for name, p in held.items():
        assert (after[name] == p.detach().numpy()).all(), name
        assert (moments[f"{name}.exp_avg"] == adamw.state[p]["exp_avg"].numpy()).all(), name


def test_moments_that_do_not_fit_the_adapter_are_refused(
    inputs: Callable[..., RankInputs], recorded_run: Done, tmp_path: Path
) -> None:
    first, (planned, group) = recorded_run[0], recorded()
    whole = load_file(first.run_dir / "artifacts/optimizer-after.safetensors")
    some = next(iter(whole))
    for number, (tensors, words) in enumerate(
        [
            ({name: tensor for name, tensor in whole.items() if name != some}, "missing or extra"),
            (whole | {"nobody.exp_avg": whole[some]}, "other moments"),
            (whole | {some: whole[some].astype("float64")}, "float64"),
        ]
    ):
        path = tmp_path / f"{number}.safetensors"
        save_file(tensors, path)
        with pytest.raises((UpdateError, RanksFailedError), match=words):
            run(inputs(profile=planned, rollout=group, run_dir=tmp_path / str(number), moments=path, steps_before=1))


def test_two_runs_leave_the_same_bytes(inputs: Callable[..., RankInputs], recorded_run: Done) -> None:
    one = recorded_run[0]
    two = inputs(profile=one.profile, rollout=one.rollout)
    run(two)
    for name in ("artifacts/gradient.safetensors", "artifacts/scores.json", "adapter/adapter_model.safetensors"):
        assert (one.run_dir / name).read_bytes() == (two.run_dir / name).read_bytes()


@pytest.mark.parametrize("change", [{"page_rows": 8}, {"store": "mapped", "page_rows": 3}])
def test_where_pages_lie_and_how_large_they_are_changes_no_byte(
    inputs: Callable[..., RankInputs], recorded_run: Done, change: dict[str, Any]
) -> None:
    one = recorded_run[0]
    other = replace(one.profile, memory=replace(one.profile.memory, **change))
    assert RunProfile.parse(other.encode(), file="profile.json") == other
    two = inputs(profile=other, rollout=one.rollout)
    run(two)
    for name in ("artifacts/gradient.safetensors", "adapter/adapter_model.safetensors"):
        assert (one.run_dir / name).read_bytes() == (two.run_dir / name).read_bytes()


def test_with_one_old_log_prob_too_few_the_first_token_leaves_the_loss(
    inputs: Callable[..., RankInputs], recorded_run: Done
) -> None:
    planned, group = recorded()
    assert group.old_logprobs is not None
    given = inputs(profile=planned, rollout=replace(group, old_logprobs=tuple(o[1:] for o in group.old_logprobs)))
    outcomes = run(given)
    scores = scores_of(given)
    assert [len(r.policy) for r in scores.responses] == [3, 0, 5]
    assert [r.first_scored for r in scores.responses] == [1, 1, 1]
    assert scores.scored_tokens == 8
    assert outcomes["grpo-1"].evidence.scored_tokens == 0
    assert outcomes["grpo-1"].evidence.loss == 0.0
    kept = [r.policy[1:] for r in scores_of(recorded_run[0]).responses]
    assert [r.policy for r in scores.responses] == kept


ADVANTAGES = ((0.5, -1.25, 0.0, 2.0), (-0.75,), (1.0, -2.0, 0.25, -0.125, 3.0, -0.5))


@pytest.mark.parametrize("missing", [0, 1])
def test_each_token_takes_its_own_advantage_from_the_rollout(inputs: Callable[..., RankInputs], missing: int) -> None:
    """DAPO's objective (arXiv 2503.14476, eq. 8) with a dual bound (arXiv 1912.09729) and k3, by hand in float64."""
    planned, group = recorded(advantage_source="rollout", clip_dual=1.5)
    assert group.old_logprobs is not None
    old = tuple(values[missing:] for values in group.old_logprobs)
    given = inputs(profile=planned, rollout=replace(group, advantages=ADVANTAGES, old_logprobs=old))
    outcomes = run(given)
    scores = scores_of(given)
    assert scores.advantages is None
    total, count, clipped, bounded = 0.0, 0, 0, 0
    for response, row in zip(scores.responses, ADVANTAGES, strict=True):
        assert response.advantages == row[missing:]  # each of them is a float32
        assert response.ref is not None
        columns = zip(response.policy, response.old, response.ref, row[missing:], response.loss, strict=True)
        for policy, before, reference, advantage, loss in columns:
            ratio = math.exp(policy - before)
            gain = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
            if advantage < 0:
                bounded += gain < 1.5 * advantage
                gain = max(gain, 1.5 * advantage)
            want = -gain + 0.05 * (math.exp(reference - policy) - (reference - policy) - 1)
            assert loss == pytest.approx(want, rel=1e-5, abs=1e-6)
            clipped += (ratio < 0.8 and advantage < 0) + (ratio > 1.28 and advantage > 0)
            total, count = total + want, count + 1
    assert bounded > 0 < clipped
    assert scores.loss == pytest.approx(total / count, rel=1e-5)
    assert scores.clipped_low + scores.clipped_high == clipped
    assert sum(outcomes[f"grpo-{g}"].evidence.loss or 0.0 for g in range(3)) == pytest.approx(scores.loss)
    assert scores.has_signal


def test_the_groups_advantages_given_to_each_token_change_no_byte(
    inputs: Callable[..., RankInputs], recorded_run: Done
) -> None:
    by_reward, (planned, group) = recorded_run[0], recorded()
    single = torch.tensor(scores_of(by_reward).advantages, dtype=torch.float32).tolist()
    rows = tuple((value,) * len(r) for value, r in zip(single, group.responses, strict=True))
    asked = replace(planned, grpo=replace(planned.grpo, advantage_source="rollout"))
    by_token = inputs(profile=asked, rollout=replace(group, advantages=rows))
    run(by_token)
    for name in ("artifacts/gradient.safetensors", "adapter/adapter_model.safetensors"):
        assert (by_reward.run_dir / name).read_bytes() == (by_token.run_dir / name).read_bytes()


@pytest.mark.parametrize(
    ("asked", "advantages", "words"),
    [
        (False, ADVANTAGES, "takes none of the rollout's"),
        (True, None, "which has none"),
        (True, (*ADVANTAGES[:2], ADVANTAGES[2][1:]), "for each response token"),
        (True, ADVANTAGES[:2], "for each response token"),
        (True, (*ADVANTAGES[:2], (math.nan, *ADVANTAGES[2][1:])), "not finite"),
    ],
)
def test_advantages_that_the_profile_does_not_take_or_that_do_not_fit_are_refused(
    asked: bool, advantages: Any, words: str
) -> None:
    planned, group = recorded(**({"advantage_source": "rollout"} if asked else {}))
    with pytest.raises(ScoreError, match=words):
        Group(replace(group, advantages=advantages), planned.grpo, torch.float32, torch.device("cpu"))


def test_a_rollout_without_the_scores_that_the_profile_takes_from_it_is_refused() -> None:
    planned, group = recorded()
    device = torch.device("cpu")
    for lacking in (
        replace(group, old_logprobs=None),
        replace(group, ref_logprobs=None),
        replace(group, ref_logprobs=((-1.0,) * 2, (-1.0,), (-1.0,) * 6)),
    ):
        with pytest.raises(ScoreError):
            Group(lacking, planned.grpo, torch.float32, device)
    with pytest.raises(ValueError, match="old log-probs"):
        Group(replace(group, old_logprobs=((-1.0,) * 2, (-1.0,), (-1.0,) * 6)), planned.grpo, torch.float32, device)


@pytest.mark.parametrize(("distributed", "route"), [(False, "fetch"), (True, "lse")])
def test_two_ranks_make_one_update_and_agree_on_it(
    distributed: bool,
    route: str,
    inputs: Callable[..., RankInputs],
    recorded_run: Done,
    updated: Callable[[RankInputs], list[dict[str, PhaseOutcome]]],
    tmp_path: Path,
) -> None:
    alone, (planned, group) = recorded_run[0], recorded()
    topology = replace(planned.topology, world_size=2, context_parallel=2, expert_parallel=2)
    planned = replace(planned, prefix=replace(planned.prefix, route=route))  # type: ignore[arg-type]
    terms = replace(planned.optimizer, distributed_optimizer=distributed)
    planned = replace(planned, topology=topology, optimizer=terms)
    outcomes = updated(inputs(world_size=2, run_dir=tmp_path / "both", profile=planned, rollout=group))
    for phase in outcomes[0]:
        for member in phases.SHARED_EVIDENCE:
            assert getattr(outcomes[0][phase].evidence, member) == getattr(outcomes[1][phase].evidence, member), phase
    files = [path for rank in outcomes for outcome in rank.values() for path in outcome.files]
    assert len(files) == len(set(files))
    assert sorted(files) == sorted(
        path.relative_to(tmp_path / "both").as_posix() for path in (tmp_path / "both").rglob("*") if path.is_file()
    )
    one, two = (load_file(place / "artifacts/gradient.safetensors") for place in (alone.run_dir, tmp_path / "both"))
    assert one.keys() == two.keys()
    difference = sum(float(((one[name] - two[name]) ** 2).sum()) for name in one) ** 0.5
    assert difference < 2e-6 * optimizer.gradient_norm(one.values())
    stepped, moments = (
        load_file(tmp_path / "both" / name)
        for name in ("adapter/adapter_model.safetensors", "artifacts/optimizer-after.safetensors")
    )
    before = load_file(tmp_path / "both/artifacts/adapter-before/adapter_model.safetensors")
    coefficient = outcomes[0]["finalize"].evidence.clip_coefficient
    assert moments.keys() == {f"{name}.{kind}" for name in two for kind in ("exp_avg", "exp_avg_sq")}
    for name in two:
        want = optimizer.first_step(before[name], two[name], coefficient, planned.optimizer)
        assert optimizer.within_rounding(want.parameter, stepped[name], before[name]), name


def test_log_probs_further_from_the_samplers_than_the_profile_allows_are_refused_by_token() -> None:
    planned, group = recorded(logprob_bound=0.25)
    assert group.old_logprobs is not None
    scored = Group(group, planned.grpo, torch.float32, torch.device("cpu"))
    for response, drawn in enumerate(group.old_logprobs):
        missing = len(group.responses[response]) - len(drawn)  # a first token that nobody scored is not compared
        near = torch.tensor([-9.0] * missing + [value - 0.25 for value in drawn], dtype=torch.float64)
        scored.check_sampler(response, near)
        if drawn:
            near[-1] -= 0.01
            with pytest.raises(ScoreError, match=f"token {len(near) - 1} of response {response}: .* 0.26 from"):
                scored.check_sampler(response, near)
            near[-1] = math.nan
            with pytest.raises(ScoreError, match="nan"):
                scored.check_sampler(response, near)
