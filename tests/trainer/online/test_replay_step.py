"""One step of a training, drawn and updated again from its files; and what is said where the draws are others."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_trainer.online import replay_step as module
from mint2m_trainer.online.replay_step import StepReplay, replay_step
from mint2m_trainer.online.search import Search
from mint2m_verify.anchor import read_key
from mint2m_verify.documents.training import Attempt
from mint2m_verify.finding import FindingError, Standing, Verdict
from mint2m_verify.training.reading import read_step

sys.path.insert(0, str(Path(__file__).parents[2] / "vectors"))
from maker.training_site import build_site

VECTORS = Path(__file__).parents[2] / "vectors"
BASE, KEY = VECTORS / "bases/training-carried", VECTORS / "test-only-keys/release.pub"


def request(step: int, model: Path | None = None) -> StepReplay:
    return StepReplay(training=BASE, step=step, anchor=read_key(KEY), model=model)


@pytest.mark.slow
def test_a_step_that_went_on_from_moments_gives_its_numbers_again(tmp_path: Path) -> None:
    build_site(tmp_path / "site", answered=False)  # the same model: it is made from its seed
    report = replay_step(request(1, tmp_path / "site/model"))
    assert report.verdict is Verdict.ACCEPTED, report.findings
    assert {row.standing for row in report.requirements} == {Standing.REPLAYED}


@pytest.mark.slow
def test_both_runs_of_a_step_of_two_prompts_give_their_numbers_again(tmp_path: Path) -> None:
    build_site(tmp_path / "site", answered=False)
    report = replay_step(replace(request(1, tmp_path / "site/model"), training=VECTORS / "bases/training-prompts"))
    assert report.verdict is Verdict.ACCEPTED, report.findings
    gradients = {row.required: row.found for row in report.requirements if "gradient, relative L2" in row.required}
    assert gradients.keys() == {"prompt 0: gradient, relative L2", "prompt 1: gradient, relative L2"}
    assert sum("optimizer delta" in row.required for row in report.requirements) == 1  # one step, by the last


def test_other_draws_than_those_that_were_written_down_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build_site(tmp_path / "site", answered=False)
    written = read_step(BASE, 1).document.attempts

    def others(wanted: Search) -> tuple[Attempt, ...]:
        assert [row.row for row in wanted.rows] == [attempt.row for attempt in written]
        last = written[-1]
        changed = replace(last.responses[0], tokens=(*last.responses[0].tokens[:-1], 63))
        return (*written[:-1], replace(last, responses=(changed, *last.responses[1:])))

    monkeypatch.setattr(module, "search", others)
    monkeypatch.setattr(module, "repeat", lambda _run, _model, _tolerance: ((), ()))
    report = replay_step(request(1, tmp_path / "site/model"))
    assert (report.verdict, [fault.id for fault in report.findings]) == (Verdict.FAILED, ["replay.differs"])
    assert report.findings[0].pointer == f"/attempts/{len(written) - 1}/responses/0"


def test_a_step_that_is_not_there_and_a_model_that_is_not_given_are_refused() -> None:
    for step, id in ((2, "usage.invalid"), (0, "replay.model-missing")):
        with pytest.raises(FindingError) as fault:
            replay_step(request(step))
        assert fault.value.finding.id == id
