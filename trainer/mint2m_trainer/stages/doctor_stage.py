"""The doctor stage: every prerequisite of the run looked at on this machine, against what the plan binds."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.stages.observing import Look, look, observed
from mint2m_trainer.stages.setting import Setting
from mint2m_trainer.stages.writing import Done
from mint2m_verify import __version__
from mint2m_verify.chain.places import PLACES
from mint2m_verify.chain.recompute.doctor import EXAMINATION
from mint2m_verify.deployment_parts import Check
from mint2m_verify.doctor.machine import available_bytes, backend_fault, package_checks, platform_checks
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.records import Doctor, DoctorCheck
from mint2m_verify.documents.validation import StageRank
from mint2m_verify.files import write_atomic
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.tree import manifest


def examine(setting: Setting) -> tuple[Doctor, tuple[Finding, ...]]:
    """Every check in its fixed order; none is skipped because another one blocked."""
    checks = (*platform_checks(), *package_checks(), *_checks(setting))
    findings = tuple(finding for check in checks for finding in check.findings)
    rows = tuple(row for check in checks for row in _rows(check))
    doctor = Doctor(
        scope="validation",
        tool_version=__version__,
        status="blocked" if findings else "passed",
        checks=rows,
        primary_failure=findings[0].id if findings else None,
    )
    return doctor, findings


def work(setting: Setting) -> Done:
    """Examine and write the examination; raises `FindingError` for the first blocker, before anything is sealed."""
    started_at = utc_now()
    doctor, findings = examine(setting)
    for fault in findings:
        raise FindingError(fault)
    setting.tree.mkdir(parents=True)
    raw = doctor.encode()
    write_atomic(setting.tree / EXAMINATION, raw)
    after = look(setting.plan.image_digest)
    path = f"{PLACES[setting.stage].tree}{EXAMINATION}"
    return Done(
        started_at=started_at,
        ended_at=utc_now(),
        after=after,
        ranks=(driver_rank(setting, (FileRef.of(path, raw),), after),),
    )


def driver_rank(setting: Setting, files: tuple[FileRef, ...], after: Look) -> StageRank:
    """The driver as the one rank of a stage in which it works alone."""
    return StageRank(
        rank=0,
        actor=None,
        actor_id=None,
        pid=os.getpid(),
        node_ip=setting.inputs.deployment.node_ips[0],
        slot=0,
        device="cpu",
        observed=observed(setting.before, after),
        files=files,
        groups_destroyed=True,
        absent=True,
    )


def _checks(setting: Setting) -> Iterator[Check]:
    plan, inputs = setting.plan, setting.inputs
    unavailable = backend_fault()
    yield Check(name="backend", actual="direct Megatron", findings=() if unavailable is None else (unavailable,))
    yield Check(name="source", actual=setting.before.source)
    yield Check(name="runtime-identity", actual=setting.before.identity)
    yield Check(name="inputs", actual=f"{len(plan.inputs)} files as planned")
    yield _model(setting)
    topology, deployment = plan.topology, inputs.deployment
    slots = len(deployment.node_ips) * deployment.accelerators_per_node
    faults: tuple[Finding, ...] = ()
    if slots < topology.world_size:
        faults = (found("topology.mismatch", expected=f"{topology.world_size} slots", actual=str(slots)),)
    yield Check(name="topology", actual=f"{topology.world_size} ranks on {slots} slots", findings=faults)
    yield Check(name="output", actual="outside every source checkout")
    available = available_bytes()
    yield Check(name="machine-memory", actual="unknown" if available is None else f"{available} bytes available")


def _model(setting: Setting) -> Check:
    """The snapshot's manifest, made again from its files."""
    want = setting.plan.model.manifest.sha256
    try:
        have = manifest("model", setting.inputs.snapshot, MODEL_TREE).sha256
    except FindingError as fault:
        return Check(name="model", findings=(found("model.snapshot-missing", actual=fault.finding.message),))
    if have != want:
        return Check(name="model", findings=(found("model.manifest-mismatch", expected=want, actual=have),))
    return Check(name="model", actual=have)


def _rows(check: Check) -> tuple[DoctorCheck, ...]:
    if not check.findings:
        return (
            DoctorCheck(id=check.name, status="passed", pointer=None, expected=None, actual=check.actual, hint=None),
        )
    return tuple(
        DoctorCheck(
            id=finding.id,
            status="blocked",
            pointer=finding.pointer,
            expected=finding.expected,
            actual=finding.actual or finding.message,
            hint=finding.hint,
        )
        for finding in check.findings
    )
