"""`mint2m cleanup`: what an interrupted run owns is removed, and shown to be absent, from a process that never saw it.

The rule: the journal decides what is touched. Local things are recognized by pid and start tick or by the execution's
marker; things in a cluster by the id that Ray gave them. A name without an id is looked up and reported, never
removed. Running it twice is the same as once, and a closed journal is looked at again but never written to.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.cluster.directory import Removal, remove_half_written
from mint2m_trainer.cluster.journal import Journal, Ledger, read
from mint2m_trainer.cluster.leftovers import settle_local, still_there
from mint2m_trainer.cluster.ray_session import LOCAL
from mint2m_verify.doctor.machine import require_trainer
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import OwnedResource
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.planning import read_plan

_COMMAND = "cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What cleanup found out: everything that was ever owned, what is still there, and what it cannot judge."""

    ever: tuple[OwnedResource, ...]
    remaining: tuple[OwnedResource, ...]
    findings: tuple[Finding, ...]


def cleanup(plan_path: Path, ownership_path: Path) -> Report:
    """Clean up after the run of this plan and journal.

    Raises:
        FindingError: `input.missing`, `plan.altered`, `ownership.*` (its driver may still live).
    """
    plan = read_plan(plan_path)
    if not ownership_path.exists():
        raise FindingError(found("input.missing", file=str(ownership_path)))
    try:
        journal, ledger = Journal.reopen(ownership_path)
    except FindingError as fault:
        if fault.finding.id != "ownership.empty":
            raise
        return _nothing(ownership_path)
    with journal:
        if ledger.plan_sha256 != plan.plan_sha256:
            raise FindingError(
                found(
                    "ownership.plan-mismatch",
                    file=str(ownership_path),
                    expected=plan.plan_sha256,
                    actual=ledger.plan_sha256,
                )
            )
        settled = _settle(plan, journal, ledger)
        half = remove_half_written(ownership_path.parent)
        findings = (*settled.findings, *_findings(settled, half))
        if not ledger.closed:
            if findings:
                journal.write(
                    "cleanup-failed", detail="; ".join(f"{f.id} {f.actual or f.file or ''}" for f in findings)
                )
            else:
                journal.write("closed", detail="cleaned up")
    local = plan.deployment.ray_address == LOCAL
    return _report(ownership_path, ledger, settled, half, findings, local=local)


def _settle(plan: Plan, journal: Journal, ledger: Ledger) -> Settled:
    ever = _ever(ledger)
    if plan.deployment.ray_address == LOCAL:
        if not ledger.closed:
            settle_local(journal)
        else:
            # The journal is part of the receipt by now. What it calls absent is only looked at again.
            return Settled(ever=ever, remaining=still_there(journal.execution_id, ever), findings=())
        return Settled(ever=ever, remaining=read(journal.path).owned, findings=())
    return _settle_cluster(plan, journal, ledger, ever)


def _settle_cluster(plan: Plan, journal: Journal, ledger: Ledger, ever: tuple[OwnedResource, ...]) -> Settled:
    """The operator's cluster: by id where the journal has one; Ray itself ends what a dead driver owned."""
    require_trainer()
    from mint2m_trainer.cluster.operator_cluster import absent_in_cluster, joined, remove_by_id

    findings: list[Finding] = []
    pending = [item for item in (ever if ledger.closed else ledger.owned) if item.kind in ("actor", "placement-group")]
    with joined(plan.deployment.ray_address, plan.namespace):
        deadline = time.monotonic() + plan.timeouts_s.cleanup
        for item in pending:
            if item.id is not None and not ledger.closed:
                remove_by_id(item, plan.namespace)
        while pending:
            gone = [item for item in pending if absent_in_cluster(item, plan.namespace)]
            for item in gone:
                if not ledger.closed:
                    journal.write("absent", item)
            pending = [item for item in pending if item not in gone]
            if time.monotonic() > deadline:
                break
            time.sleep(0.2 if pending else 0.0)
    for item in pending:
        if item.id is None:
            findings.append(found("cleanup.id-unknown", actual=f"{item.kind} {item.name}"))
    remaining = tuple(item for item in pending if item.id is not None)
    if not ledger.closed and not pending:
        for item in ledger.owned:
            if item.kind == "ray":
                journal.write("absent", item, detail="disconnected")
    return Settled(ever=ever, remaining=remaining, findings=tuple(findings))


