"""`mint2m status`: what a journal says of its run, and what of it this machine still sees. Reads only."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from mint2m_trainer.cluster.journal import Ledger, read
from mint2m_trainer.cluster.leftovers import still_there
from mint2m_verify.finding import FindingError, Report, Requirement, Standing, found


def status(path: Path) -> Report:
    """The journal's state; raises `FindingError` (`input.missing`, `ownership.*`)."""
    if not path.exists():
        raise FindingError(found("input.missing", file=str(path)))
    ledger = read(path)
    here = still_there(ledger.execution_id, ledger.owned)
    rows = (
        Requirement(required="execution", found=ledger.execution_id, standing=Standing.CHECKED),
        Requirement(required="plan", found=ledger.plan_sha256, standing=Standing.CHECKED),
        Requirement(required="journal", found=f"{len(ledger.events)} events, unbroken", standing=Standing.CHECKED),
        Requirement(required="state", found=_state(path, ledger), standing=Standing.CHECKED),
        Requirement(
            required="owned and not yet absent, by the journal",
            found=", ".join(f"{item.kind} {item.name}" for item in ledger.owned) or "nothing",
            standing=Standing.ATTESTED_ONLY,
        ),
        Requirement(
            required="seen on this machine now",
            found=", ".join(f"{item.kind} {item.name}" for item in here) or "nothing",
            standing=Standing.CHECKED,
        ),
    )
    return Report(subject=str(path), command="status", requirements=rows, summary=_state(path, ledger))


def _state(path: Path, ledger: Ledger) -> str:
    if ledger.closed:
        return f"over: {ledger.events[-1].detail or 'closed'}"
    if _locked(path):
        return "running: its driver holds the journal"
    return "interrupted: its driver is gone and things may be left; run mint2m cleanup"


def _locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
