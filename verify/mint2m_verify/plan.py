"""The plan of one run: content-addressed, made without side effects, the same for the same inputs.

The rule: everything that decides where and what runs is written down before anything starts, under one digest, and
`train` makes the plan again and refuses any difference. Names of actors, group and namespace come from the run id and
the hash of the instance nonce, so two runs never meet in one namespace, and the nonce itself stays unknown to whoever
reads the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

from mint2m_verify import __version__
from mint2m_verify.canonical import JsonValue, sha256_hex
from mint2m_verify.claim_scopes import claim_scope, placement_fault
from mint2m_verify.deployment_files import PlannedInputs
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.inputs import ClaimScope, Deployment, FixtureModel, RunProfile, Topology
from mint2m_verify.documents.plan import (
    Bundle,
    DeploymentIdentity,
    Ownership,
    Placement,
    Plan,
    PlanInputs,
    PlannedRank,
    ProfileMember,
    Resource,
)
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.layout import (
    DEPLOYMENT,
    FIXTURE,
    MODEL_MANIFEST,
    PAYLOAD,
    PROFILE,
    ROLLOUT,
    RUNTIME_IDENTITY,
)
from mint2m_verify.phases import expected_phases, prefix_chunks
from mint2m_verify.source import source_sha256

#: Share of a marker resource that each bundle takes: any number of bundles fits, none fits elsewhere.
MARKER_SHARE = 0.001

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NONCE_CHARACTERS = 16


def build_plan(inputs: PlannedInputs, *, run_id: str, instance_nonce: str) -> Plan:
    """The plan for these inputs.

    Args:
        inputs: complete and agreeing, from `gather`.
        run_id: a label; names of actors begin with it.
        instance_nonce: any text that is new; only its SHA-256 is kept.

    Raises:
        FindingError: `plan.run-id-invalid`, `plan.nonce-empty`, `topology.not-of-class` or `scope.none`.
    """
    check_labels(run_id=run_id, instance_nonce=instance_nonce)
    return plan_of(inputs, run_id=run_id, nonce_sha256=sha256_hex(instance_nonce.encode("utf-8")))


def check_labels(*, run_id: str, instance_nonce: str) -> None:
    """Refuse what cannot be part of a name; raises `FindingError` (`plan.run-id-invalid`, `plan.nonce-empty`)."""
    if _RUN_ID.fullmatch(run_id) is None:
        raise FindingError(found("plan.run-id-invalid", expected="at most 64 of [A-Za-z0-9._-]", actual=run_id))
    if not instance_nonce:
        raise FindingError(found("plan.nonce-empty"))


def plan_of(inputs: PlannedInputs, *, run_id: str, nonce_sha256: str) -> Plan:
    """`build_plan` with the nonce already hashed: how a plan is made again to be compared."""
    deployment, profile = inputs.deployment, inputs.profile
    fault = placement_fault("topology.not-of-class", deployment, file=DEPLOYMENT)
    if fault is not None:
        raise FindingError(fault)
    stem = f"{run_id}-{nonce_sha256[:_NONCE_CHARACTERS]}"
    return Plan(
        plan_sha256="",
        run_id=run_id,
        nonce_sha256=nonce_sha256,
        namespace=f"mint2m-{stem}",
        source_sha256=source_sha256(),
        deployment=identity_of(deployment),
        profile=ProfileMember(**{member.name: getattr(profile, member.name) for member in fields(RunProfile)}),
        model=FixtureModel(revision=deployment.model.revision, manifest_sha256=inputs.model_manifest.sha256),
        inputs=_references(inputs),
        placement=placement_of(deployment, profile.topology, stem),
        phases=expected_phases(profile, deployment.accumulation),
        prefix_chunks=prefix_chunks(profile),
        memory=inputs.memory,
        timeouts_s=profile.timeouts_s,
        ownership=Ownership(creator=f"mint2m {__version__} driver", lifetime="driver"),
        claim_scope=_scope(deployment, profile),
    ).addressed()


def check_address(plan: Plan, *, file: str) -> None:
    """Refuse a plan that is not what its own digest names; raises `FindingError` (`plan.altered`)."""
    computed = plan.computed_sha256()
    if computed != plan.plan_sha256:
        raise FindingError(
            found("plan.altered", file=file, pointer="/plan_sha256", expected=computed, actual=plan.plan_sha256)
        )


def differences(planned: Plan, now: Plan, *, file: str) -> tuple[Finding, ...]:
    """Where a plan made again from the inputs at hand differs from the one that was given, member by member."""
    return tuple(
        found("plan.inputs-changed", file=file, pointer=pointer, expected=want, actual=have)
        for pointer, want, have in _differ(planned.value(), now.value(), "")
        if pointer != "/plan_sha256"
    )


def image_resource(digest: str) -> str:
    """The resource by which a node advertises that its workers run this image."""
    return f"mint2m_image_{digest.removeprefix('sha256:')}"


def identity_of(deployment: Deployment) -> DeploymentIdentity:
    """What of a deployment decides where ranks run."""
    digest = None if deployment.image is None else deployment.image.digest
    return DeploymentIdentity(
        name=deployment.name,
        hardware_class=deployment.hardware_class,
        ray_address=deployment.ray_address,
        node_ips=deployment.node_ips,
        accelerators_per_node=deployment.accelerators_per_node,
        image_digest=digest,
        image_resource=None if digest is None else image_resource(digest),
    )


def _references(inputs: PlannedInputs) -> PlanInputs:
    return PlanInputs(
        deployment=FileRef.of(DEPLOYMENT, inputs.deployment_raw),
        profile=FileRef.of(PROFILE, inputs.profile_raw),
        fixture=FileRef.of(FIXTURE, inputs.fixture_bytes.fixture),
        payload=FileRef.of(PAYLOAD, inputs.fixture_bytes.payload),
        rollout=FileRef.of(ROLLOUT, inputs.fixture_bytes.rollout),
        model_manifest=FileRef.of(MODEL_MANIFEST, inputs.model_manifest.encode()),
        runtime_identity=FileRef.of(RUNTIME_IDENTITY, inputs.runtime_identity.encode()),
    )


def placement_of(deployment: Deployment, topology: Topology, stem: str) -> Placement:
    """One bundle a rank; ranks fill the nodes in the deployment's order. Names of actors begin with `stem`."""
    each = deployment.accelerators_per_node
    bundles, ranks = [], []
    for rank in range(topology.world_size):
        ip = deployment.node_ips[rank // each]
        resources = [Resource(name=f"node:{ip}", amount=MARKER_SHARE)]
        if deployment.image is not None:
            resources.append(Resource(name=image_resource(deployment.image.digest), amount=MARKER_SHARE))
        accelerators = 0 if deployment.hardware_class == "reference-cpu" else 1
        bundles.append(Bundle(index=rank, node_ip=ip, cpus=1, accelerators=accelerators, resources=tuple(resources)))
        ranks.append(PlannedRank(rank=rank, actor=f"{stem}-rank-{rank:04d}", bundle=rank, node_ip=ip, slot=rank % each))
    return Placement(
        group=f"{stem}-group", coordinator=f"{stem}-coordinator", bundles=tuple(bundles), ranks=tuple(ranks)
    )


def _scope(deployment: Deployment, profile: RunProfile) -> ClaimScope:
    scope = claim_scope(deployment.hardware_class, profile, deployment.accumulation)
    if scope is None:
        raise FindingError(found("scope.none", actual=deployment.hardware_class))
    return scope


def _differ(want: JsonValue, have: JsonValue, pointer: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(want, dict) and isinstance(have, dict):
        for name in sorted(want.keys() | have.keys()):
            yield from _differ(want.get(name), have.get(name), f"{pointer}/{name}")
    elif isinstance(want, list) and isinstance(have, list) and len(want) == len(have):
        for index, (left, right) in enumerate(zip(want, have, strict=True)):
            yield from _differ(left, right, f"{pointer}/{index}")
    elif want != have:
        yield pointer, _shown(want), _shown(have)


def _shown(value: JsonValue) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
