"""`mint2m stage plan`: the validation plan, its inputs and the planner's signature, in one new directory.

The rule: everything that a stage will be judged by is written and signed here, before anything runs. Inputs come from a
validation deployment, each held against the hash that the operator wrote; a packaged set is one that is written first.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from mint2m_trainer.stages.kernel_stage import keeps_compiled_code
from mint2m_trainer.stages.observing import identity_now
from mint2m_trainer.stages.packaged_set import PACKAGED_SETS, PackagedSet, write_set
from mint2m_trainer.stages.setting import INPUT_LIMIT, PLAN_SEAL
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain import places
from mint2m_verify.chain.numbers import standard_thresholds
from mint2m_verify.chain.plan_check import check_sound
from mint2m_verify.chain.statements import plan_payload
from mint2m_verify.claim_scopes import CHAIN_SCOPES
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.inputs import Deployment, PinnedFile
from mint2m_verify.documents.validation import PlannedFixture, PlannedModel, PlannedStage, StageName, ValidationPlan
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import FindingError, found
from mint2m_verify.signers.signer import Signer as StatementSigner
from mint2m_verify.source import checkout_sha256, observed_sha256
from mint2m_verify.validation_files import CheckedCase, ValidationInputs, gather_set

#: Below `inputs/`: the cases, under the paths that the fixture set gives them.
_FIXTURES = f"{places.INPUTS}fixtures/"

_LOCK = f"{places.INPUTS}runtime-lock.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What was written."""

    directory: Path
    plan: ValidationPlan
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """How to plan: the new directory, who signs, new text; the last stage, None for all that have a case; a limit."""

    output: Path
    signer: StatementSigner
    nonce: str
    through: StageName | None = None
    limit_s: int = places.LIMIT_S


def plan_named(deployment: str, request: PlanRequest) -> Planned:
    """Plan a packaged set, or the validation deployment in a file.

    Raises:
        FindingError: `run.deployment-unknown`, `output.not-empty`, `plan.nonce-empty`, or the first of what the doctor
            finds.
    """
    item = PACKAGED_SETS.get(deployment)
    if item is None and not Path(deployment).exists():
        known = f"a file, or one of: {', '.join(PACKAGED_SETS)}"
        raise FindingError(found("run.deployment-unknown", expected=known, actual=deployment))
    return plan_deployment(Path(deployment), request) if item is None else plan_set(item, request)


def plan_set(item: PackagedSet, request: PlanRequest) -> Planned:
    """`plan_named` of a set that need not be among the packaged ones."""
    with tempfile.TemporaryDirectory(prefix="mint2m-set-") as folder:
        return plan_deployment(write_set(item, Path(folder) / "set"), request)


def plan_deployment(deployment: Path, request: PlanRequest) -> Planned:
    """`plan_named` of a file."""
    if not request.nonce:
        raise FindingError(found("plan.nonce-empty"))
    gathered = gather_set(deployment)
    for fault in gathered.findings:
        raise FindingError(fault)
    inputs = gathered.inputs
    if inputs is None:
        raise FindingError(found("fixture-set.unreadable", file=str(deployment)))
    with _new_directory(request.output) as work:
        plan, raw = _written(work, inputs, request)
    return Planned(directory=request.output, plan=plan, sha256=sha256_hex(raw))


@contextmanager
def _new_directory(output: Path) -> Iterator[Path]:
    """A directory that becomes `output` when all went well, and goes otherwise."""
    if output.is_symlink() or (output.exists() and (not output.is_dir() or any(output.iterdir()))):
        raise FindingError(found("output.not-empty", file=str(output)))
    work = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        work.mkdir(parents=True)
        yield work
        work.replace(output)
    except BaseException as fault:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(fault, OSError):
            raise FindingError(found("file.unwritable", file=str(output), actual=fault.strerror)) from fault
        raise


def _written(work: Path, inputs: ValidationInputs, request: PlanRequest) -> tuple[ValidationPlan, bytes]:
    required = inputs.required_stages if request.through is None else _through(request.through, inputs)
    source = observed_sha256()
    image = None if inputs.deployment.image is None else inputs.deployment.image.digest
    identity = identity_now(image, source)
    base = inputs.profile
    own = _brought(work, inputs)
    cases = inputs.fixtures.cases
    fixtures = {stage: _fixture(work, own, stage, cases[stage]) for stage in required if stage in cases}
    plan = ValidationPlan(
        name=own.name,
        nonce_sha256=sha256_hex(request.nonce.encode("utf-8")),
        source_sha256=source,
        checkout_sha256=checkout_sha256(),
        runtime_identity=_write(work, f"{places.INPUTS}runtime-identity.json", identity.encode()),
        image_digest=image,
        deployment=_write(work, f"{places.INPUTS}deployment.json", _pretty(own)),
        hardware_class=own.hardware_class,
        claim_scope=CHAIN_SCOPES[own.hardware_class],
        backend="gloo" if own.hardware_class == "reference-cpu" else "nccl",
        topology=base.topology,
        model=PlannedModel(
            revision=own.model.revision,
            manifest=_write(work, f"{places.INPUTS}model-manifest.json", inputs.model_manifest.encode()),
            adapter=tuple(
                FileRef.of(f"{places.INPUTS}adapter/{path.name}", read_once(path, limit=INPUT_LIMIT))
                for path in sorted((work / places.INPUTS / "adapter").iterdir())
            ),
        ),
        optimizer=base.optimizer,
        # Where kernels are compiled and kept, the stage that tries them must find them kept.
        kernel_cache_required=keeps_compiled_code(base.model.dtype),
        required_stages=required,
        stages=tuple(
            PlannedStage(
                stage=stage,
                fixture=fixtures.get(stage),
                limit_s=request.limit_s,
                thresholds=standard_thresholds(
                    stage, world_size=base.topology.world_size, tokens=_tokens(cases.get(stage))
                ),
            )
            for stage in required
        ),
        timeouts_s=base.timeouts_s,
        runtime_lock=_lock(work, inputs),
    )
    for fault in check_sound(plan):
        raise FindingError(fault)
    raw = plan.encode()
    write_atomic(work / places.PLAN, raw)
    write_atomic(work / PLAN_SEAL, request.signer.sign_statement(plan_payload(plan, raw)))
    return plan, raw


