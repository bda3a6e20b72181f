"""An update that goes wrong: on every rank alike, with the old bits in memory and nothing of the phase on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from mint2m_trainer import update as module
from mint2m_trainer.comm.groups import Comm, close_comm
from mint2m_trainer.comm.together import RanksFailedError
from mint2m_trainer.faults import Cause, cause_of
from mint2m_trainer.optimizer import STANDARD_CONTRACT
from mint2m_trainer.prefix.session import LocalLoss
from mint2m_trainer.scoring import Group
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update, UpdateError
from mint2m_verify import phases
from mint2m_verify.documents import Rollout, RunProfile

from megatron.core import dist_checkpointing  # isort: skip

sys.path.insert(0, str(Path(__file__).parent))
import update_kit
from update_kit import GRPO, rank_inputs, tokens

PROMPT, LENGTHS, REWARDS = 13, (3, 2), (1.0, -1.0)
OUTPUTS_LAST = {"adapter", "checkpoint", "optimizer-after.safetensors"}


def rollout(old: float = -4.0) -> Rollout:
    responses = tuple(tokens(count, 50 + index) for index, count in enumerate(LENGTHS))
    return Rollout(
        prompt_tokens=tokens(PROMPT, 1),
        responses=responses,
        rewards=REWARDS,
        old_logprobs=tuple(tuple(old for _ in r) for r in responses),
        ref_logprobs=None,
    )


def profile(world: int = 1, *, dtype: Any = "float32", lr: float = 1e-4, dealt: bool = False) -> RunProfile:
    base = update_kit.profile(
        world, grpo_options=replace(GRPO, kl_beta=0.0, old_source="rollout", ref_source="rollout")
    )
    return replace(
        base,
        context=replace(base.context, prompt_tokens=PROMPT),
        group_size=len(LENGTHS),
        model=replace(base.model, dtype=dtype),
        lora=replace(base.lora, families=("attention", "expert")),
        optimizer=replace(
            STANDARD_CONTRACT,
            lr=lr,
            state_dtype="float64" if dtype == "float64" else "float32",
            distributed_optimizer=dealt,
        ),
        prefix=replace(base.prefix, chunk_tokens=5),
    )


def given(rank: int, port: int, run_dir: Path, snapshot: Path, planned: RunProfile, group: Rollout) -> RankInputs:
    world = planned.topology.world_size
    return rank_inputs(run_dir, snapshot, port, rank=rank, world_size=world, profile=planned, rollout=group)


Made = Callable[..., Update]


@pytest.fixture
def made(tmp_path: Path, small_snapshot: Path, free_port: Callable[[], int]) -> Any:
    """An update of one rank in this process, closed afterwards."""
    updates: list[Update] = []

    def make(planned: RunProfile | None = None, group: Rollout | None = None) -> Update:
        inputs = given(0, free_port(), tmp_path / "run", small_snapshot, planned or profile(), group or rollout())
        updates.append(Update(inputs))
        return updates[-1]

    yield make
    for update in updates:
        update.close()


def bits(update: Update) -> dict[str, Tensor]:
    """Parameters and moments, every element."""
    held = {f"state {name}": tensor.clone() for name, tensor in update.optimizer.state_tensors().items()}
    return held | {name: p.detach().clone() for name, p in update.policy.trainable()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Bit for bit; NaN would not equal itself, and may not be there."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def until(update: Update, last: str) -> dict[str, Tensor]:
    """Run the phases before `last`; the bits after materialize."""
    before: dict[str, Tensor] = {}
    for phase in update.phases[: update.phases.index(last)]:
        update.run(phase)
        if phase == phases.MATERIALIZE:
            before = bits(update)
    return before


def on_disk(run_dir: Path) -> set[str]:
    return {path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file()}


def test_a_ratio_that_overflows_ends_the_update_before_any_weight(made: Made) -> None:
    """exp(policy + 200) is no float32, and a negative advantage without a dual bound takes it whole."""
    update = made(group=rollout(old=-200.0))
    before = until(update, "grpo-1")
    with pytest.raises(RanksFailedError, match=r"rank 0: NonFiniteError: loss by token of response 1: 2 of 2 not fin"):
        update.run("grpo-1")
    assert same(bits(update), before)
    with pytest.raises(UpdateError, match="the update failed"):
        update.run(phases.FINALIZE)
    assert "artifacts/scores.json" not in on_disk(update._inputs.run_dir)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_never_reaches_the_step(made: Made, value: float) -> None:
    update = made()
    before = until(update, phases.FINALIZE)
    name, p = update.policy.trainable()[3]
    p.main_grad[-1, -1] = value
    with pytest.raises(RanksFailedError) as caught:
        update.run(phases.FINALIZE)
    assert f"rank 0: NonFiniteError: gradient of {name}: 1 of {p.numel()} not finite" in str(caught.value)
    assert cause_of(caught.value) is Cause.REFUSED
    assert same(bits(update), before)
    assert update.optimizer.steps_taken == 0
    assert on_disk(update._inputs.run_dir) == {
        "artifacts/adapter-before/adapter_config.json",
        "artifacts/adapter-before/adapter_model.safetensors",
    }


def test_a_norm_that_overflows_though_every_gradient_is_finite_is_refused(made: Made) -> None:
    update = made(profile(dtype="float64"))
    before = until(update, phases.FINALIZE)
    for _, p in update.policy.trainable():
        p.main_grad.fill_(1e200)
    with pytest.raises(UpdateError, match="norm of the reduced gradient is inf"):
        update.run(phases.FINALIZE)
    assert same(bits(update), before)
    assert "artifacts/gradient.safetensors" not in on_disk(update._inputs.run_dir)


def test_a_step_into_infinity_is_undone(made: Made) -> None:
    update = made()
    before = until(update, phases.OPTIMIZER_STEP)
    name, p = update.policy.trainable()[2]
    update.optimizer.optimizer.register_step_post_hook(lambda *_: p.data.fill_(float("inf")))
    with pytest.raises(RanksFailedError, match=r"rank 0: NonFiniteError: stepped .* not finite, first inf") as caught:
        update.run(phases.OPTIMIZER_STEP)
    assert name in str(caught.value)
    assert same(bits(update), before)
    assert update.optimizer.steps_taken == 0


def test_half_a_step_is_undone(made: Made) -> None:
    """torch raises for this learning rate after it has changed the first tensor's moments and decayed its values."""
    update = made(profile(lr=1e39))
    before = until(update, phases.OPTIMIZER_STEP)
    with pytest.raises(RuntimeError, match="overflow"):
        update.run(phases.OPTIMIZER_STEP)
    assert same(bits(update), before)
    assert update.optimizer.steps_taken == 0


