"""A whole update that was stopped and goes on in another execution: the same bytes, and evidence that says so."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.resume import passes
from mint2m_trainer.resume.faults import OtherProgressError
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update, UpdateError

sys.path.insert(0, str(Path(__file__).parents[1]))
from update_kit import GRPO, profile, rank_inputs, recorded, rollout

#: 20 rows before the last prompt token, in chunks of 8.
CHUNKS, ROWS = 3, 20
SAME_BYTES = (
    "artifacts/gradient.safetensors",
    "artifacts/optimizer-after.safetensors",
    "adapter/adapter_model.safetensors",
)


class StoppedError(Exception):
    """The test's own."""


@pytest.fixture
def inputs(tmp_path: Path, small_snapshot: Path, free_port: Callable[[], int]) -> Callable[..., RankInputs]:
    """A rank's inputs in a world of one, with a new run directory and one progress folder for all."""
    numbers: Iterator[int] = iter(range(100))

    def make(**change: Any) -> RankInputs:
        place = tmp_path / f"run-{next(numbers)}"
        kept = {"progress": tmp_path / "kept", **change}
        return rank_inputs(place, small_snapshot, free_port(), **kept)

    return make


def run(given: RankInputs, *, stop: str = "", at: int = 0) -> dict[str, PhaseOutcome]:
    """All phases, or those before the one that stopped at so many tokens."""
    update, outcomes = Update(given), {}

    def progress(_label: str, done: int, _total: int) -> None:
        if current == stop and done >= at:
            raise StoppedError

    try:
        for current in update.phases:
            outcomes[current] = update.run(current, progress)
    except StoppedError:
        pass
    finally:
        update.close()
    return outcomes


def same(one: RankInputs, other: RankInputs) -> bool:
    return all((one.run_dir / name).read_bytes() == (other.run_dir / name).read_bytes() for name in SAME_BYTES)


def test_an_update_stopped_in_every_long_phase_ends_with_the_bytes_of_one_that_was_not(
    inputs: Callable[..., RankInputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes.KeptReverse, "due", lambda _self: True)
    whole = inputs(progress=None)
    due = run(whole)
    assert all(outcome.evidence.resumed_chunks is None for outcome in due.values())
    assert "score-reference" not in run(inputs(), stop="score-reference", at=8)
    assert "capture-prefix" not in run(inputs(), stop="capture-prefix", at=16)
    assert "prefix-backward" not in run(inputs(), stop="prefix-backward", at=4)
    last = inputs()
    found = run(last)
    resumed = {phase: outcome.evidence.resumed_chunks for phase, outcome in found.items()}
    assert {phase: count for phase, count in resumed.items() if count is not None} == {
        "score-reference": 3,
        "capture-prefix": 3,
        "prefix-backward": 1,
    }
    assert found["prefix-backward"].evidence.backward_calls == 2
    assert found["prefix-backward"].evidence.rows_compared == 16 * 4
    pages = [outcomes["capture-prefix"].evidence.pages_sha256 for outcomes in (due, found)]
    assert pages[0] == pages[1]
    assert same(whole, last)


def test_a_capture_taken_over_in_part_says_how_much(inputs: Callable[..., RankInputs]) -> None:
    run(inputs(), stop="capture-prefix", at=8)
    found = run(inputs())
    assert found["capture-prefix"].evidence.resumed_chunks == 1
    assert found["capture-prefix"].evidence.chunks == CHUNKS
    assert found["prefix-backward"].evidence.resumed_chunks is None


def test_after_the_reverse_pass_nothing_of_it_is_run_again(inputs: Callable[..., RankInputs]) -> None:
    whole, last = inputs(progress=None), inputs()
    run(whole)
    run(inputs(), stop="prefix-backward", at=ROWS)
    found = run(last)
    seen = found["prefix-backward"].evidence
    assert (seen.resumed_chunks, seen.backward_calls, seen.rows_compared) == (CHUNKS, 0, 0)
    assert same(whole, last)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rollout": rollout(rewards=(1.0, 0.5, 0.25))}, "rollout_sha256"),
        ({"profile": profile(grpo_options=replace(GRPO, clip_high=0.3))}, r"grpo\.clip_high was 0.28, now it is 0.3"),
        ({"profile": replace(profile(), prefix=replace(profile().prefix, route="lse"))}, r"prefix\.route"),
        ({"profile": replace(profile(), lora=replace(profile().lora, seed=4))}, "adapter_sha256"),
    ],
)
def test_progress_of_another_run_is_refused_and_the_difference_named(
    inputs: Callable[..., RankInputs], change: dict[str, Any], words: str
) -> None:
    run(inputs(), stop="capture-prefix", at=8)
    with pytest.raises(OtherProgressError, match=words):
        run(inputs(**change))


def test_what_decides_no_number_may_differ(inputs: Callable[..., RankInputs]) -> None:
    run(inputs(), stop="capture-prefix", at=8)
    planned = profile()
    other = replace(planned, name="again", timeouts_s=replace(planned.timeouts_s, phase=61))
    found = run(inputs(profile=other, execution_id="12" * 32, plan_sha256="34" * 32))
    assert found["capture-prefix"].evidence.resumed_chunks == 1


def test_an_option_that_would_have_no_effect_is_refused(inputs: Callable[..., RankInputs], tmp_path: Path) -> None:
    for change in ({"baseline": True}, {"instruments": tmp_path}):
        with pytest.raises(UpdateError, match="no prefix to keep"):
            Update(inputs(**change))


@pytest.mark.slow
def test_a_rank_killed_at_any_moment_costs_the_work_since_its_last_commit_and_no_bit(
    inputs: Callable[..., RankInputs], tmp_path: Path, free_port: Callable[[], int]
) -> None:
    planned, group = recorded()
    planned = replace(planned, topology=profile(2).topology)
    base = inputs(world_size=2, profile=planned, rollout=group)

    def attempt(name: str, phase: str = "", tokens: int = 0, **change: Any) -> tuple[RankInputs, list[int], str]:
        given = replace(base, run_dir=tmp_path / name, master_port=free_port(), **change)
        place = tmp_path / f"{name}.pickle"
        place.write_bytes(pickle.dumps(given))
        program = [sys.executable, str(Path(__file__).with_name("killed_rank.py"))]
        ranks = [
            subprocess.Popen(
                [*program, str(rank), str(place), phase, str(tokens)],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            for rank in (0, 1)
        ]  # fmt: skip
        ranks[1].wait(timeout=300)
        if ranks[1].returncode:
            ranks[0].kill()  # it waits in a collective for the one that died
        out, _ = ranks[0].communicate(timeout=300)
        return given, [rank.wait() for rank in ranks], out

    whole, codes, _ = attempt("whole", progress=None)
    assert codes == [0, 0]
    _, codes, _ = attempt("one", "capture-prefix", 16)
    assert codes[1] == -signal.SIGKILL
    _, codes, out = attempt("two")
    assert codes == [0, 0]
    assert "capture-prefix 2" in out or "capture-prefix 1" in out  # rank 0 may not have come to its own commit
    last, codes, out = attempt("three")
    assert codes == [0, 0]
    assert f"capture-prefix {CHUNKS}" in out
    assert f"prefix-backward {CHUNKS}" in out
    assert same(whole, last)
