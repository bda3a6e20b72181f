"""One stage about to run: its plan and inputs, its evidence directory, and every reason not to start.

The rule: everything that can be refused is refused before anything is started, and the parent is not believed: the
chain so far is verified again, with the operator's own public key, from its raw artifacts.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.stages.observing import Look
from mint2m_verify.anchor import KeyAnchor
from mint2m_verify.canonical import parse, sha256_hex
from mint2m_verify.chain import places
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.plan_check import check_sound
from mint2m_verify.chain.statements import check_plan_payload
from mint2m_verify.chain.verify import verify_chain
from mint2m_verify.chain.vouching import by_key
from mint2m_verify.deployment_parts import because
from mint2m_verify.documents.inputs import Deployment
from mint2m_verify.documents.validation import PlannedStage, StageName, StageRecord, ValidationPlan
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, found
from mint2m_verify.sealing import own_anchor
from mint2m_verify.signers.signer import Signer
from mint2m_verify.statement import parse_bundle

_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

#: Of one input of a plan: an adapter is the largest.
INPUT_LIMIT = 16 << 30

#: The planner's signature, beside the plan.
PLAN_SEAL = "plan.sigstore.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A plan as the operator has it: `directory` holds its inputs; `seal` is the bundle of its statement."""

    directory: Path
    plan: ValidationPlan
    raw: bytes
    seal: bytes
    deployment: Deployment

    @property
    def sha256(self) -> str:
        return sha256_hex(self.raw)

    @property
    def snapshot(self) -> Path:
        """Where the model lies on this machine."""
        return self.directory / places.INPUTS / self.deployment.model.snapshot

    @property
    def adapter(self) -> Path:
        """The adapter that every stage starts from."""
        return self.directory / places.INPUTS / "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """Who seals, the file that holds the key if one does, and the planner's public key where the operator has it."""

    signer: Signer
    path: Path | None
    plan_anchor: KeyAnchor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A stage that may start. `work` is a directory of its own beside the evidence; `before` what runs here, now."""

    stage: StageName
    planned: PlannedStage
    inputs: Inputs
    evidence: Path
    work: Path
    run_id: str
    execution_id: str
    before: Look
    signing: Signing

    @property
    def plan(self) -> ValidationPlan:
        return self.inputs.plan

    @property
    def tree(self) -> Path:
        """Where the stage's raw artifacts are written."""
        return self.work / places.PLACES[self.stage].tree

    @property
    def progress(self) -> Path:
        """Where a long stage keeps its work from one attempt to the next, beside the evidence."""
        return self.evidence.with_name(f"{self.evidence.name}.progress-{self.stage}")


def read_inputs(path: Path) -> Inputs:
    """The plan, its statement and every input that it names; raises `FindingError` (`stage.*`, `input.missing`)."""
    if not path.exists():
        raise FindingError(found("input.missing", file=str(path)))
    directory = path.resolve().parent
    try:
        raw = read_once(path.resolve(), name=str(path))
        plan = ValidationPlan.parse(raw, file=str(path))
        seal = read_once(directory / PLAN_SEAL, name=PLAN_SEAL)
        check_plan_payload(parse_bundle(seal, file=PLAN_SEAL).payload, plan, raw, file=PLAN_SEAL)
        for fault in check_sound(plan):
            raise FindingError(fault)
    except FindingError as fault:
        raise FindingError(because("stage.plan-unsound", fault.finding)) from fault
    for ref in plan.inputs:
        try:
            content = read_once(directory / ref.path, name=ref.path, limit=INPUT_LIMIT)
        except FindingError as fault:
            raise FindingError(because("stage.input-missing", fault.finding)) from fault
        if (sha256_hex(content), len(content)) != (ref.sha256, ref.size):
            raise FindingError(
                found("stage.input-missing", file=ref.path, expected=ref.sha256, actual=sha256_hex(content))
            )
    deployment = Deployment.parse(
        read_once(directory / plan.deployment.path), file=plan.deployment.path, canonical_form=False
    )
    return Inputs(directory=directory, plan=plan, raw=raw, seal=seal, deployment=deployment)


