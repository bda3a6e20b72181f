"""One update end to end: phases, evidence, artifacts, and what the verifier's own arithmetic makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file

from mint2m_trainer.comm.together import RanksFailedError
from mint2m_trainer.model.lora import LoraError
from mint2m_trainer.optimizer import STANDARD_CONTRACT
from mint2m_trainer.peft import read_adapter
from mint2m_trainer.scoring import Group, ScoreError
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update, UpdateError
from mint2m_verify import phases
from mint2m_verify.documents import Rollout, RunProfile, Scores
from mint2m_verify.documents.inputs import (
    Context,
    GrpoOptions,
    LoraOptions,
    MemoryOptions,
    ModelNumerics,
    PrefixOptions,
    Timeouts,
    Topology,
)
from mint2m_verify.recompute import grpo, optimizer

PROMPT, LENGTHS, REWARDS = 21, (4, 1, 6), (1.0, -1.0, 0.25)
GRPO = GrpoOptions(
    clip_low=0.2,
    clip_high=0.28,
    clip_dual=None,
    kl_beta=0.05,
    kl_estimator="k3",
    advantage_eps=1e-6,
    aggregation="token_mean",
    norm_tokens=None,
    old_source="recompute",
    ref_source="recompute",
)


def tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, 64, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def rollout(**change: Any) -> Rollout:
    responses = tuple(tokens(count, 50 + index) for index, count in enumerate(LENGTHS))
    base = Rollout(
        prompt_tokens=tokens(PROMPT, 1), responses=responses, rewards=REWARDS, old_logprobs=None, ref_logprobs=None
    )
    return replace(base, **change)


def profile(world: int = 1, *, gradient: str = "exact", grpo_options: GrpoOptions = GRPO) -> RunProfile:
    return RunProfile(
        name="test",
        topology=Topology(
            world_size=world, tensor_parallel=1, pipeline_parallel=1, context_parallel=world, expert_parallel=world
        ),
        context=Context(prompt_tokens=PROMPT, max_response_tokens=8),
        group_size=len(LENGTHS),
        model=ModelNumerics(dtype="float32", rope_angle_dtype="float32"),
        lora=LoraOptions(rank=2, alpha=4.0, families=("attention", "dense", "shared", "expert", "unembed"), seed=3),
        optimizer=STANDARD_CONTRACT,
        grpo=grpo_options,
        prefix=PrefixOptions(gradient=gradient, chunk_tokens=8, decisions="store", route="fetch"),
        memory=MemoryOptions(head_tokens=3, query_tile=5, expert_tokens=64, rank_bytes=None),
        timeouts_s=Timeouts(start=60, phase=60, cleanup=60),
    )


@pytest.fixture
def inputs(tmp_path: Path, small_snapshot: Path, free_port: Callable[[], int]) -> Callable[..., RankInputs]:
    """A rank's inputs in a world of one, with the given members changed."""

    def make(**change: Any) -> RankInputs:
        base = RankInputs(
            rank=0,
            world_size=1,
            master_address="127.0.0.1",
            master_port=free_port(),
            run_dir=tmp_path / "run",
            snapshot=small_snapshot,
            adapter=None,
            profile=profile(),
            rollout=rollout(),
            plan_sha256="ab" * 32,
            execution_id="cd" * 32,
            image_digest=None,
        )
        return replace(base, **change)

    return make


def run(inputs: RankInputs) -> dict[str, PhaseOutcome]:
    update = Update(inputs)
    try:
        return {phase: update.run(phase) for phase in update.phases}
    finally:
        update.close()


def scores_of(inputs: RankInputs) -> Scores:
    return Scores.parse((inputs.run_dir / "artifacts/scores.json").read_bytes(), file="scores.json")


def recorded(**change: Any) -> tuple[RunProfile, Rollout]:
    """Old and reference log-probs from the rollout, some far enough from the policy's for both clips."""
    given = rollout()
    generator = torch.Generator().manual_seed(8)
    noisy = tuple(tuple((torch.randn(len(r), generator=generator) * 0.6 - 4.1).tolist()) for r in given.responses)
    reference = tuple(tuple(-4.1 for _ in r) for r in given.responses)
    options = replace(GRPO, old_source="rollout", ref_source="rollout", **change)
    return profile(grpo_options=options), replace(given, old_logprobs=noisy, ref_logprobs=reference)


def test_phases_run_in_the_order_of_the_design_and_see_what_they_must(inputs: Callable[..., RankInputs]) -> None:
    given = inputs()
    outcomes = run(given)
    assert tuple(outcomes) == (
        "bind",
        "initialize",
        "materialize",
        "score-reference",
        "capture-prefix",
        "score-old",
        "grpo-0",
        "grpo-1",
        "grpo-2",
        "prefix-backward",
        "finalize",
        "optimizer-step",
        "checkpoint",
    )
    for phase, outcome in outcomes.items():
        for member in phases.required_evidence(phase):
            assert getattr(outcome.evidence, member) is not None, f"{phase} {member}"
    written = [path for outcome in outcomes.values() for path in outcome.files]
    on_disk = [path.relative_to(given.run_dir).as_posix() for path in given.run_dir.rglob("*") if path.is_file()]
    assert sorted(written) == sorted(on_disk)
    assert len(set(written)) == len(written)


