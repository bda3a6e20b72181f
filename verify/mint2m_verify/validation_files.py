"""A validation deployment and everything it names: a fixture set with a profile and a training fixture for each stage.

The rule: what is planned for a promotion run is held against the hashes that the operator wrote, case by case, as the
inputs of one run are in `deployment_files`; and all cases are of one model, one adapter and one topology, since what a
stage shows counts for the next one only if they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain.places import NAMED_TOKENS, ORDER
from mint2m_verify.deployment_checks import check_deployment, check_image, check_profile, check_topology
from mint2m_verify.deployment_papers import check_attachments, check_lock, check_runtime
from mint2m_verify.deployment_parts import Check, Parts, because
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.inputs import Deployment, HardwareClass, PinnedFile, RunProfile, RuntimeIdentity
from mint2m_verify.documents.manifests import ModelManifest
from mint2m_verify.documents.validation import FixtureCase, FixtureSet, StageName
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.fixture import FixtureBytes
from mint2m_verify.input_checks import check_adapter, check_fixture, check_memory, check_model
from mint2m_verify.runtime.digests import is_placeholder
from mint2m_verify.runtime.lock import ReadLock
from mint2m_verify.walk import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCase:
    """One stage's inputs as they were read."""

    case: FixtureCase
    profile: RunProfile
    profile_raw: bytes
    files: FixtureBytes
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSet:
    """The fixture set's bytes, the name of its file, and its cases that are whole, in the order of the stages."""

    name: str
    raw: bytes
    cases: Mapping[StageName, CheckedCase]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationInputs:
    """Everything that a validation plan binds, complete and agreeing; paths of the deployment start at `place`."""

    place: Path
    deployment: Deployment
    fixtures: CheckedSet
    model_manifest: ModelManifest
    runtime_identity: RuntimeIdentity
    runtime_lock: ReadLock | None = None

    @property
    def profile(self) -> RunProfile:
        """One case's profile, for what all have in common."""
        return next(iter(self.fixtures.cases.values())).profile

    @property
    def required_stages(self) -> tuple[StageName, ...]:
        """Every stage up to the last that has a case."""
        last = max(ORDER.index(stage) for stage in self.fixtures.cases)
        return ORDER[: last + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredSet:
    """All checks in their fixed order, and the inputs where no check found a fault."""

    checks: tuple[Check, ...]
    deployment: Deployment | None = None
    inputs: ValidationInputs | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)


def gather_set(path: Path, *, progress: Progress | None = None) -> GatheredSet:
    """Read the validation deployment at `path` and what it names; `progress` is told as the snapshot is hashed."""
    parts = Parts(path=path)
    check_deployment(parts, "validation")
    deployment = parts.deployment
    if deployment is None or parts.checks[-1].findings:
        return GatheredSet(checks=tuple(parts.checks), deployment=deployment)
    check_image(parts, deployment)
    check_lock(parts, deployment)
    check_model(parts, deployment, progress)
    check_adapter(parts, deployment)
    if deployment.adapter is None:
        parts.record("adapter", found("adapter.missing", file=path.name, pointer="/adapter", actual="null"))
    if deployment.optimizer is not None:
        expected = "none: a stage's step begins at zero state"
        fault = found(
            "optimizer.moments-refused", file=path.name, pointer="/optimizer", expected=expected, actual="moments"
        )
        parts.record("optimizer", fault)
    if deployment.accumulation is not None:
        expected = "none: a stage's update is of one prompt"
        fault = found(
            "accumulation.refused", file=path.name, pointer="/accumulation", expected=expected, actual="several"
        )
        parts.record("accumulation", fault)
    fixtures = _check_set(parts, deployment)
    if fixtures is not None and fixtures.cases:
        _check_agreement(parts, fixtures.cases)
        parts.profile = next(iter(fixtures.cases.values())).profile
    check_topology(parts, deployment)
    check_attachments(parts, deployment)
    check_runtime(parts, deployment)
    return GatheredSet(checks=tuple(parts.checks), deployment=deployment, inputs=_complete(parts, deployment, fixtures))


def _check_set(parts: Parts, deployment: Deployment) -> CheckedSet | None:
    """The set by its digest, then each of its cases; those that are whole come back."""
    pinned = deployment.fixture
    if is_placeholder(pinned.sha256):
        fault = found("fixture.placeholder-hash", file=parts.path.name, pointer="/fixture/sha256", actual=pinned.sha256)
        parts.record("fixture-set", fault)
        return None
    place = parts.near(pinned.path)
    try:
        raw = read_once(place.resolve(), name=place.name)
        digest = sha256_hex(raw)
        if digest != pinned.sha256:
            raise FindingError(
                found("fixture-set.hash-mismatch", file=place.name, expected=pinned.sha256, actual=digest)
            )
        fixtures = FixtureSet.parse(raw, file=place.name, canonical_form=False)
    except FindingError as stop:
        fault = stop.finding
        if fault.id != "fixture-set.hash-mismatch":
            fault = because("fixture-set.unreadable", fault, pointer="/fixture/path")
        parts.record("fixture-set", fault)
        return None
    order = [case.stage for case in fixtures.cases]
    known = [stage for stage in ORDER if stage in (*NAMED_TOKENS, "actor")]
    wanted = known[: len(order)]
    if order != wanted:
        # A promotion run goes through the stages in order, and each of them computes on a case.
        fault = found(
            "fixture-set.stages-invalid",
            file=place.name,
            pointer="/cases",
            expected=", ".join(wanted),
            actual=", ".join(order),
        )
        parts.record("fixture-set", fault)
        return None
    parts.record("fixture-set", actual=f"{fixtures.name}, {', '.join(order)}")
    cases = ((case.stage, _check_case(parts, deployment, place, case)) for case in fixtures.cases)
    whole = {stage: checked for stage, checked in cases if checked is not None}
    return CheckedSet(name=place.name, raw=raw, cases=whole)


