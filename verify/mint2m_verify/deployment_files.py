"""A deployment and everything it names, read once and held against the hashes it gives.

The rule: all faults are collected, not only the first, and a part that fails takes with it only the checks that need
it. Paths in a deployment are the operator's own: absolute, or relative to the deployment file. The bytes read here are
the bytes that the plan binds and that the run copies beside its evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from mint2m_verify import schema
from mint2m_verify.canonical import JsonValue, parse, sha256_hex
from mint2m_verify.documents.base import Document, decode
from mint2m_verify.documents.inputs import ClaimScope, Deployment, FixtureShape, RunProfile, RuntimeIdentity
from mint2m_verify.documents.manifests import ModelManifest
from mint2m_verify.documents.plan import MemoryItem
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.fixture import CheckedFixture, Expected, FixtureBytes, check_bytes, read_fixture
from mint2m_verify.runtime_identity import observe
from mint2m_verify.tree import hash_tree, manifest_of
from mint2m_verify.walk import Progress

D = TypeVar("D", bound=Document)

#: Name of the tree inside every model-manifest. Fixed, since the manifest's digest covers it.
MODEL_TREE = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInputs:
    """Everything a plan binds, complete and agreeing. Raw bytes are as the operator wrote them."""

    deployment: Deployment
    deployment_raw: bytes
    profile: RunProfile
    profile_raw: bytes
    fixture: CheckedFixture
    fixture_bytes: FixtureBytes
    model_manifest: ModelManifest
    runtime_identity: RuntimeIdentity
    memory: tuple[MemoryItem, ...]
    snapshot: Path
    adapter: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at: `name` says what, `actual` what was found, and `findings` what is wrong with it."""

    name: str
    actual: str | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """All checks in their fixed order, and the inputs where no check found a fault."""

    checks: tuple[Check, ...]
    deployment: Deployment | None = None
    profile: RunProfile | None = None
    inputs: PlannedInputs | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)


@dataclass(slots=True)
class _Parts:
    """What has been read so far; a part stays None where it failed."""

    path: Path
    checks: list[Check] = field(default_factory=list)
    deployment: Deployment | None = None
    deployment_raw: bytes = b""
    profile: RunProfile | None = None
    profile_raw: bytes = b""
    manifest: ModelManifest | None = None
    fixture: CheckedFixture | None = None
    fixture_bytes: FixtureBytes | None = None
    identity: RuntimeIdentity | None = None
    memory: tuple[MemoryItem, ...] | None = None
    adapter_sha256: str | None = None

    def near(self, operator_path: str) -> Path:
        """An operator's path, resolved against the deployment's directory."""
        return self.path.parent / operator_path

    def record(self, name: str, *findings: Finding, actual: str | None = None) -> None:
        self.checks.append(Check(name=name, actual=None if findings else actual, findings=findings))


def gather(path: Path, *, profile: Path | None = None, progress: Progress | None = None) -> Gathered:
    """Read `path` and what it names.

    Args:
        path: the deployment.
        profile: a profile in place of one the deployment leaves open; where the deployment binds one they must agree.
        progress: told as the snapshot is hashed.
    """
    parts = _Parts(path=path)
    _deployment(parts)
    deployment = parts.deployment
    if deployment is not None:
        _image(parts, deployment)
        _profile(parts, deployment, profile)
        _model(parts, deployment, progress)
        _adapter(parts, deployment)
        _fixture(parts, deployment)
        _topology(parts, deployment)
        _attachments(parts, deployment)
        _runtime(parts, deployment)
        _memory(parts, deployment)
    return Gathered(
        checks=tuple(parts.checks), deployment=deployment, profile=parts.profile, inputs=_complete(parts, deployment)
    )


def _complete(parts: _Parts, deployment: Deployment | None) -> PlannedInputs | None:
    if any(check.findings for check in parts.checks):
        return None
    if (
        deployment is None
        or parts.profile is None
        or parts.fixture is None
        or parts.fixture_bytes is None
        or parts.manifest is None
        or parts.identity is None
        or parts.memory is None
    ):
        return None
    return PlannedInputs(
        deployment=deployment,
        deployment_raw=parts.deployment_raw,
        profile=parts.profile,
        profile_raw=parts.profile_raw,
        fixture=parts.fixture,
        fixture_bytes=parts.fixture_bytes,
        model_manifest=parts.manifest,
        runtime_identity=parts.identity,
        memory=parts.memory,
        snapshot=parts.near(deployment.model.snapshot),
        adapter=None if deployment.adapter is None else parts.near(deployment.adapter),
    )


