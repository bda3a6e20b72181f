"""Rate and time left of a stage, from how far it was when.

The rule: only what was seen counts. The first word is the origin, so work that an earlier execution did makes no rate;
and since the time of a unit may grow or fall along the way (attention over a longer prefix costs more), time is fitted
by t = a·x + c·x² with x the units since the origin, least squares, once there are enough words to tell a curve from
noise. A fit by which time would run backwards before the end is not believed: then the mean rate holds.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Words from which a curve is fitted, and the share of the work that must be done by then: a curve through the first
#: steps would say anything about the end.
_WORDS, _SHARE = 8, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Units a second so far, and seconds left; None before there is anything to tell from."""

    rate: float | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        if self.rate is None or self.seconds is None:
            return ""
        return f"{_count(self.rate)}/s, {_clock(self.seconds)} left"


class TimeLeft:
    """Told of every word; asked when something is drawn."""

    def __init__(self, *, done: int, total: int, now: float) -> None:
        self._begun, self._origin, self.total = now, done, total
        self._done, self._last = done, now
        self._words = 0
        self._x2 = self._x3 = self._x4 = self._xt = self._x2t = 0.0  # sums for the normal equations

    def tell(self, done: int, now: float) -> None:
        """`done` units were done at time `now`; a word that brings nothing new is not one."""
        if done <= self._done:
            return
        self._done, self._last = done, now
        # Of the whole as 1: powers of two million squared would lose the small sums.
        x, t = (done - self._origin) / self._span, now - self._begun
        self._words += 1
        self._x2 += x**2
        self._x3 += x**3
        self._x4 += x**4
        self._xt += x * t
        self._x2t += x**2 * t

    def outlook(self, now: float) -> Outlook:
        """What is to be expected from here, as of `now`."""
        spent = self._last - self._begun
        if not self._words or spent <= 0:
            return Outlook()
        x = (self._done - self._origin) / self._span
        left = self._curved(x)
        if left is None:
            left = spent / x * (1 - x)
        # Between two words the clock goes on: what passed since the last one is gone from what is left.
        return Outlook(rate=(self._done - self._origin) / spent, seconds=max(left - (now - self._last), 0.0))

    @property
    def _span(self) -> int:
        return max(self.total - self._origin, 1)

    def _curved(self, x: float) -> float | None:
        """Seconds from `x` to 1 by the fitted curve, None where there is none to believe."""
        determinant = self._x2 * self._x4 - self._x3**2
        if self._words < _WORDS or x < _SHARE or determinant <= 1e-9 * self._x2 * self._x4:
            return None
        a = (self._xt * self._x4 - self._x2t * self._x3) / determinant
        c = (self._x2t * self._x2 - self._xt * self._x3) / determinant
        if a < 0:
            a, c = 0.0, self._x2t / self._x4
        if a + 2 * c < 0:
            return None
        return a * (1 - x) + c * (1 - x**2)


def _count(rate: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.1f}{unit}"
    return f"{rate:.1f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
