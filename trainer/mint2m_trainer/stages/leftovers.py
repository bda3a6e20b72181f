"""What the driver of a stage leaves when it fails or is killed: its work directory, and what that one's run owned.

The rule: a driver holds a lock on its work directory as long as it lives, so one without a lock belongs to nobody. It
is removed only when everything that a journal in it names is absent; what cannot be shown stays, with a finding.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mint2m_trainer.cluster.cleanup import cleanup
from mint2m_trainer.cluster.journal import Journal, read
from mint2m_trainer.cluster.leftovers import settle_local
from mint2m_trainer.cluster.ray_session import LOCAL
from mint2m_verify import layout
from mint2m_verify.finding import FindingError, found


@contextmanager
def working_in(work: Path) -> Iterator[None]:
    """Make the work directory, and show as long as the scope lasts that somebody works in it."""
    work.mkdir()
    descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def clear_abandoned(evidence: Path, ray_address: str) -> None:
    """Remove the work directories beside `evidence` whose drivers are gone.

    Raises:
        FindingError: `cleanup.resource-remains`, or what is wrong with a journal; the directory stays then.
    """
    for work in sorted(evidence.parent.glob(f"{evidence.name}.work-*")):
        if work.is_dir() and not work.is_symlink() and _abandoned(work):
            for journal in sorted(work.rglob(layout.OWNERSHIP)):
                _settle(journal, ray_address)
            shutil.rmtree(work)


def discard_work(work: Path) -> bool:
    """Remove the work directory of a stage that ends without a bundle; False where it stays.

    It stays where a journal in it still owns something: the next stage ends that by the journal.
    """
    for journal in work.rglob(layout.OWNERSHIP):
        try:
            if read(journal).owned:
                return False
        except FindingError as fault:
            if fault.finding.id != "ownership.empty":
                return False
    shutil.rmtree(work, ignore_errors=True)
    return True


def _abandoned(work: Path) -> bool:
    descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _settle(path: Path, ray_address: str) -> None:
    plan = path.with_name(layout.PLAN)
    if plan.exists():
        for fault in cleanup(plan, path).findings:
            raise FindingError(fault)
        return
    try:
        journal, ledger = Journal.reopen(path)
    except FindingError as fault:
        if fault.finding.id != "ownership.empty":
            raise
        return
    with journal:
        if ledger.closed:
            return
        if ray_address == LOCAL:
            settle_local(journal)
        # In a cluster of the operator's, Ray ends what a dead driver owned; this only says what nobody has seen end.
        for item in read(path).owned:
            raise FindingError(found("cleanup.resource-remains", file=str(path), actual=f"{item.kind} {item.name}"))
        journal.write("closed", detail="cleaned up")
