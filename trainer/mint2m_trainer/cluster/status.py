"""`mint2m status`: what a journal says of its run, and what of it this machine and its cluster still see. Reads only.

The rule: the journal is the driver's word, and whatever else is said was looked at now. A cluster is asked only for a
run that is not over, by the plan beside the journal; one that does not answer is told as that, never as nothing there.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from mint2m_trainer.cluster.journal import Ledger, read
from mint2m_trainer.cluster.leftovers import still_there
from mint2m_trainer.cluster.ray_session import LOCAL
from mint2m_trainer.cluster.whereabouts import collective
from mint2m_verify import layout
from mint2m_verify.doctor.machine import require_trainer
from mint2m_verify.documents.plan import Plan
from mint2m_verify.finding import FindingError, Report, Requirement, Standing, found
from mint2m_verify.planning import read_plan


def status(path: Path) -> Report:
    """The journal's state; raises `FindingError` (`input.missing`, `ownership.*`)."""
    if not path.exists():
        raise FindingError(found("input.missing", file=str(path)))
    ledger = read(path)
    here = still_there(ledger.execution_id, ledger.owned)
    rows: tuple[Requirement, ...] = (
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
    plan = None if ledger.closed else _plan_of(path, ledger)
    if plan is not None and plan.deployment.ray_address != LOCAL:
        rows += _in_cluster(plan, ledger)
    return Report(subject=str(path), command="status", requirements=rows, summary=_state(path, ledger))


def _plan_of(path: Path, ledger: Ledger) -> Plan | None:
    """The plan beside the journal, where there is one and it is this journal's."""
    try:
        plan = read_plan(path.with_name(layout.PLAN))
    except FindingError:
        return None
    return plan if plan.plan_sha256 == ledger.plan_sha256 else None


def _in_cluster(plan: Plan, ledger: Ledger) -> tuple[Requirement, ...]:
    require_trainer()
    from mint2m_trainer.cluster.operator_cluster import seen

    where = f"seen in the cluster at {plan.deployment.ray_address} now"
    try:
        look = seen(plan, ledger.owned)
    except FindingError as fault:
        silent = f"it does not answer: {fault.finding.actual}"
        return (Requirement(required=where, found=silent, standing=Standing.UNVERIFIABLE),)
    there = ", ".join(f"{item.kind} {item.name}" for item in look.there) or "nothing"
    rows = [Requirement(required=where, found=there, standing=Standing.CHECKED)]
    places = {word.rank: collective(word) for word in look.whereabouts}
    works = {word.rank: f"{word.phase}, {word.done} of {word.total}" for word in look.progress}
    for rank in sorted(places.keys() | works.keys()):
        words = "; ".join(each[rank] for each in (works, places) if rank in each)
        rows.append(Requirement(required=f"rank {rank}, by its own word", found=words, standing=Standing.ATTESTED_ONLY))
    return tuple(rows)


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