def test_on_policy_from_a_fresh_adapter_every_ratio_is_one_and_every_drift_zero(
    inputs: Callable[..., RankInputs],
) -> None:
    given = inputs()
    outcomes = run(given)
    for response in range(3):
        assert outcomes[f"grpo-{response}"].evidence.max_ratio_deviation == 0.0
        assert outcomes[f"grpo-{response}"].evidence.kl == 0.0
    scores = scores_of(given)
    assert all(response.policy == response.old == response.ref for response in scores.responses)
    assert scores.loss == pytest.approx(-sum(a * n for a, n in zip(scores.advantages, LENGTHS, strict=True)) / 11)
    # B is zero, so nothing flows into A; B's gradient is the policy gradient.
    gradient = load_file(given.run_dir / "artifacts/gradient.safetensors")
    assert all(not value.any() for name, value in gradient.items() if "lora_A" in name)
    assert any(value.any() for name, value in gradient.items() if "lora_B" in name)


def test_reverse_pass_covers_every_chunk_layer_and_row(inputs: Callable[..., RankInputs]) -> None:
    seen = run(inputs())["prefix-backward"].evidence
    assert (seen.chunks, seen.backward_calls) == (3, 3)  # 20 rows in chunks of 8
    assert seen.rows_compared == 20 * 4
    assert seen.gradient_pages_released == 3 * 4
    assert seen.row_difference == 0.0


def test_losses_and_clips_are_what_the_verifier_computes_from_the_scores(inputs: Callable[..., RankInputs]) -> None:
    planned, group = recorded()
    given = inputs(profile=planned, rollout=group)
    outcomes = run(given)
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
        replace(STANDARD_CONTRACT, weight_decay=0.1, clip_grad=1e6),
        replace(STANDARD_CONTRACT, lr=0.01),
    ],
)
def test_the_step_is_the_one_the_verifier_takes_from_our_own_gradient(
    inputs: Callable[..., RankInputs], contract: Any
) -> None:
    planned, group = recorded()
    given = inputs(profile=replace(planned, optimizer=contract), rollout=group)
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


def test_a_step_goes_on_from_the_moments_that_another_left(inputs: Callable[..., RankInputs], tmp_path: Path) -> None:
    """Two updates of one run each leave what torch's own AdamW makes of their two gradients in one life."""
    planned, group = recorded()
    first = inputs(profile=planned, rollout=group, run_dir=tmp_path / "first")
    run(first)
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


def test_moments_that_do_not_fit_the_adapter_are_refused(inputs: Callable[..., RankInputs], tmp_path: Path) -> None:
    planned, group = recorded()
    first = inputs(profile=planned, rollout=group, run_dir=tmp_path / "first")
    run(first)
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


def test_two_runs_leave_the_same_bytes(inputs: Callable[..., RankInputs], tmp_path: Path) -> None:
    planned, group = recorded()
    one, two = (inputs(profile=planned, rollout=group, run_dir=tmp_path / name) for name in ("one", "two"))
    run(one)
    run(two)
    for name in ("artifacts/gradient.safetensors", "artifacts/scores.json", "adapter/adapter_model.safetensors"):
        assert (one.run_dir / name).read_bytes() == (two.run_dir / name).read_bytes()


@pytest.mark.parametrize("change", [{"store": "mapped"}, {"page_rows": 8}, {"store": "mapped", "page_rows": 3}])
def test_where_pages_lie_and_how_large_they_are_changes_no_byte(
    inputs: Callable[..., RankInputs], tmp_path: Path, change: dict[str, Any]
) -> None:
    planned, group = recorded()
    other = replace(planned, memory=replace(planned.memory, **change))
    assert RunProfile.parse(other.encode(), file="profile.json") == other
    one, two = (
        inputs(profile=p, rollout=group, run_dir=tmp_path / name) for p, name in ((planned, "one"), (other, "two"))
    )
    run(one)
    run(two)
    for name in ("artifacts/gradient.safetensors", "adapter/adapter_model.safetensors"):
        assert (one.run_dir / name).read_bytes() == (two.run_dir / name).read_bytes()


def test_with_one_old_log_prob_too_few_the_first_token_leaves_the_loss(inputs: Callable[..., RankInputs]) -> None:
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
    full = inputs(profile=planned, rollout=group, run_dir=given.run_dir.with_name("full"))
    run(full)
    kept = [r.policy[1:] for r in scores_of(full).responses]
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
    inputs: Callable[..., RankInputs], tmp_path: Path
) -> None:
    planned, group = recorded()
    by_reward = inputs(profile=planned, rollout=group, run_dir=tmp_path / "rewards")
    run(by_reward)
    single = torch.tensor(scores_of(by_reward).advantages, dtype=torch.float32).tolist()
    rows = tuple((value,) * len(r) for value, r in zip(single, group.responses, strict=True))
    asked = replace(planned, grpo=replace(planned.grpo, advantage_source="rollout"))
    by_token = inputs(profile=asked, rollout=replace(group, advantages=rows), run_dir=tmp_path / "tokens")
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