def _through(last: StageName, inputs: ValidationInputs) -> tuple[StageName, ...]:
    """The stages up to `last`, each of which has what it needs."""
    wanted = places.ORDER[: places.ORDER.index(last) + 1]
    known = inputs.required_stages
    if len(wanted) > len(known):
        raise FindingError(found("stage.not-planned", stage=last, expected=", ".join(known), actual=last))
    return wanted


def _tokens(case: CheckedCase | None) -> int | None:
    return None if case is None else case.profile.context.prompt_tokens


def _brought(work: Path, inputs: ValidationInputs) -> Deployment:
    """Copy what the deployment names beside the plan; the deployment with the places where it lies now.

    A snapshot that is named by a relative path comes along; one named by an absolute path stays where it is, which
    every node must see. What was copied is hashed again when a stage begins.
    """
    deployment, place, fixtures = inputs.deployment, work / places.INPUTS, inputs.fixtures
    place.mkdir()
    model, signer = deployment.model, deployment.signer
    if not Path(model.snapshot).is_absolute():
        shutil.copytree(inputs.place / model.snapshot, place / "model", copy_function=shutil.copyfile)
        model = replace(model, snapshot="model")
    if deployment.adapter is not None:
        shutil.copytree(inputs.place / deployment.adapter, place / "adapter", copy_function=shutil.copyfile)
    _put(work, f"{_FIXTURES}{fixtures.name}", fixtures.raw)

    def stays(path: str | None) -> str | None:
        return None if path is None else str((inputs.place / path).resolve())

    return replace(
        deployment,
        model=model,
        adapter="adapter",
        fixture=PinnedFile(path=f"fixtures/{fixtures.name}", sha256=deployment.fixture.sha256),
        runtime_identity=None if deployment.runtime_identity is None else "runtime-identity.json",
        runtime_lock=None if deployment.runtime_lock is None else PurePosixPath(_LOCK).name,
        sbom=stays(deployment.sbom),
        image_provenance=stays(deployment.image_provenance),
        signer=replace(signer, path=stays(signer.path)),
    )


def _lock(work: Path, inputs: ValidationInputs) -> FileRef | None:
    """The runtime lock beside the plan, byte for byte as the doctor has seen it."""
    named = inputs.deployment.runtime_lock
    if named is None or inputs.runtime_lock is None:
        return None
    raw = read_once((inputs.place / named).resolve(), name=named)
    if sha256_hex(raw) != inputs.runtime_lock.sha256:
        raise FindingError(found("tree.changed-while-read", file=named))
    return _write(work, _LOCK, raw)


def _fixture(work: Path, own: Deployment, stage: StageName, checked: CheckedCase) -> PlannedFixture:
    """Profile and fixture of one stage; for the scale stage also its training deployment."""
    case, files = checked.case, checked.files
    profile, fixture, payload, rollout = (
        _put(work, f"{_FIXTURES}{path}", raw)
        for path, raw in (
            (case.profile.path, checked.profile_raw),
            (case.fixture.path, files.fixture),
            (case.payload.path, files.payload),
            (case.rollout.path, files.rollout),
        )
    )
    training = None
    if stage == "scale-2m":
        run = replace(
            own,
            kind="training",
            name=f"{own.name}-{stage}",
            fixture=PinnedFile(path=f"fixtures/{case.fixture.path}", sha256=fixture.sha256),
            profile=PinnedFile(path=f"fixtures/{case.profile.path}", sha256=profile.sha256),
        )
        training = _write(work, f"{places.INPUTS}{stage}.deployment.json", _pretty(run))
    return PlannedFixture(profile=profile, fixture=fixture, payload=payload, rollout=rollout, deployment=training)


def _put(work: Path, path: str, raw: bytes) -> FileRef:
    """Write a file that two cases may share."""
    ref = FileRef.of(path, raw)
    if (work / path).exists():
        if sha256_hex(read_once(work / path, name=path)) != ref.sha256:
            raise FindingError(found("tree.changed-while-read", file=path))
        return ref
    (work / path).parent.mkdir(parents=True, exist_ok=True)
    return _write(work, path, raw)


def _write(work: Path, path: str, raw: bytes) -> FileRef:
    write_atomic(work / path, raw)
    return FileRef.of(path, raw)


def _pretty(document: Deployment) -> bytes:
    return (json.dumps(document.value(), indent=2) + "\n").encode("utf-8")
