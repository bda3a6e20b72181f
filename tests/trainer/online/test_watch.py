"""What `mint2m online` leaves for people: event files, table and page say what the evidence says."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mint2m_trainer.online.step_numbers import read_numbers
from mint2m_trainer.online.watch import EVENTS, FOLDER, Watch, head
from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.documents.training import TrainingPlan
from mint2m_verify.finding import Verdict
from mint2m_verify.training import places
from mint2m_verify.training.verify import verify_training

VECTORS = Path(__file__).parents[2] / "vectors"
BASE, KEY = VECTORS / "bases/training-carried", VECTORS / "test-only-keys/release.pub"
STEPS = 2


@pytest.fixture
def training(tmp_path: Path) -> Path:
    return shutil.copytree(BASE, tmp_path / "t")


def plan_of(root: Path) -> TrainingPlan:
    return TrainingPlan.parse((root / places.PLAN).read_bytes(), file=places.PLAN)


def watched(root: Path) -> Watch:
    watch = Watch(root, plan_of(root))
    for step in range(STEPS):
        watch.add(step)
    watch.publish()
    return watch


def scores(root: Path, step: int) -> dict[str, float]:
    value: dict[str, float] = json.loads((root / places.run_folder(step) / "artifacts/scores.json").read_bytes())
    return value


def rewards(root: Path, step: int) -> list[float]:
    attempt = json.loads((root / places.step_file(step)).read_bytes())["attempts"][-1]
    return [response["reward"] for response in attempt["responses"]]


def test_of_a_step_of_two_prompts_means_are_over_both_and_losses_add_up(tmp_path: Path) -> None:
    root = shutil.copytree(VECTORS / "bases/training-prompts", tmp_path / "t")
    for step in range(STEPS):
        numbers = read_numbers(root, step)
        attempts = json.loads((root / places.step_file(step)).read_bytes())["attempts"]
        groups = [attempt for attempt in attempts if attempt["signal"]]
        drawn = [response for group in groups for response in group["responses"]]
        every = [
            json.loads((root / places.prompt_folder(step, index, 2) / "artifacts/scores.json").read_bytes())
            for index in range(2)
        ]
        assert numbers.rows == tuple(group["row"] for group in groups) and len(groups) == 2
        assert numbers.reward == pytest.approx(sum(response["reward"] for response in drawn) / len(drawn))
        assert numbers.tokens == pytest.approx(sum(len(response["tokens"]) for response in drawn) / len(drawn))
        assert numbers.loss == pytest.approx(every[0]["loss"] + every[1]["loss"])
        assert numbers.gradient_norm == every[1]["gradient_norm"]
        assert numbers.tried == len(attempts)


def test_tensorboards_own_reader_finds_every_number_of_every_step(training: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    watched(training)
    read = accumulator.EventAccumulator(str(training / FOLDER / EVENTS))
    # One file a step: what a running TensorBoard goes through in the order of the names.
    multiplexed = {tag: [] for tag in ("loss/loss", "gradient/norm", "reward/mean", "loss/clipped_share")}
    for path in sorted((training / FOLDER / EVENTS).iterdir()):
        one = accumulator.EventAccumulator(str(path)).Reload()
        for tag, seen in multiplexed.items():
            seen += [(event.step, event.value) for event in one.Scalars(tag)]
    assert [step for step, _ in multiplexed["loss/loss"]] == list(range(STEPS))
    for step in range(STEPS):
        written, group = scores(training, step), rewards(training, step)
        assert multiplexed["loss/loss"][step][1] == pytest.approx(written["loss"], rel=1e-6)
        assert multiplexed["gradient/norm"][step][1] == pytest.approx(written["gradient_norm"], rel=1e-6)
        assert multiplexed["reward/mean"][step][1] == pytest.approx(sum(group) / len(group), rel=1e-6)
        clipped = (written["clipped_low"] + written["clipped_high"]) / written["scored_tokens"]
        assert multiplexed["loss/clipped_share"][step][1] == pytest.approx(clipped, rel=1e-6)
    read.Reload()  # and of the folder as a whole
    assert {"reward/mean", "seconds/capture", "seconds/replay", "responses/mean_tokens"} <= set(read.Tags()["scalars"])


def test_the_table_has_a_row_a_step_with_the_numbers_of_its_files(training: Path) -> None:
    watched(training)
    lines = (training / FOLDER / "summary.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and "step" not in line]
    assert [row[0] for row in rows] == ["0", "1"]
    for step, row in enumerate(rows):
        group = rewards(training, step)
        assert row[3] == f"{sum(group) / len(group):+.3f}"
        assert row[5] == f"{scores(training, step)['loss']:.5f}"
        assert row[8] == f"{scores(training, step)['gradient_norm']:.4g}"
    assert "no evidence" in "\n".join(lines)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [str(value) for name, value in attrs if name in ("src", "href", "data", "action")]


def test_the_page_draws_every_curve_and_loads_nothing(training: Path) -> None:
    watched(training)
    page = _Links()
    page.feed((training / FOLDER / "summary.html").read_text(encoding="utf-8"))
    assert page.loads == []
    assert "script" not in page.tags
    # Without a reference there is no KL to draw.
    assert page.tags.count("svg") == page.tags.count("polyline") == 7
    assert page.tags.count("circle") == 7 * STEPS


def test_a_line_of_the_live_table_stands_under_its_head(training: Path) -> None:
    watch = Watch(training, plan_of(training))
    line = watch.add(0)
    assert len(line) == len(head())
    assert [len(part) for part in (line.split()[0], head().split()[0])] == [1, 3]


def test_nothing_of_it_is_evidence_and_nothing_is_left_half_written(training: Path) -> None:
    (training / FOLDER / ".events-of-a-killed-process").mkdir(parents=True)
    watched(training)
    first = {path: path.read_bytes() for path in (training / FOLDER).rglob("*") if path.is_file()}
    watched(training)  # as whoever resumes does
    assert {path: path.read_bytes() for path in (training / FOLDER).rglob("*") if path.is_file()} == first
    assert not [path for path in (training / FOLDER).rglob("*") if path.name.startswith(".")]
    report = verify_training(training, read_key(KEY), VerifyOptions())
    assert report.verdict is Verdict.ACCEPTED
    assert any("watch/" in note for note in report.not_checked)


def test_a_link_in_its_place_is_refused(training: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (training / FOLDER).symlink_to(tmp_path / "elsewhere")
    report = verify_training(training, read_key(KEY), VerifyOptions())
    assert "tree.symlink" in {fault.id for fault in report.findings}