def _deployment(parts: _Parts) -> None:
    name = parts.path.name
    try:
        raw = read_once(parts.path.resolve(), name=name)
        value = parse(raw, file=name)
    except FindingError as stop:
        parts.record("deployment", _because("deployment.unreadable", stop.finding))
        return
    faults = schema.check(_without_placeholders(value), Deployment.NAME, file=name)
    if faults:
        parts.record("deployment", *(_because("deployment.invalid", fault) for fault in faults))
        return
    parts.deployment_raw = raw
    deployment = parts.deployment = _decode(Deployment, value)
    if deployment.kind != "training":
        fault = found("deployment.wrong-kind", file=name, pointer="/kind", expected="training", actual=deployment.kind)
        parts.record("deployment", fault)
        return
    parts.record("deployment", actual=f"{deployment.name}, {deployment.hardware_class}")


def _without_placeholders(value: JsonValue) -> JsonValue:
    """The value with a stand-in for each all-zero digest, for the schema only.

    The schema refuses placeholders, and a template is full of them. Each has a check of its own further on, and with
    the rest of the deployment examined too the operator learns of everything at once.
    """
    if isinstance(value, dict):
        return {name: _without_placeholders(member) for name, member in value.items()}
    if isinstance(value, str) and _is_placeholder(value):
        return value.replace("0" * 64, "f" * 64)
    return value


def _is_placeholder(digest: str) -> bool:
    return digest.removeprefix("sha256:") == "0" * 64


def _image(parts: _Parts, deployment: Deployment) -> None:
    name = parts.path.name
    if deployment.image is None:
        if deployment.hardware_class != "reference-cpu":
            parts.record("image", found("image.missing", file=name, pointer="/image"))
            return
        parts.record("image", actual="none: reference-cpu runs this installation")
    elif _is_placeholder(deployment.image.digest):
        parts.record("image", found("image.placeholder-digest", file=name, pointer="/image/digest", actual="all zeros"))
    else:
        parts.record("image", actual=deployment.image.digest)


def _profile(parts: _Parts, deployment: Deployment, given: Path | None) -> None:
    bound = deployment.profile
    if bound is None and given is None:
        parts.record("profile", found("profile.missing", file=parts.path.name, pointer="/profile"))
        return
    source = given if given is not None else parts.near(bound.path if bound is not None else "")
    try:
        raw = read_once(source.resolve(), name=source.name)
        value = parse(raw, file=source.name)
    except FindingError as stop:
        parts.record("profile", _because("profile.unreadable", stop.finding))
        return
    digest = sha256_hex(raw)
    if bound is not None and digest != bound.sha256:
        fault_id = "profile.conflict" if given is not None else "profile.hash-mismatch"
        fault = found(fault_id, file=source.name, pointer="/profile/sha256", expected=bound.sha256, actual=digest)
        parts.record("profile", fault)
        return
    faults = schema.check(value, RunProfile.NAME, file=source.name)
    if faults:
        parts.record("profile", *(_because("profile.invalid", fault) for fault in faults))
        return
    profile = _decode(RunProfile, value)
    unsupported = tuple(_unsupported(profile, source.name))
    if unsupported:
        parts.record("profile", *unsupported)
        return
    parts.profile, parts.profile_raw = profile, raw
    parts.record("profile", actual=f"{profile.name}, {digest}")


def _unsupported(profile: RunProfile, file: str) -> list[Finding]:
    """Where the profile asks for something that has no effect or that nothing here does."""
    topology, grpo = profile.topology, profile.grpo
    world = topology.world_size
    rows = [
        ("/topology/context_parallel", world, topology.context_parallel),
        ("/topology/expert_parallel", world, topology.expert_parallel),
    ]
    faults = [
        found("profile.unsupported", file=file, pointer=pointer, expected=f"{want}, the world size", actual=str(have))
        for pointer, want, have in rows
        if want != have
    ]
    if (grpo.aggregation == "sequence_sum_norm") != (grpo.norm_tokens is not None):
        want = "a number exactly where aggregation is sequence_sum_norm"
        actual = f"{grpo.norm_tokens} with {grpo.aggregation}"
        faults.append(
            found("profile.unsupported", file=file, pointer="/grpo/norm_tokens", expected=want, actual=actual)
        )
    state = "float64" if profile.model.dtype == "float64" else "float32"
    if profile.optimizer.state_dtype != state:
        faults.append(
            found(
                "profile.unsupported",
                file=file,
                pointer="/optimizer/state_dtype",
                expected=f"{state} with a {profile.model.dtype} model",
                actual=profile.optimizer.state_dtype,
            )
        )
    return faults


