"""The real update, made to stand still inside one phase, so that a test can interrupt exactly there.

Loaded by rank actors by name; the phase and the file that announces the stall come through the environment, which the
local Ray hands on from its driver.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mint2m_trainer.update as real
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update

PHASE, ANNOUNCE = "STALL_IN_PHASE", "STALL_ANNOUNCED_AT"

__all__ = ["RankInputs", "StallingUpdate"]


class StallingUpdate(Update):
    """An update whose chosen phase never ends."""

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome:
        if phase != os.environ[PHASE]:
            return super().run(phase, progress)
        if phase == "checkpoint":
            real.save_checkpoint = _half_a_checkpoint  # the stall must find half of it on disk
        outcome = super().run(phase, progress)
        _stall(self._inputs.rank)
        return outcome


def _half_a_checkpoint(directory: Path, *_arguments: Any, execution: str) -> tuple[str, ...]:
    partial = directory.with_name(f"{directory.name}.partial-{execution}")
    partial.mkdir(exist_ok=True)
    (partial / "__0_0.distcp").write_bytes(b"half")
    _stall(0)
    return ()


def _stall(rank: int) -> None:
    Path(f"{os.environ[ANNOUNCE]}.{rank}").touch()
    time.sleep(600)
