"""A backend that computes nothing and goes wrong on rank 1 in one phase, in the way that the environment names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from mint2m_trainer.faults import InputError
from mint2m_trainer.rank_inputs import RankInputs
from mint2m_verify.documents.records import PhaseEvidence
from mint2m_verify.elsewhere import HashedElsewhere
from mint2m_verify.phases import expected_phases

PHASE, FAULT = "FAULT_IN_PHASE", "FAULT_KIND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    evidence: PhaseEvidence
    files: tuple[str, ...] = ()
    hashed: tuple[HashedElsewhere, ...] = ()


class AwkwardError(Exception):
    """Cannot be unpickled: its constructor wants two arguments and its `args` hold one."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")


class FaultyUpdate:
    """Every phase succeeds at once, but one."""

    def __init__(self, inputs: RankInputs) -> None:
        self._rank = inputs.rank
        self.phases = expected_phases(inputs.profile)

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> Outcome:
        progress(phase, 1, 1)
        seen = PhaseEvidence(collectives=1, ledger_sha256="1" * 64, peak_memory_bytes=1)
        if phase != os.environ[PHASE] or self._rank != 1:
            return Outcome(evidence=seen)
        match os.environ[FAULT]:
            case "raises":
                raise AwkwardError("row 7", "row 8 differ")
            case "cannot use its input":
                raise InputError("lm_head.weight: NaN")
            case "has a bug":
                raise KeyError("absent")
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hangs":
                time.sleep(600)
            case "disagrees":
                seen = PhaseEvidence(collectives=2, ledger_sha256="2" * 64, peak_memory_bytes=1)
            case "lies about a file":
                return Outcome(evidence=seen, files=("artifacts/never-written",))
        return Outcome(evidence=seen)

    def position(self) -> None:
        """In no collective, ever."""

    def flight(self) -> None:
        """Nor has it a record of any."""

    def close(self) -> None:
        """Nothing to close."""