def test_equal_rewards_leave_no_gradient_without_a_drift_term(inputs: Callable[..., RankInputs]) -> None:
    given = inputs(profile=profile(grpo_options=replace(GRPO, kl_beta=0.0)), rollout=rollout(rewards=(0.5, 0.5, 0.5)))
    outcomes = run(given)
    assert "score-reference" not in outcomes
    assert outcomes["finalize"].evidence.gradient_norm == 0.0
    assert scores_of(given).advantages == (0.0, 0.0, 0.0)


def test_a_detached_update_has_no_reverse_phase(inputs: Callable[..., RankInputs]) -> None:
    outcomes = run(inputs(profile=profile(gradient="detached")))
    assert "prefix-backward" not in outcomes
    assert "finalize" in outcomes


def test_a_given_adapter_is_what_the_update_starts_from(inputs: Callable[..., RankInputs], tmp_path: Path) -> None:
    first = inputs()
    run(first)
    second = inputs(adapter=first.run_dir / "adapter", run_dir=tmp_path / "second")
    run(second)
    start = read_adapter(second.run_dir / "artifacts/adapter-before")
    end = read_adapter(first.run_dir / "adapter")
    assert all(torch.equal(start.tensors[name], end.tensors[name]) for name in end.tensors)
    other = replace(second.profile, lora=replace(second.profile.lora, families=("attention",)))
    with pytest.raises(LoraError, match="families differ"):
        run(inputs(adapter=first.run_dir / "adapter", profile=other, run_dir=tmp_path / "third"))


def test_a_phase_out_of_order_is_refused_and_a_failure_ends_the_update(inputs: Callable[..., RankInputs]) -> None:
    update = Update(inputs(snapshot=Path("nowhere")))
    with pytest.raises(UpdateError, match="phase initialize is not due; bind is"):
        update.run("initialize")
    update.run("bind")
    with pytest.raises(UpdateError, match="phase bind is not due; initialize is"):
        update.run("bind")
    update.run("initialize")
    with pytest.raises(OSError, match="nowhere"):
        update.run("materialize")
    with pytest.raises(UpdateError, match="the update failed"):
        update.run("materialize")
    update.close()
    update.close()


def test_an_update_that_is_closed_runs_nothing_more(inputs: Callable[..., RankInputs]) -> None:
    update = Update(inputs())
    update.run("bind")
    update.close()
    with pytest.raises(UpdateError):
        update.run("initialize")


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 2},
        {"rollout": rollout(prompt_tokens=(1, 2, 3))},
        {"rollout": rollout(responses=((1,), (2,)), rewards=(0.0, 1.0))},
        {"rollout": rollout(responses=((1,) * 9, (2,), (3,)))},
    ],
)
def test_inputs_that_contradict_the_profile_are_refused_before_anything_starts(
    inputs: Callable[..., RankInputs], change: Mapping[str, Any]
) -> None:
    with pytest.raises(UpdateError):
        Update(inputs(**change))


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


def rank_update(rank: int, snapshot: Path, run_dir: Path, port: int, planned: RunProfile, group: Rollout) -> Any:
    given = RankInputs(
        rank=rank,
        world_size=planned.topology.world_size,
        master_address="127.0.0.1",
        master_port=port,
        run_dir=run_dir,
        snapshot=snapshot,
        adapter=None,
        profile=planned,
        rollout=group,
        plan_sha256="ab" * 32,
        execution_id="cd" * 32,
        image_digest=None,
    )
    return run(given)


@pytest.mark.parametrize(("distributed", "route"), [(False, "fetch"), (True, "lse")])
def test_two_ranks_make_one_update_and_agree_on_it(
    distributed: bool,
    route: str,
    inputs: Callable[..., RankInputs],
    processes: Callable[..., list[Any]],
    free_port: Callable[[], int],
    small_snapshot: Path,
    tmp_path: Path,
) -> None:
    planned, group = recorded()
    alone = inputs(profile=planned, rollout=group)
    run(alone)
    topology = replace(planned.topology, world_size=2, context_parallel=2, expert_parallel=2)
    planned = replace(planned, prefix=replace(planned.prefix, route=route))  # type: ignore[arg-type]
    outcomes = processes(
        rank_update,
        2,
        small_snapshot,
        tmp_path / "both",
        free_port(),
        replace(planned, topology=topology, optimizer=replace(planned.optimizer, distributed_optimizer=distributed)),
        group,
    )
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


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_a_closed_update_leaves_no_process_group_behind(inputs: Callable[..., RankInputs], tmp_path: Path) -> None:
    """A group that something still refers to keeps its threads, which spin on the sockets of peers that left."""

    def threads_after(number: int) -> int:
        run(inputs(run_dir=tmp_path / str(number)))
        return len(list(Path("/proc/self/task").iterdir()))

    assert threads_after(0) == threads_after(1)
