"""Seconds spent in named functions, for benchmarks that must not change what they measure.

The rule: time is counted once. A watched function that another one calls adds nothing of its own, so that the sum over
all names is time that passed.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

#: Environment: where each rank of a timed run writes its seconds.
FOLDER = "BENCH_CLOCK_FOLDER"


class Stopwatch:
    """`seconds` by name of function; for one thread."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inside = False

    def watch(self, owner: Any, *names: str) -> None:
        """Put a timed function in place of `owner`'s own of each name, for good."""
        for name in names:
            setattr(owner, name, self.timed(name, getattr(owner, name)))

    def timed(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """`act`, counted under `name`."""

        @functools.wraps(act)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return act(*arguments, **named)
            self._inside, begun = True, time.perf_counter()
            try:
                return act(*arguments, **named)
            finally:
                self._inside = False
                self.seconds[name] += time.perf_counter() - begun
                self.calls[name] += 1

        return timed
