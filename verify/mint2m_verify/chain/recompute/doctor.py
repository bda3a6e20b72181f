"""The doctor stage: its checks counted; what the machine was is the operator's word."""

from __future__ import annotations

from mint2m_verify.chain.numbers import Number
from mint2m_verify.chain.recompute.evidence import Evidence, Recomputation
from mint2m_verify.documents import Doctor
from mint2m_verify.finding import FindingError, found

EXAMINATION = "examination.json"


def recompute(evidence: Evidence) -> Recomputation:
    """How many checks passed and how many blocked; the document's own status is only compared."""
    path = f"{evidence.tree}{EXAMINATION}"
    try:
        doctor = evidence.document(Doctor, path)
    except FindingError as fault:
        yield fault.finding
        return ()
    blocked = sum(check.status == "blocked" for check in doctor.checks)
    if doctor.scope != "validation":
        yield found(
            "doctor.scope", stage="doctor", file=path, pointer="/scope", expected="validation", actual=doctor.scope
        )
    if (doctor.status == "passed") != (blocked == 0):
        want = "blocked" if blocked else "passed"
        yield found("doctor.blocked", stage="doctor", file=path, pointer="/status", expected=want, actual=doctor.status)
    return (
        Number(name="checks.passed", value=float(len(doctor.checks) - blocked), standing="attested-only"),
        Number(name="checks.blocked", value=float(blocked), standing="attested-only"),
    )