def _model(parts: _Parts, deployment: Deployment, progress: Progress | None) -> None:
    root = parts.near(deployment.model.snapshot)
    try:
        manifest = manifest_of("model", hash_tree(root, progress), MODEL_TREE)
    except FindingError as stop:
        parts.record("model", _because("model.snapshot-missing", stop.finding, pointer="/model/snapshot"))
        return
    if not isinstance(manifest, ModelManifest):
        raise TypeError("a model tree has a model manifest")
    want = deployment.model.model_manifest_sha256
    if manifest.sha256 != want:
        fault = found(
            "model.manifest-mismatch",
            file=parts.path.name,
            pointer="/model/model_manifest_sha256",
            expected=want,
            actual=manifest.sha256,
        )
        parts.record("model", fault)
        return
    parts.manifest = manifest
    parts.record("model", actual=f"{manifest.file_count} files, {manifest.total_bytes} bytes, {manifest.sha256}")


def _adapter(parts: _Parts, deployment: Deployment) -> None:
    if deployment.adapter is None:
        return
    try:
        entries = hash_tree(parts.near(deployment.adapter))
    except FindingError as stop:
        parts.record("adapter", _because("adapter.missing", stop.finding, pointer="/adapter"))
        return
    parts.adapter_sha256 = manifest_of("file", entries, "adapter").root_sha256
    parts.record("adapter", actual=parts.adapter_sha256)


def _fixture(parts: _Parts, deployment: Deployment) -> None:
    path = parts.near(deployment.fixture.path)
    if _is_placeholder(deployment.fixture.sha256):
        fault = found("fixture.placeholder-hash", file=parts.path.name, pointer="/fixture/sha256", actual="all zeros")
        parts.record("fixture", fault)
        return
    try:
        files = read_fixture(path)
    except FindingError as stop:
        parts.record("fixture", _because("fixture.unreadable", stop.finding, pointer="/fixture/path"))
        return
    digest = sha256_hex(files.fixture)
    if digest != deployment.fixture.sha256:
        pointer = "/fixture/sha256"
        fault = found(
            "fixture.hash-mismatch", file=path.name, pointer=pointer, expected=deployment.fixture.sha256, actual=digest
        )
        parts.record("fixture", _blocking(fault))
        return
    expected = Expected(
        revision=deployment.model.revision,
        manifest_sha256=deployment.model.model_manifest_sha256,
        profile_sha256=sha256_hex(parts.profile_raw) if parts.profile is not None else None,
        profile=parts.profile,
        policy_sha256=parts.adapter_sha256,
        fresh_policy=deployment.adapter is None,
    )
    checked, findings = check_bytes(files, expected)
    if findings or checked is None:
        parts.record("fixture", *(_blocking(finding) for finding in findings))
        return
    missing = tuple(_missing_scores(parts.profile, checked, files.rollout_name))
    if missing:
        parts.record("fixture", *missing)
        return
    parts.fixture, parts.fixture_bytes = checked, files
    shape = checked.fixture.shape
    parts.record("fixture", actual=f"{shape.prompt_tokens} prompt tokens, {len(shape.response_tokens)} responses")


def _missing_scores(profile: RunProfile | None, checked: CheckedFixture, file: str) -> Iterator[Finding]:
    """Log-probs that the profile takes from a rollout which has none."""
    if profile is None:
        return
    rows = (
        ("old_logprobs", profile.grpo.old_source == "rollout", checked.rollout.old_logprobs),
        (
            "ref_logprobs",
            profile.grpo.kl_beta > 0 and profile.grpo.ref_source == "rollout",
            checked.rollout.ref_logprobs,
        ),
    )
    for member, needed, values in rows:
        if needed and values is None:
            yield found(
                "fixture.logprobs-missing", file=file, pointer=f"/{member}", expected="log-probs", actual="null"
            )


def _topology(parts: _Parts, deployment: Deployment) -> None:
    if parts.profile is None:
        return
    nodes, each = len(deployment.node_ips), deployment.accelerators_per_node
    world = parts.profile.topology.world_size
    if nodes * each != world:
        fault = found(
            "topology.mismatch",
            file=parts.path.name,
            pointer="/node_ips",
            expected=f"{world} ranks, from the profile",
            actual=f"{nodes} nodes of {each}",
        )
        parts.record("topology", fault)
        return
    if claim_scope(deployment, parts.profile) is None:
        fault = found(
            "scope.none",
            file=parts.path.name,
            pointer="/hardware_class",
            expected="2097152 prompt tokens",
            actual=str(parts.profile.context.prompt_tokens),
        )
        parts.record("topology", fault)
        return
    parts.record("topology", actual=f"{world} ranks on {nodes} node{'s' if nodes > 1 else ''}")


