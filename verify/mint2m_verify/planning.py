"""`mint2m plan`: from a deployment file to its plan, or to everything that stands in the way. No side effects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.deployment_files import Gathered, gather
from mint2m_verify.deployment_parts import blocking
from mint2m_verify.documents.plan import Plan
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import FindingError, Report, Requirement, Standing, Verdict, found
from mint2m_verify.plan import build_plan, check_address
from mint2m_verify.walk import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What was looked at, and the plan where all of it agreed."""

    deployment: Path
    gathered: Gathered
    plan: Plan | None

    def report(self) -> Report:
        """The inputs, row by row, and the plan's address."""
        rows = tuple(
            Requirement(required=check.name, found=check.actual or "as it should be", standing=Standing.CHECKED)
            for check in self.gathered.checks
            if not check.findings
        )
        if self.plan is not None:
            rows += (Requirement(required="plan", found=self.plan.plan_sha256, standing=Standing.CHECKED),)
        return Report(subject=str(self.deployment), command="plan", requirements=rows, findings=self.gathered.findings)


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan where there is none, or the same one; raises `FindingError` (`file.exists`)."""
    raw = plan.encode()
    if path.exists() or path.is_symlink():
        if read_once(path) != raw:
            raise FindingError(found("file.exists", file=str(path)))
        return
    write_atomic(path, raw)


def read_plan(path: Path) -> Plan:
    """A plan to be run, whole and at its own address; a fault in it blocks, since it is the operator's own input.

    Raises:
        FindingError: `input.missing`, `plan.altered`, `file.*`, `json.*` or `schema.invalid`.
    """
    if not path.exists():
        raise FindingError(found("input.missing", file=str(path)))
    try:
        plan = Plan.parse(read_once(path.resolve(), name=str(path)), file=str(path))
    except FindingError as fault:
        finding = fault.finding
        raise FindingError(blocking(finding) if finding.verdict is Verdict.FAILED else finding) from fault
    check_address(plan, file=str(path))
    return plan


def plan_deployment(
    deployment: Path, *, profile: Path | None, run_id: str, instance_nonce: str, progress: Progress | None = None
) -> Planned:
    """Plan a run of `deployment`; raises `FindingError` (`plan.*`) for a label or nonce that cannot be used."""
    gathered = gather(deployment, profile=profile, progress=progress)
    plan = None
    if gathered.inputs is not None:
        plan = build_plan(gathered.inputs, run_id=run_id, instance_nonce=instance_nonce)
    return Planned(deployment=deployment, gathered=gathered, plan=plan)
