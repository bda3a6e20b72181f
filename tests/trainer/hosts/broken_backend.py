"""The real update, of which rank 1 goes wrong in one phase, in the way that the test has written down.

Loaded by rank actors by name. A cluster outlives many tests, so what happens comes through a folder and not through
the environment: `fault.json` names kind and phase, and a file announces that a rank has come to it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mint2m_trainer.cluster import rank_actor
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update

CONTROL = "FAULT_CONTROL"
STANDS, SLOW, HANGS, SKEWED = "stands", "slow", "hangs", "skewed"

#: How late a slow rank is, and how far a wrong clock is off.
SLOW_S = 6.0
SKEW = timedelta(days=-3)

__all__ = ["BrokenUpdate", "RankInputs"]


class BrokenUpdate(Update):
    """An update like any other, but on rank 1 and in one phase."""

    def __init__(self, inputs: RankInputs) -> None:
        super().__init__(inputs)
        self._fault = json.loads((Path(os.environ[CONTROL]) / "fault.json").read_text())
        if self._fault["kind"] == SKEWED and inputs.rank == 1:
            right = rank_actor.utc_now
            rank_actor.utc_now = lambda: _skewed(right())  # type: ignore[assignment]  # this process's clock

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome:
        if phase == self._fault["phase"] and self._inputs.rank == 1:
            match self._fault["kind"]:
                case "stands":  # the other rank waits for it in a collective
                    _announce()
                    time.sleep(600)
                case "slow":
                    _announce()
                    time.sleep(SLOW_S)
                case "hangs":  # in the middle of the phase, where it has one
                    self._ledger.record = _hanging(self._ledger.record)  # type: ignore[method-assign]
        return super().run(phase, progress)


def _hanging(record: Callable[..., None]) -> Callable[..., None]:
    def hang(*arguments: Any) -> None:
        _announce()
        time.sleep(600)
        record(*arguments)

    return hang


def _announce() -> None:
    (Path(os.environ[CONTROL]) / "reached").touch()


def _skewed(time_: str) -> str:
    wrong = datetime.fromisoformat(time_) + SKEW
    return wrong.isoformat(timespec="microseconds").replace("+00:00", "Z")
