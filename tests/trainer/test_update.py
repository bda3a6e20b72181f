"""One update end to end: phases, evidence, artifacts, and what is refused before or during it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from mint2m_trainer.model.lora import LoraError
from mint2m_trainer.peft import read_adapter
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update, UpdateError
from mint2m_verify import phases

sys.path.insert(0, str(Path(__file__).parent))
from update_kit import GRPO, LENGTHS, profile, rank_inputs, rollout, run, scores_of

Done = tuple[RankInputs, dict[str, PhaseOutcome]]


@pytest.fixture(scope="module")
def on_policy(
    small_snapshot: Path, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[RankInputs, dict[str, PhaseOutcome]]:
    """An update that scores old and reference log-probs itself; for tests that only read it."""
    given = rank_inputs(tmp_path_factory.mktemp("on-policy") / "run", small_snapshot, free_port())
    return given, run(given)


def test_phases_run_in_the_order_of_the_design_and_see_what_they_must(on_policy: Done) -> None:
    given, outcomes = on_policy
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


def test_on_policy_from_a_fresh_adapter_every_ratio_is_one_and_every_drift_zero(on_policy: Done) -> None:
    given, outcomes = on_policy
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


def test_reverse_pass_covers_every_chunk_layer_and_row(on_policy: Done) -> None:
    seen = on_policy[1]["prefix-backward"].evidence
    assert (seen.chunks, seen.backward_calls) == (3, 3)  # 20 rows in chunks of 8
    assert seen.rows_compared == 20 * 4
    assert seen.gradient_pages_released == 3 * 4
    assert seen.row_difference == 0.0


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


def test_a_given_adapter_is_what_the_update_starts_from(
    inputs: Callable[..., RankInputs], on_policy: Done, tmp_path: Path
) -> None:
    first = on_policy[0]
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


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_a_closed_update_leaves_no_process_group_behind(inputs: Callable[..., RankInputs], on_policy: Done) -> None:
    """A group that something still refers to keeps its threads, which spin on the sockets of peers that left."""

    before = len(list(Path("/proc/self/task").iterdir()))  # after one update already
    run(inputs())
    assert len(list(Path("/proc/self/task").iterdir())) == before
