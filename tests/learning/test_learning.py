"""Learning shown, in a reduced form: shorter logs, fewer updates. `learn.py` is the whole experiment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mint2m_trainer.pretraining.batches import Texts
from mint2m_trainer.pretraining.request import PretrainRequest, pretrain

sys.path.insert(0, str(Path(__file__).parent))
from learn import Wanted, distance, learn
from task import Mode, Task

STEPS, BESIDE, SEALED = 16, 3, 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `mint2m model pretrain` makes, but for logs of 1,024 tokens."""
    place = tmp_path_factory.mktemp("pretrained") / "model"
    texts = Texts(short=128, long=1024, count=8, sure=0.4)
    pretrain(PretrainRequest(output=place, seed=7, steps=300, texts=texts, config=None))
    return place


@pytest.mark.slow
def test_held_out_rewards_rise_the_same_in_exact_and_conventional_and_online_is_the_bare_loop(
    model: Path, tmp_path: Path
) -> None:
    def wanted(mode: Mode, steps: int, *, bare: bool) -> Wanted:
        name = f"{mode}-{'bare' if bare else 'online'}"
        task = Task(prompt_tokens=1024)
        return Wanted(folder=tmp_path / name, task=task, model=model, seed=1, mode=mode, bare=bare, steps=steps)

    exact = learn(wanted("exact", STEPS, bare=True), (0, STEPS), 32)
    assert exact.rise > 0.2
    conventional = learn(wanted("conventional", BESIDE, bare=True), (0, BESIDE), 4)
    online = learn(wanted("exact", SEALED, bare=False), (0, SEALED), 4)
    assert online.verdict == "accepted"
    apart = [distance(Path(a), Path(b)) for a, b in zip(conventional.adapters, exact.adapters, strict=False)]
    assert len(apart) == BESIDE and max(apart) < 1e-3
    apart = [distance(Path(a), Path(b)) for a, b in zip(online.adapters, exact.adapters, strict=False)]
    assert apart == [0.0] * SEALED


def test_no_held_out_log_is_a_row_of_any_training() -> None:
    task = Task(prompt_tokens=512)
    held_out = {row.prompt for row in task.held_out(32)}
    assert len(held_out) == 32
    for seed in (1, 2, 3):
        rows = task.training_rows(seed)
        assert len({row.prompt for row in rows}) == task.rows
        assert not held_out & {row.prompt for row in rows}
        assert all(len(row.text.encode()) == 512 for row in rows)
