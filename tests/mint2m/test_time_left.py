"""Time left against closed forms: a steady stage, one that slows down, one that speeds up, and one that was resumed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mint2m.time_left import TimeLeft

TOTAL = 2_097_151


def watched(time_at: Callable[[float], float], *, begin: int, until: float, step: int = 4096) -> TimeLeft:
    """Told of every `step` units from `begin` on until the share `until` of all is done, on the clock `time_at`."""
    times = TimeLeft(done=begin, total=TOTAL, now=time_at(begin))
    done = begin + step
    while done <= until * TOTAL:
        times.tell(done, time_at(done))
        done += step
    return times


@pytest.mark.parametrize("begin", [0, 1 << 20])
@pytest.mark.parametrize(
    "time_at",
    [
        pytest.param(lambda x: 7 + x / 900, id="steady"),
        pytest.param(lambda x: x / 5000 + (x / TOTAL) ** 2 * 1800, id="each token costs more than the one before"),
        pytest.param(lambda x: (x / TOTAL) ** 2 * 2400, id="cost grows with the position alone"),
        pytest.param(lambda x: x / 800 - (x / TOTAL) ** 2 * 900, id="each token costs less"),
    ],
)
def test_what_is_left_is_what_the_closed_form_says(time_at: Callable[[float], float], begin: int) -> None:
    until = 0.7
    times = watched(time_at, begin=begin, until=until)
    done = max(times._done, begin)
    now = time_at(done)
    due = time_at(TOTAL) - now
    outlook = times.outlook(now)
    assert outlook.seconds == pytest.approx(due, rel=1e-3)
    assert outlook.rate == pytest.approx((done - begin) / (now - time_at(begin)), rel=1e-9)


def test_work_of_an_earlier_execution_makes_no_rate() -> None:
    times = TimeLeft(done=900, total=1000, now=50.0)
    assert str(times.outlook(51.0)) == ""
    times.tell(910, 60.0)
    assert str(times.outlook(60.0)) == "1.0/s, 1:30 left"
    assert str(times.outlook(85.0)) == "1.0/s, 1:05 left"  # the clock goes on between two words
    assert times.outlook(1e6).seconds == 0


def test_a_curve_that_would_turn_back_before_the_end_is_not_believed() -> None:
    times = TimeLeft(done=0, total=1000, now=0.0)
    for done in range(10, 200, 10):
        times.tell(done, done - done**2 / 500)  # would stand still at 250
    left = times.outlook(190 - 190**2 / 500)
    assert left.seconds is not None and left.seconds > 0
    assert left.seconds == pytest.approx((190 - 190**2 / 500) / 190 * 810)


def test_noise_at_the_beginning_makes_no_wild_promise() -> None:
    times = TimeLeft(done=0, total=100_000, now=0.0)
    for done, now in (
        (10, 0.5),
        (20, 0.6),
        (30, 3.0),
        (40, 3.1),
        (50, 3.2),
        (60, 6.0),
        (70, 6.1),
        (80, 8.0),
        (90, 9.0),
    ):
        times.tell(done, now)
    assert times.outlook(9.0).seconds == pytest.approx(9.0 / 90 * (100_000 - 90))


@pytest.mark.parametrize(
    ("rate", "left", "words"),
    [(31_250.0, 59.0, "31.2k/s"), (2.5e6, 3600.0, "2.5M/s"), (0.25, 10.0, "0.2/s")],
)
def test_words_are_short(rate: float, left: float, words: str) -> None:
    from mint2m.time_left import Outlook

    text = str(Outlook(rate=rate, seconds=left))
    assert text.startswith(words)
    assert text.endswith({59.0: "0:59 left", 3600.0: "1:00:00 left", 10.0: "0:10 left"}[left])