def check_start(
    stage: StageName, inputs: Inputs, evidence: Path, run_id: str, signing: Signing, now: Look
) -> PlannedStage:
    """What is planned for the stage, or the first reason not to start; raises `FindingError` (exit 2)."""
    planned = inputs.plan.stage(stage)
    if planned is None:
        required = ", ".join(inputs.plan.required_stages)
        raise FindingError(found("stage.not-planned", stage=stage, expected=required, actual=stage))
    if _RUN_ID.fullmatch(run_id) is None:
        raise FindingError(found("stage.run-id-invalid", stage=stage, actual=run_id))
    checkout = checkout_above(evidence)
    if checkout is not None:
        raise FindingError(found("output.inside-checkout", stage=stage, file=str(evidence), actual=str(checkout)))
    if signing.plan_anchor is not None:
        envelope = parse_bundle(inputs.seal, file=PLAN_SEAL)
        for fault in by_key(envelope, signing.plan_anchor, file=PLAN_SEAL):
            raise FindingError(because("stage.plan-unsound", fault))
    want = Look(identity=inputs.plan.runtime_identity.sha256, source=inputs.plan.source_sha256)
    if now != want:
        raise FindingError(found("stage.source-mismatch", stage=stage, expected=want.words, actual=now.words))
    if (evidence / places.PLACES[stage].seal).exists():
        raise FindingError(found("stage.repeated", stage=stage, file=str(evidence / places.PLACES[stage].seal)))
    _check_run_id(stage, evidence, run_id)
    _check_parent(stage, inputs, evidence, run_id, signing)
    return planned


def checkout_above(place: Path) -> Path | None:
    """The source checkout that `place` lies in, if any."""
    resolved = place.resolve()
    for folder in (resolved, *resolved.parents):
        if (folder / "pyproject.toml").exists() and (folder / "schemas").is_dir():
            return folder
    return None


def _check_run_id(stage: StageName, evidence: Path, run_id: str) -> None:
    """No other evidence directory beside this one carries the run id."""
    parent = evidence.resolve().parent
    for record in sorted(parent.glob(f"*/{places.PLACES['doctor'].record}")) if parent.is_dir() else ():
        if record.parent.resolve() == evidence.resolve():
            continue
        try:
            value = parse(read_once(record), file=str(record))
        except FindingError:
            continue  # not a record of ours
        if isinstance(value, dict) and value.get("run_id") == run_id:
            raise FindingError(found("stage.run-id-reused", stage=stage, file=str(record.parent), actual=run_id))


def _check_parent(stage: StageName, inputs: Inputs, evidence: Path, run_id: str, signing: Signing) -> None:
    parent = places.parent_of(stage)
    if parent is None:
        if evidence.exists() and (not evidence.is_dir() or any(_sealed(evidence))):
            raise FindingError(found("output.not-empty", stage=stage, file=str(evidence)))
        return
    if not (evidence / places.PLACES[parent].seal).exists():
        raise FindingError(found("stage.parent-missing", stage=stage, expected=parent, file=str(evidence)))
    if read_once(evidence / places.PLAN, name=places.PLAN) != inputs.raw:
        raise FindingError(found("stage.plan-mismatch", stage=stage, file=str(evidence / places.PLAN)))
    first = places.PLACES["doctor"].record
    record = StageRecord.parse(read_once(evidence / first, name=first), file=first)
    if record.run_id != run_id:
        raise FindingError(found("stage.run-mismatch", stage=stage, expected=record.run_id, actual=run_id))
    discard(stage, evidence)  # what an interrupted attempt left would be files that nothing binds
    report = verify_chain(
        evidence,
        own_anchor(signing.signer, signing.path),
        ChainOptions(through=parent, plan_anchor=signing.plan_anchor),
    )
    for fault in report.roots:
        raise FindingError(because("stage.parent-invalid", fault))


def discard(stage: StageName, evidence: Path) -> None:
    """Remove what an interrupted attempt of an unsealed stage left in the evidence directory."""
    where = places.PLACES[stage]
    if (evidence / where.seal).exists():
        raise RuntimeError(f"{stage} is sealed")
    shutil.rmtree(evidence / where.tree, ignore_errors=True)
    for name in (*where.bundle, where.proof):
        (evidence / name).unlink(missing_ok=True)


def _sealed(evidence: Path) -> Iterator[Path]:
    """Whatever of an earlier run lies there; leftovers of an interrupted first stage carry no seal."""
    yield from (evidence / "attestations").glob("*.sigstore.json") if evidence.is_dir() else ()
