"""The runtime lock that a validation plan binds: whole, of the plan's class, and of what the plan says that ran.

The rule: ranks hold themselves against the identity that the plan binds, so a lock that agrees with this identity is
one of what ran. Both name every package that no stage runs without, since what neither names agrees. A plan without a
lock is judged as before; it promotes no class that needs one.
"""

from __future__ import annotations

from collections.abc import Mapping

from mint2m_verify.doctor.machine import TRAINER_PACKAGES
from mint2m_verify.documents.inputs import RuntimeIdentity
from mint2m_verify.documents.validation import ValidationPlan
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.runtime.lock import check_environment, check_identity, described, read_lock
from mint2m_verify.walk import ReadFile


def check_planned_lock(plan: ValidationPlan, files: Mapping[str, ReadFile]) -> Check:
    """Lock and identity of the plan, against each other; what is not here has its finding among the inputs."""
    ref = plan.runtime_lock
    file = None if ref is None else files.get(ref.path)
    named = files.get(plan.runtime_identity.path)
    if ref is None or file is None or file.raw is None:
        yield found("validation-plan.lock-unresolved", file=None if ref is None else ref.path, actual="not readable")
        return "no lock"
    lock, faults = read_lock(file.raw, file=ref.path)
    for fault in faults:
        yield _evidence("validation-plan.lock-unresolved", fault)
    if lock is None:
        return "no lock"
    locked = {wheel.name for wheel in lock.document.wheels}
    for name in sorted({need.distribution for need in TRAINER_PACKAGES} - locked):
        actual = "not in the lock"
        yield found("validation-plan.lock-unresolved", file=ref.path, pointer="/wheels", expected=name, actual=actual)
    for fault in check_environment(lock, plan.hardware_class):
        yield _evidence("validation-plan.lock-differs", fault)
    if named is None or named.raw is None:
        yield found("validation-plan.lock-differs", file=plan.runtime_identity.path, actual="not readable")
        return described(lock)
    try:
        identity = RuntimeIdentity.parse(named.raw, file=plan.runtime_identity.path)
    except FindingError as stop:
        yield stop.finding
        return described(lock)
    for fault in check_identity(lock, identity, file=plan.runtime_identity.path):
        yield _evidence("validation-plan.lock-differs", fault)
    return described(lock)


def _evidence(id: str, cause: Finding) -> Finding:
    """The same of evidence, where it has failed and not only blocks."""
    actual = cause.message if cause.actual is None else cause.actual
    return found(id, file=cause.file, pointer=cause.pointer, expected=cause.expected, actual=actual)
