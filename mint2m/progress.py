"""Bars on stderr while a run works; silent where stderr is no terminal, so that CI logs hold words only.

The lines of finished stages are part of what the command says: they go to stdout with the outcome, unless the reader's
terminal has just shown them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mint2m.time_left import TimeLeft
from mint2m_verify.render.escape import escape

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Width of the column of stage names.
_NAME = 12


class StageLog:
    """Watches a run: one bar for each stage in work, one line for each stage that is over."""

    def __init__(self, bars: Progress | None) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._times: dict[str, TimeLeft] = {}
        self._lines: list[str] = []

    @property
    def unseen(self) -> tuple[str, ...]:
        """The finished stages for stdout: none where the same terminal has shown them already."""
        return () if self._bars is not None and sys.stdout.isatty() else tuple(self._lines)

    def stage(self, name: str, text: str) -> None:
        """A stage is over: its bar gives way to its line."""
        self._lines.append(escape(f"{name:<{_NAME}}{text}"))
        if self._bars is not None:
            self._drop(name)
            self._bars.console.print(self._lines[-1], markup=False, highlight=False, soft_wrap=True)

    def advance(self, name: str, done: int, total: int) -> None:
        """Within stage `name`, `done` of `total` units are done."""
        if self._bars is None:
            return
        now = time.monotonic()
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(f"{name:<{_NAME}}", total=total, left="")
        times = self._times.get(name)
        if times is None or times.total != total:  # a stage is announced as one unit before it knows how many it has
            times = self._times[name] = TimeLeft(done=done, total=total, now=now)
        times.tell(done, now)
        self._bars.update(self._tasks[name], completed=done, total=total, left=str(times.outlook(now)))
        if done >= total:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._times.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None and self._bars is not None:
            self._bars.remove_task(task)


@contextmanager
def stage_log() -> Iterator[StageLog]:
    """A log with bars where stderr is a terminal. Bars are gone when the outcome is printed."""
    if not sys.stderr.isatty():
        yield StageLog(None)
        return
    from rich.console import Console  # imported late: a quiet command should not pay for it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    left = TextColumn("{task.fields[left]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield StageLog(bars)
