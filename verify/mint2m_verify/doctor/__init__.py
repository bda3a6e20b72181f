"""`mint2m doctor`: every prerequisite looked at, every blocker named, nothing started and nothing heavy imported.

The rule: checks have a fixed order and none is skipped because another one blocked, unless it needs what that one
could not read. So the list of blockers is complete, and `primary_failure`, the first of them, is the same on every
machine that lacks the same things.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from mint2m_verify import __version__
from mint2m_verify.deployment_files import Gathered, gather
from mint2m_verify.deployment_parts import Check
from mint2m_verify.documents.inputs import Deployment
from mint2m_verify.documents.records import Doctor, DoctorCheck
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.walk import Progress

if TYPE_CHECKING:
    from mint2m_verify.promotion import Promoting  # loads what verifies chains

Scope: TypeAlias = Literal["checkout", "run", "validation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The doctor's document, its findings in order, and for scope `run` what was gathered on the way."""

    doctor: Doctor
    findings: tuple[Finding, ...]
    gathered: Gathered | None = None

    @property
    def blocked(self) -> bool:
        return self.doctor.status == "blocked"

    def report(self, subject: str) -> Report:
        """The same as a report: a row for each check that passed, a finding for each blocker."""
        rows = tuple(
            Requirement(required=check.id, found=check.actual or "as it should be", standing=Standing.CHECKED)
            for check in self.doctor.checks
            if check.status == "passed"
        )
        count = sum(check.status == "blocked" for check in self.doctor.checks)
        summary = f"{count} of {len(self.doctor.checks)} checks blocked" if count else f"{len(rows)} checks passed"
        return Report(
            subject=subject,
            command=f"doctor --scope {self.doctor.scope}",
            requirements=rows,
            findings=self.findings,
            summary=summary,
        )


def examine(
    scope: Scope,
    *,
    deployment: Path | None,
    profile: Path | None,
    root: Path,
    promoting: Promoting | None = None,
    against: Path | None = None,
) -> Examination:
    """`mint2m doctor`: by scope. Raises `FindingError` (`doctor.*`) for a scope or option that is not there."""
    if scope == "checkout":
        if against is not None:
            raise FindingError(found("usage.invalid", expected="--against with --scope run or validation"))
        return examine_checkout(root, promoting)
    if deployment is None:
        raise FindingError(found("doctor.option-missing", expected="--deployment", actual="none"))
    if scope == "run":
        return examine_run(deployment, profile=profile, output=None, against=against)
    return examine_validation(deployment, against=against)


def examine_run(
    deployment: Path,
    *,
    profile: Path | None,
    output: Path | None,
    progress: Progress | None = None,
    of_a_stage: bool = False,
    against: Path | None = None,
) -> Examination:
    """Whether a run of this deployment could start here and now.

    Args:
        deployment: the deployment file.
        profile: in place of one that the deployment leaves open.
        output: the run directory; None for a name below the deployment's output root.
        progress: told as the snapshot is hashed.
        of_a_stage: the run is a stage of a promotion run, whose plan is what a grant is for.
        against: another deployment that must share what runs.
    """
    from mint2m_verify.doctor import machine

    gathered = gather(deployment, profile=profile, progress=progress, of_a_stage=of_a_stage)
    checks = (*machine.platform_checks(), *machine.package_checks(), *gathered.checks)
    checks += _against(gathered.deployment, deployment, against)
    if gathered.deployment is not None:
        checks += machine.local_checks(gathered, deployment, output)
    return _examination("run", checks, gathered)


def _against(read: Deployment | None, path: Path, other: Path | None) -> tuple[Check, ...]:
    """The deployment held against another one, where both are wanted and there."""
    from mint2m_verify.runtime.against import check_against

    return () if other is None or read is None else (check_against(path, other),)


def examine_validation(
    deployment: Path, *, progress: Progress | None = None, against: Path | None = None
) -> Examination:
    """Whether a promotion run of this validation deployment could be planned and started here and now."""
    from mint2m_verify.doctor import machine
    from mint2m_verify.validation_files import gather_set

    gathered = gather_set(deployment, progress=progress)
    checks = (*machine.platform_checks(), *machine.package_checks(), *gathered.checks)
    checks += _against(gathered.deployment, deployment, against)
    if gathered.inputs is not None:
        inputs = gathered.inputs
        fullest = max(case.memory_bytes for case in inputs.fixtures.cases.values())
        checks += (machine.memory_check(inputs.deployment, inputs.profile.topology.world_size, fullest),)
    return _examination("validation", checks, None)


def examine_checkout(root: Path, promoting: Promoting | None = None) -> Examination:
    """Whether `root` is a whole and consistent source tree, and whether it may be run on the cluster class.

    That it may only be reviewed blocks nothing: it is what is so, until a chain of that class was verified.
    """
    from mint2m_verify.doctor.checkout import checkout_checks
    from mint2m_verify.promotion import promotion

    checks = checkout_checks(root)
    chain = None if promoting is None else promoting.verified()
    gates = promotion(tuple(fault for check in checks for fault in check.findings), chain)
    return _examination("checkout", (*checks, Check(name="promotion", actual=gates.words)), None)


def _examination(scope: Scope, checks: tuple[Check, ...], gathered: Gathered | None) -> Examination:
    findings = tuple(finding for check in checks for finding in check.findings)
    rows = tuple(row for check in checks for row in _rows(check))
    doctor = Doctor(
        scope=scope,
        tool_version=__version__,
        status="blocked" if findings else "passed",
        checks=rows,
        primary_failure=findings[0].id if findings else None,
    )
    return Examination(doctor=doctor, findings=findings, gathered=gathered)


def _rows(check: Check) -> tuple[DoctorCheck, ...]:
    """One row for a check that passed; one for each finding of a check that did not, under the finding's id."""
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