def _check_case(parts: Parts, deployment: Deployment, place: Path, case: FixtureCase) -> CheckedCase | None:
    """Profile, fixture and memory of one case, checked as those of a training deployment beside the set would be."""
    own = Parts(path=place, manifest=parts.manifest, adapter_sha256=parts.adapter_sha256)
    like = replace(
        deployment,
        model=replace(deployment.model, snapshot=str(parts.near(deployment.model.snapshot).absolute())),
        profile=PinnedFile(path=case.profile.path, sha256=case.profile.sha256),
        fixture=PinnedFile(path=case.fixture.path, sha256=case.fixture.sha256),
    )
    check_profile(own, like, None)
    check_fixture(own, like)
    if own.fixture_bytes is not None and own.profile is not None:
        differing = _differing(case, own.profile_raw, own.fixture_bytes, place.name)
        own.record("case", *differing, actual="four files as the set has them")
    check_memory(own, like)
    if own.profile is not None:
        if own.profile.rehearses is not None:
            fault = found("profile.unsupported", file=case.profile.path, pointer="/rehearses", expected="no rehearsal")
            own.record("profile", fault)
        tokens = own.profile.context.prompt_tokens
        faults = _length(case.stage, tokens, deployment.hardware_class)
        own.record("length", *faults, actual=f"{tokens} prompt tokens")
    for check in own.checks:
        told = (replace(finding, stage=case.stage) for finding in check.findings)
        parts.record(f"{case.stage}.{check.name}", *told, actual=check.actual)
    if any(check.findings for check in own.checks) or own.profile is None or own.fixture_bytes is None:
        return None
    return CheckedCase(
        case=case,
        profile=own.profile,
        profile_raw=own.profile_raw,
        files=own.fixture_bytes,
        memory_bytes=sum(item.bytes for item in own.memory or ()),
    )


def _differing(case: FixtureCase, profile: bytes, files: FixtureBytes, name: str) -> Iterator[Finding]:
    """Where the set names other files than the training fixture, or gives one another size."""
    beside = PurePosixPath(case.fixture.path).parent
    rows = (
        ("profile", case.profile, FileRef.of(case.profile.path, profile)),
        ("fixture", case.fixture, FileRef.of(case.fixture.path, files.fixture)),
        ("payload", case.payload, FileRef.of(str(beside / files.payload_name), files.payload)),
        ("rollout", case.rollout, FileRef.of(str(beside / files.rollout_name), files.rollout)),
    )
    for member, want, have in rows:
        if want != have:
            yield found(
                "fixture-set.case-differs",
                file=name,
                pointer=f"/{member}",
                expected=f"{want.path} {want.sha256}, {want.size} bytes",
                actual=f"{have.path} {have.sha256}, {have.size} bytes",
            )


def _length(stage: StageName, tokens: int, hardware: HardwareClass) -> Iterator[Finding]:
    """On a cluster a stage has the length of its name. The reference class may be shorter, and its plan says so."""
    named = NAMED_TOKENS.get(stage)
    if hardware != "reference-cpu" and named is not None and tokens != named:
        yield found(
            "fixture-set.wrong-length",
            pointer="/context/prompt_tokens",
            expected=f"{named} prompt tokens",
            actual=str(tokens),
        )


def _check_agreement(parts: Parts, cases: Mapping[StageName, CheckedCase]) -> None:
    """Every profile has the topology, the optimizer, the LoRA and the dtype of the first."""
    (first, reference), *others = cases.items()
    faults = [
        found(
            "fixture-set.cases-disagree",
            stage=stage,
            pointer=f"/{member}",
            expected=f"that of {first}: {getattr(reference.profile, member)}",
            actual=str(getattr(case.profile, member)),
        )
        for stage, case in others
        for member in ("topology", "optimizer", "lora", "model")
        if getattr(case.profile, member) != getattr(reference.profile, member)
    ]
    parts.record("agreement", *faults, actual="one topology, optimizer, LoRA and model")


def _complete(parts: Parts, deployment: Deployment, fixtures: CheckedSet | None) -> ValidationInputs | None:
    if any(check.findings for check in parts.checks):
        return None
    if fixtures is None or not fixtures.cases or parts.manifest is None or parts.identity is None:
        return None
    return ValidationInputs(
        place=parts.path.parent,
        deployment=deployment,
        fixtures=fixtures,
        model_manifest=parts.manifest,
        runtime_identity=parts.identity,
        runtime_lock=parts.lock,
    )
