"""Whether the cluster class of hardware may be run, or only reviewed: five gates, most of which need a verified chain.

The rule: a gate is met by something that was verified under a policy which the caller brought, and by nothing that the
checkout says of itself. Evidence of another hardware class meets none of them, however good it is. Without a chain the
answer is `review_only_not_runnable`, and that is no fault of the checkout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.anchor import time_argument
from mint2m_verify.chain import places
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.verify import AUTHORIZED, INPUTS, LOCKED, verify_chain
from mint2m_verify.documents.inputs import HardwareClass
from mint2m_verify.documents.validation import ValidationPlan
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, Verdict, found
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.reading import read_policy
from mint2m_verify.seal import short
from mint2m_verify.source import observed_sha256

GPU_CLASS: HardwareClass = "h20-4x8"
RUNNABLE = "runnable"
REVIEW_ONLY = "review_only_not_runnable"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedChain:
    """A promotion run, what its verification under a policy came to, and its plan; `plan` is None where unreadable."""

    report: Report
    plan: ValidationPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One gate; `found` says why it is met or what is missing."""

    name: str
    met: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """All gates of the cluster class, in their order."""

    gates: tuple[Gate, ...]

    @property
    def status(self) -> str:
        return RUNNABLE if self.gates and all(gate.met for gate in self.gates) else REVIEW_ONLY

    @property
    def words(self) -> str:
        """The status, and what stands in the way."""
        missing = ", ".join(gate.name for gate in self.gates if not gate.met)
        return f"{GPU_CLASS} {self.status}" + (f"; not met: {missing}" if missing else "")

    def requirements(self) -> Iterator[Requirement]:
        """A row for each gate and one for the status; an unmet gate is nothing that was shown to be so."""
        for gate in self.gates:
            standing = Standing.CHECKED if gate.met else Standing.UNVERIFIABLE
            yield Requirement(required=f"{GPU_CLASS}: {gate.name}", found=gate.found, standing=standing)
        standing = Standing.CHECKED if self.status == RUNNABLE else Standing.UNVERIFIABLE
        yield Requirement(required=f"{GPU_CLASS}: status", found=self.status, standing=standing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoting:
    """A promotion run that may promote the class, and the policy that judges it."""

    chain: Path
    policy: PolicyAnchor

    def verified(self) -> VerifiedChain:
        """The run, verified now; raises `FindingError` where it is no directory."""
        report = verify_chain(self.chain, self.policy, ChainOptions())
        try:
            plan = ValidationPlan.parse(read_once(self.chain / places.PLAN, name=places.PLAN), file=places.PLAN)
        except FindingError:
            plan = None  # which the report says
        digests = {item.name: item.sha256 for item in report.trust.digests}
        if plan is not None and digests.get("plan") != plan.sha256:
            raise FindingError(found("tree.changed-while-read", file=places.PLAN))
        return VerifiedChain(report=report, plan=plan)


def read_promoting(
    *, chain: Path | None, policy: Path | None, trusted_root: Path | None, at: str | None
) -> Promoting | None:
    """What the command line names, None where it names nothing; raises `FindingError` (`usage.invalid`, `policy.*`)."""
    if chain is None and policy is None and trusted_root is None and at is None:
        return None
    if chain is None or policy is None:
        raise FindingError(found("usage.invalid", expected="--chain and --policy together"))
    return Promoting(chain=chain, policy=read_policy(policy, trusted_root=trusted_root, at=time_argument(at, "--at")))


def promotion(faults: tuple[Finding, ...], chain: VerifiedChain | None, *, source: str | None = None) -> Promotion:
    """The gates.

    Args:
        faults: what stands against the implementation, from the checks of its source tree.
        chain: a promotion run that was verified under the caller's policy; None where none was brought.
        source: digest of the source that would run; None takes this installation's.
    """
    implementation = Gate(
        name="implementation",
        met=not faults,
        found="the source tree is whole" if not faults else f"{len(faults)} faults, first {faults[0].id}",
    )
    return Promotion(gates=(implementation, *_of_chain(chain, source or observed_sha256())))


_OF_CHAIN = ("runtime lock", "authorization", "inputs", "validation")


def _of_chain(chain: VerifiedChain | None, source: str) -> Iterator[Gate]:
    against = _against(chain)
    if against is not None or chain is None or chain.plan is None:
        for name in _OF_CHAIN:
            yield Gate(name=name, met=False, found=against or "no plan")
        return
    plan, rows = chain.plan, {row.required: row for row in chain.report.requirements}
    locked, why = _locked(plan, rows.get(LOCKED))
    yield Gate(name="runtime lock", met=locked, found=why)
    for name, required in (("authorization", AUTHORIZED), ("inputs", INPUTS)):
        row = rows.get(required)
        met = row is not None and row.standing is Standing.CHECKED
        yield Gate(name=name, met=met, found=row.found if row is not None else "the policy asks for none")
    bound = plan.source_sha256 == source and plan.required_stages == places.ORDER
    yield Gate(
        name="validation",
        met=bound,
        found=f"{', '.join(plan.required_stages)} of source {short(plan.source_sha256)}; this is {short(source)}",
    )


def _locked(plan: ValidationPlan, row: Requirement | None) -> tuple[bool, str]:
    """Whether the plan binds an image and a lock that was found whole and of what ran, and in words."""
    if plan.image_digest is None:
        return False, "the plan names no image"
    if plan.runtime_lock is None:
        return False, "the plan binds no runtime lock"
    if row is None or row.standing is not Standing.CHECKED:
        return False, "the lock was not checked"
    image = short(plan.image_digest.removeprefix("sha256:"))
    return True, f"lock {short(plan.runtime_lock.sha256)}, image {image}"


def _against(chain: VerifiedChain | None) -> str | None:
    """Why a chain meets no gate at all."""
    if chain is None:
        return "no verified chain was brought (--chain, --policy)"
    if chain.plan is None or chain.report.verdict is not Verdict.ACCEPTED:
        return f"the chain is {chain.report.verdict.word}"
    if chain.plan.hardware_class != GPU_CLASS:
        return f"the chain is of {chain.plan.hardware_class}, which promotes no other class"
    return None
