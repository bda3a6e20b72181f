"""The bar of a stage: what it shows of time after a resume, and that it is silent where nobody looks."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from mint2m import progress
from mint2m.progress import StageLog


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_a_bar_counts_earlier_work_as_done_and_not_as_speed(clock: Clock) -> None:
    with Progress(console=Console(file=io.StringIO())) as bars:
        log = StageLog(bars)
        log.advance("capture", 0, 1)  # the driver's announcement
        clock.now += 30
        log.advance("capture", 900, 1000)  # taken over from an earlier execution
        assert [task.fields["left"] for task in bars.tasks] == [""]
        clock.now += 10
        log.advance("capture", 920, 1000)
        (task,) = bars.tasks
        assert (task.completed, task.total, task.fields["left"]) == (920, 1000, "2.0/s, 0:40 left")
        log.advance("capture", 1000, 1000)
        assert not bars.tasks
        log.advance("reverse", 0, 1000)  # nothing of the stage before
        assert bars.tasks[0].fields["left"] == ""


def test_without_a_terminal_nothing_is_kept_or_drawn() -> None:
    log = StageLog(None)
    log.advance("capture", 1, 2)
    log.stage("capture", "done")
    assert log.unseen == (f"{'capture':<12}done",)