def _ever(ledger: Ledger) -> tuple[OwnedResource, ...]:
    """Everything intended or created, each with the most that became known of it."""
    best: dict[tuple[str, str], OwnedResource] = {}
    for event in ledger.events:
        if event.resource is not None and event.event in ("intent", "created"):
            best[(event.resource.kind, event.resource.name)] = event.resource
    return tuple(best.values())


def _findings(settled: Settled, half: Removal) -> tuple[Finding, ...]:
    remain = [
        found("cleanup.resource-remains", actual=f"{item.kind} {item.name}" + (f", pid {item.pid}" if item.pid else ""))
        for item in settled.remaining
    ]
    return (*remain, *(found("cleanup.half-written", file=str(path)) for path in half.stayed))


#: What is looked at, in the order of the report. In the operator's cluster a run owns no Ray, only its connection.
_KINDS_CLUSTER = (("actor", "coordinator and rank actors"), ("placement-group", "placement group"))
_KINDS_LOCAL = (
    *_KINDS_CLUSTER,
    ("process", "processes of the run's Ray"),
    ("ray", "the run's Ray"),
    ("directory", "the run's Ray directory"),
)


def _report(
    path: Path, ledger: Ledger, settled: Settled, half: Removal, findings: tuple[Finding, ...], *, local: bool
) -> Report:
    rows = [
        _row(label, [item for item in settled.ever if item.kind == kind], settled)
        for kind, label in (_KINDS_LOCAL if local else _KINDS_CLUSTER)
    ]
    removed = ", ".join(item.name for item in half.removed)
    rows.append(
        Requirement(
            required="no half-written file",
            found=f"{len(half.stayed)} left" if half.stayed else (f"removed {removed}" if removed else "none"),
            standing=Standing.FAILED if half.stayed else Standing.CHECKED,
        )
    )
    if ledger.progress is not None:
        folder = (path.parent / ledger.progress).resolve()
        kept = f"{folder} is {'there' if folder.is_dir() else 'not there'}"
        rows.append(Requirement(required="progress folder: left alone", found=kept, standing=Standing.CHECKED))
    state = "was closed already; looked at again" if ledger.closed else "closed now"
    rows.append(
        Requirement(
            required="journal",
            found="stays open" if findings and not ledger.closed else state,
            standing=Standing.FAILED if findings else Standing.CHECKED,
        )
    )
    return Report(
        subject=str(path.parent),
        command=_COMMAND,
        requirements=tuple(rows),
        findings=findings,
        not_checked=("finished files of an incomplete run: they stay, have no receipt, and prove nothing",),
        summary="something is still there" if findings else "nothing of this run is left",
    )


def _row(label: str, items: list[OwnedResource], settled: Settled) -> Requirement:
    left = [item for item in settled.remaining if item.kind in {i.kind for i in items}]
    if not items:
        return Requirement(required=f"{label}: absent", found="never begun", standing=Standing.CHECKED)
    text = f"{len(left)} of {len(items)} still there" if left else f"{len(items)} of {len(items)} absent"
    return Requirement(required=f"{label}: absent", found=text, standing=Standing.FAILED if left else Standing.CHECKED)


def _nothing(path: Path) -> Report:
    half = remove_half_written(path.parent)
    row = Requirement(required="journal", found="no event: nothing was begun", standing=Standing.CHECKED)
    return Report(
        subject=str(path.parent),
        command=_COMMAND,
        requirements=(row,),
        findings=tuple(found("cleanup.half-written", file=str(item)) for item in half.stayed),
        summary="nothing was begun",
    )
