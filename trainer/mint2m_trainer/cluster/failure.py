"""What a run leaves that did not come through: no stepped weights, and a receipt that says so.

The rule: a failed run is told by its own document, under another name than a receipt's, so that neither can be read
for the other. Writing it is the last thing, and what stopped the run is told whether or not it can be written.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.cluster.directory import remove_half_written
from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.faults import words_of
from mint2m_trainer.outputs import Discarded, discard
from mint2m_verify import layout, phases
from mint2m_verify.documents.failure import FailedReceipt, FailureFinding
from mint2m_verify.documents.plan import Plan
from mint2m_verify.files import write_atomic
from mint2m_verify.finding import FindingError

#: Of a finding's words; a path or an exception may be longer than anybody reads.
_WORDS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Where a run stopped: `stage` is the phase, or `start` or `receipt` around them; `completed` are the phases that
    every rank went through."""

    execution_id: str
    started_at: str
    stage: str
    completed: tuple[str, ...]
    discarded: Discarded


def discard_unreceipted(root: Path, stage: str, *, but: frozenset[str]) -> Discarded:
    """Remove what the phase `stage` left, and stepped weights in any case; a killed rank cannot do this for itself.

    What was being written goes too: where the disk was full, taking down may have ended before it came to that.
    """
    remove_half_written(root)
    each = [discard(root, phase, but=but) for phase in dict.fromkeys((stage, phases.CHECKPOINT))]
    return Discarded(
        removed=tuple(path for one in each for path in one.removed),
        stayed=tuple(path for one in each for path in one.stayed),
    )


def write_failed_receipt(root: Path, plan: Plan, fault: BaseException, stopped: Stopped) -> None:
    """Write the failed receipt, if the disk still takes it."""
    if isinstance(fault, FindingError):
        finding = FailureFinding(id=fault.finding.id, words=_short(words_of(fault)))
    else:
        kind = "tool.io" if isinstance(fault, OSError) else "tool.internal"
        finding = FailureFinding(id=kind, words=_short(f"{type(fault).__name__}: {fault}"))
    receipt = FailedReceipt(
        status="failed",
        run_id=plan.run_id,
        plan_sha256=plan.plan_sha256,
        execution_id=stopped.execution_id,
        started_at=stopped.started_at,
        ended_at=utc_now(),
        world_size=plan.profile.topology.world_size,
        stopped_in=stopped.stage,
        completed=stopped.completed,
        finding=finding,
        discarded=stopped.discarded.removed,
        remaining=stopped.discarded.stayed,
    )
    # What stopped the run, a full disk perhaps, matters more than that this could not be said here too.
    with contextlib.suppress(OSError, FindingError):
        write_atomic(root / layout.FAILED_RECEIPT, receipt.encode())


def _short(words: str) -> str:
    plain = "".join(char if char.isprintable() else " " for char in words)
    return plain if len(plain) <= _WORDS else plain[: _WORDS - 1] + "…"
