"""The real update, whose rank 1 is killed in the phase and after the tokens that the environment names."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from mint2m_trainer.resume import passes
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update

PHASE, TOKENS = "DIE_IN_PHASE", "DIE_AFTER_TOKENS"

__all__ = ["DyingUpdate", "RankInputs"]

# A run of seconds is too short for a state of the reverse pass to be due.
passes.KeptReverse.due = lambda _self: True


class DyingUpdate(Update):
    """An update that no handler of its own process sees the end of."""

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome:
        def watched(label: str, done: int, total: int) -> None:
            progress(label, done, total)
            if phase == os.environ.get(PHASE) and self._inputs.rank == 1 and done >= int(os.environ[TOKENS]):
                os.kill(os.getpid(), signal.SIGKILL)

        return super().run(phase, watched)