def claim_scope(deployment: Deployment, profile: RunProfile) -> ClaimScope | None:
    """What a receipt of this run may be used for; None where the closed list has nothing that fits."""
    if deployment.hardware_class == "reference-cpu":
        return "reference_cpu_execution"
    if profile.context.prompt_tokens == 2_097_152:
        return "2m_execution_only_not_numerical_correctness"
    return None


def _attachments(parts: _Parts, deployment: Deployment) -> None:
    """Papers that a cluster run needs; what is named must be there on any hardware."""
    rows = (
        ("sbom", "sbom.missing", deployment.sbom),
        ("image-provenance", "image-provenance.missing", deployment.image_provenance),
        ("authorization", "authorization.missing", deployment.authorization_grant),
    )
    pointers = {"sbom": "/sbom", "image-provenance": "/image_provenance", "authorization": "/authorization_grant"}
    for name, fault_id, operator_path in rows:
        if operator_path is None:
            if deployment.hardware_class != "reference-cpu":
                parts.record(name, found(fault_id, file=parts.path.name, pointer=pointers[name]))
            continue
        try:
            raw = read_once(parts.near(operator_path).resolve(), name=operator_path)
        except FindingError as stop:
            parts.record(name, _because(fault_id, stop.finding, pointer=pointers[name]))
            continue
        parts.record(name, actual=sha256_hex(raw))


def _runtime(parts: _Parts, deployment: Deployment) -> None:
    digest = None if deployment.image is None else deployment.image.digest
    here = observe(image_digest=digest)
    pointer = "/runtime_identity"
    if deployment.runtime_identity is None:
        if deployment.hardware_class != "reference-cpu":
            parts.record("runtime-identity", found("runtime-identity.missing", file=parts.path.name, pointer=pointer))
            return
        parts.identity = here
        parts.record("runtime-identity", actual=f"observed, {here.sha256}")
        return
    path = parts.near(deployment.runtime_identity)
    try:
        given = RuntimeIdentity.parse(read_once(path.resolve(), name=path.name), file=path.name)
    except FindingError as stop:
        parts.record("runtime-identity", _because("runtime-identity.missing", stop.finding, pointer=pointer))
        return
    if given != here:
        fault = found(
            "runtime-identity.mismatch", file=path.name, pointer=pointer, expected=given.sha256, actual=here.sha256
        )
        parts.record("runtime-identity", fault)
        return
    parts.identity = given
    parts.record("runtime-identity", actual=given.sha256)


def _memory(parts: _Parts, deployment: Deployment) -> None:
    """The byte plan of the fullest rank, held against the profile's own limit."""
    from mint2m_verify.memory_plan import plan_memory

    if parts.profile is None or parts.manifest is None:
        return
    context = parts.profile.context
    # Without a fixture that fits, the profile's own bounds say what the longest one may need.
    longest = (context.max_response_tokens,) * parts.profile.group_size
    shape = FixtureShape(vocab_size=1, prompt_tokens=context.prompt_tokens, response_tokens=longest)
    if parts.fixture is not None:
        shape = parts.fixture.fixture.shape
    config = parts.near(deployment.model.snapshot) / "config.json"
    try:
        items = plan_memory(read_once(config, name="config.json"), parts.profile, shape)
    except FindingError as stop:
        parts.record("memory", _because("model.config-invalid", stop.finding, pointer="/model/snapshot"))
        return
    total, limit = sum(item.bytes for item in items), parts.profile.memory.rank_bytes
    if limit is not None and total > limit:
        fault = found(
            "memory.does-not-fit",
            file="profile",
            pointer="/memory/rank_bytes",
            expected=f"at most {limit} bytes a rank",
            actual=f"{total} bytes",
        )
        parts.record("memory", fault)
        return
    parts.memory = items
    parts.record("memory", actual=f"{total} bytes on the fullest rank")


def _decode(kind: type[D], value: JsonValue) -> D:
    if not isinstance(value, dict):
        raise TypeError(f"schema {kind.NAME} accepted a value that is no object")
    return decode(kind, {name: member for name, member in value.items() if name != "schema"})


def _because(id: str, cause: Finding, *, pointer: str | None = None) -> Finding:
    """The operator's fault `id`, with the words of the finding that showed it."""
    actual = cause.message if cause.actual is None else f"{cause.message}: {cause.actual}"
    return found(
        id,
        file=cause.file,
        pointer=cause.pointer if cause.pointer is not None else pointer,
        expected=cause.expected,
        actual=actual,
    )


def _blocking(finding: Finding) -> Finding:
    """A finding about evidence, met in the operator's own input: it blocks, nothing has failed."""
    blocked = found("run.blocked").verdict
    return replace(finding, verdict=blocked)