def test_scores_that_are_not_finite_end_the_update_where_they_arise(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = profile()
    update = made(replace(planned, grpo=replace(planned.grpo, old_source="recompute")))
    before = until(update, phases.SCORE_OLD)
    real = module.Session.score
    monkeypatch.setattr(module.Session, "score", lambda self, response: real(self, response) / 0.0)
    with pytest.raises(RuntimeError, match="old log-probs of response 0: 3 of 3 not finite"):
        update.run(phases.SCORE_OLD)
    assert same(bits(update), before)


@pytest.mark.parametrize("failing", phases.expected_phases(profile()))
def test_a_phase_that_fails_at_its_end_leaves_old_bits_and_no_file_of_its_own(
    made: Made, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The worst moment: all of the phase's work is done, and then it fails."""
    real = Update._phase

    def fail(self: Update, phase: str, progress: Any) -> Any:
        outcome = real(self, phase, progress)
        if phase == failing:
            raise OSError(28, "No space left on device")
        return outcome

    monkeypatch.setattr(Update, "_phase", fail)
    update, written = made(), set()
    before: dict[str, Tensor] = {}
    for phase in update.phases[: update.phases.index(failing)]:
        outcome: PhaseOutcome = update.run(phase)
        written |= set(outcome.files)
        if phase == phases.MATERIALIZE:
            before = bits(update)
    with pytest.raises(OSError, match="No space"):
        update.run(failing)
    if before:
        assert same(bits(update), before)
        assert update.optimizer.steps_taken == 0
    run_dir = update._inputs.run_dir
    assert (on_disk(run_dir) if run_dir.exists() else set()) == written
    assert not run_dir.exists() or not OUTPUTS_LAST & {path.name for path in run_dir.rglob("*")}
    assert not [path for path in run_dir.rglob("*") if "partial" in path.name]


def test_what_was_there_before_the_phase_is_not_removed_with_it(made: Made) -> None:
    update = made()
    before = until(update, phases.CHECKPOINT)
    mine = update._inputs.run_dir / "adapter" / "mine"
    mine.parent.mkdir()
    mine.write_text("keep")
    with pytest.raises(RanksFailedError, match=r"rank 0: FileExistsError"):
        update.run(phases.CHECKPOINT)
    assert mine.read_text() == "keep"
    assert same(bits(update), before)


def rank_fault(
    comm: Comm, snapshot: Path, run_dir: Path, port: int, planned: RunProfile, fault: str
) -> tuple[str, str, bool, set[str]]:
    """One rank's update with `fault`; its error's type and words, whether its bits are the old ones, files."""
    rank = comm.rank
    close_comm()  # the update opens its own
    update = Update(given(rank, port, run_dir, snapshot, planned, rollout()))
    phase = _PREPARED[fault]
    try:
        before = until(update, phase)
        try:
            with spoiled(update, fault, rank):
                update.run(phase)
        except RuntimeError as error:
            return type(error).__name__, str(error), same(bits(update), before), on_disk(run_dir)
        return "none", "", False, on_disk(run_dir)
    finally:
        update.close()


_PREPARED = {
    "dense gradient": phases.FINALIZE,
    "expert gradient": phases.FINALIZE,
    "loss": "grpo-0",
    "contract": phases.OPTIMIZER_STEP,
    "adapter's disk": phases.CHECKPOINT,
    "scores' disk": phases.FINALIZE,
    "checkpoint's disk": phases.CHECKPOINT,
}


@contextmanager
def spoiled(update: Update, fault: str, rank: int) -> Iterator[None]:
    """Scope in which `fault` is there, on one of two ranks; the ranks' processes live on with other tests."""
    trainable = update.policy.trainable()
    with ExitStack() as stack:
        match fault:
            case "dense gradient" if rank == 1:
                _first(trainable, ".layers.0.self_attn").main_grad[0, 0] = float("nan")
            case "expert gradient" if rank == 1:
                _first(trainable, ".experts.").main_grad[0, 0] = float("nan")
            case "loss" if rank == 1:
                stack.enter_context(patch.object(Group, "loss_of", _lost))
            case "contract" if rank == 1:
                update.optimizer.optimizer.param_groups[0]["lr"] = 0.5
            case "adapter's disk":
                stack.enter_context(patch.object(module, "write_adapter_copy", _full))
            case "scores' disk":
                stack.enter_context(patch.object(module, "write_scores", _full))
            case "checkpoint's disk" if rank == 1:
                real = dist_checkpointing.save
                stack.enter_context(patch.object(dist_checkpointing, "save", lambda *g: (real(*g), _full())))
        yield


def _full(*_arguments: object, **_named: object) -> Any:
    raise OSError(28, "No space left on device")


def _lost(group: Group, response: int, logp: Tensor, local: slice) -> LocalLoss:
    made = LOSS_OF(group, response, logp, local)
    return LocalLoss(total=made.total * float("nan"), tokens=made.tokens * float("nan"))


LOSS_OF = Group.loss_of


def _first(trainable: Sequence[tuple[str, Any]], part: str) -> Any:
    return next(p for name, p in trainable if part in name)


@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("dense gradient", "rank 1: NonFiniteError: gradient of base_model.model.model.layers.0.self_attn"),
        ("expert gradient", "rank 1: NonFiniteError: gradient of base_model.model.model.layers.1.mlp.experts.2"),
        ("loss", "rank 1: NonFiniteError: loss by token of response 0"),
        ("contract", "rank 1: OptimizerError: optimizer lr: expected 0.0001, got 0.5"),
        ("adapter's disk", "rank 0: OSError: [Errno 28] No space left on device"),
        ("scores' disk", "rank 0: OSError: [Errno 28] No space left on device"),
        ("checkpoint's disk", "rank 1: StorageError: OSError: [Errno 28] No space left on device"),
    ],
)
def test_what_one_rank_sees_every_rank_tells_and_all_keep_the_old_bits(
    ranks: Callable[..., list[Any]],
    free_port: Callable[[], int],
    small_snapshot: Path,
    tmp_path: Path,
    fault: str,
    words: str,
    dealt: bool,
) -> None:
    if dealt and fault not in ("contract", "checkpoint's disk"):
        pytest.skip("where the moments lie makes no difference before the step")
    seen = ranks(rank_fault, 2, small_snapshot, tmp_path / "run", free_port(), profile(2, dealt=dealt), fault)
    assert seen[0][:2] == seen[1][:2], "every rank with the same words"
    assert seen[0][0] in ("RanksFailedError", "CheckpointError")
    assert words in seen[0][1]
    assert [old for _, _, old, _ in seen] == [True, True]
    left = on_disk(tmp_path / "run")
    assert not [path for path in left if path.startswith(("adapter/", "checkpoint")) or "partial" in path]
    assert ("artifacts/scores.json" in left) == (_PREPARED[fault] in (phases.OPTIMIZER_STEP, phases.CHECKPOINT))
