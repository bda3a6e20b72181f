"""What binds what: the plan to its inputs, the inputs to each other, the plan to its own address.

The rule: every reference is followed and the digest computed again, and each fact that two documents hold is compared.
A plan is only as good as the bytes it names; a run that trained on another rollout, profile or model than it planned
differs here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mint2m_verify import layout, phases
from mint2m_verify.canonical import JsonValue, canonical, parse, sha256_hex
from mint2m_verify.claim_scopes import claim_scope, placement_fault, ranks_fault
from mint2m_verify.documents import (
    Deployment,
    FileRef,
    ModelManifest,
    Plan,
    RunProfile,
    RuntimeIdentity,
    TrainingFixture,
)
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check, Damage
from mint2m_verify.fixture import Expected, FixtureBytes, check_bytes
from mint2m_verify.run_documents import Read


def check_plan(plan: Read[Plan], at_hand: Mapping[str, FileRef], damage: Damage) -> Check:
    """The plan's address is that of its content, and its inputs are the files at hand."""
    document = plan.document
    members: dict[str, JsonValue] = {name: value for name, value in plan.value.items() if name != "plan_sha256"}
    computed = sha256_hex(canonical(members))
    if computed != document.plan_sha256:
        yield _plan("binding.plan-address", "/plan_sha256", computed, document.plan_sha256)
    places = {
        "deployment": layout.DEPLOYMENT,
        "profile": layout.PROFILE,
        "fixture": layout.FIXTURE,
        "payload": layout.PAYLOAD,
        "rollout": layout.ROLLOUT,
        "model_manifest": layout.MODEL_MANIFEST,
        "runtime_identity": layout.RUNTIME_IDENTITY,
    }
    for member, path in places.items():
        ref: FileRef = getattr(document.inputs, member)
        for fault in compare_ref(ref, at_hand.get(path), path, file=layout.PLAN, pointer=f"/inputs/{member}"):
            yield fault.following(damage(path))
    return f"{document.plan_sha256[:12]}… is its address; {len(places)} inputs as planned"


def check_plan_inputs(
    plan: Read[Plan], deployment: Read[Deployment], profile: Read[RunProfile], identity: Read[RuntimeIdentity]
) -> Check:
    """What the plan repeats of deployment, profile and runtime identity, and what follows from them."""
    want, given = plan.document, deployment.document
    embedded = plan.value["profile"]
    if embedded != profile.value:
        yield _plan("binding.plan-differs", "/profile", f"the profile of {layout.PROFILE}", "another profile")
    image = None if given.image is None else given.image.digest
    resource = None if image is None else f"mint2m_image_{image.removeprefix('sha256:')}"
    rows: list[tuple[str, object, object]] = [
        ("/deployment/name", given.name, want.deployment.name),
        ("/deployment/hardware_class", given.hardware_class, want.deployment.hardware_class),
        ("/deployment/ray_address", given.ray_address, want.deployment.ray_address),
        ("/deployment/node_ips", given.node_ips, want.deployment.node_ips),
        ("/deployment/accelerators_per_node", given.accelerators_per_node, want.deployment.accelerators_per_node),
        ("/deployment/image_digest", image, want.deployment.image_digest),
        ("/deployment/image_resource", resource, want.deployment.image_resource),
        ("/model/revision", given.model.revision, want.model.revision),
        ("/model/manifest_sha256", given.model.model_manifest_sha256, want.model.manifest_sha256),
        ("/phases", phases.expected_phases(profile.document, given.accumulation), want.phases),
        ("/prefix_chunks", phases.prefix_chunks(profile.document), want.prefix_chunks),
        ("/timeouts_s", profile.document.timeouts_s, want.timeouts_s),
        ("/source_sha256", identity.document.source_sha256, want.source_sha256),
        ("/claim_scope", claim_scope(given.hardware_class, profile.document, given.accumulation), want.claim_scope),
    ]
    for pointer, right, have in rows:
        if right != have:
            yield _plan("binding.plan-differs", pointer, str(right), str(have))
    if given.kind != "training":
        yield found(
            "binding.plan-differs", file=layout.DEPLOYMENT, pointer="/kind", expected="training", actual=given.kind
        )
    if identity.document.image_digest != image:
        yield found(
            "binding.plan-differs",
            file=layout.RUNTIME_IDENTITY,
            pointer="/image_digest",
            expected=str(image),
            actual=str(identity.document.image_digest),
        )
    world = profile.document.topology.world_size
    for fault in (
        placement_fault("binding.class-placement", given, file=layout.DEPLOYMENT),
        ranks_fault("binding.class-placement", given.hardware_class, world, file=layout.PROFILE),
    ):
        if fault is not None:
            yield fault
    yield from _topology(profile.document)
    return f"{len(rows)} facts of deployment, profile and runtime agree"


def check_deployment(
    deployment: Read[Deployment], profile: Read[RunProfile], fixture: Read[TrainingFixture], model: Read[ModelManifest]
) -> Check:
    """The digests that the operator wrote into the deployment, against the copies at hand."""
    given = deployment.document
    rows = [
        ("/fixture/sha256", given.fixture.sha256, fixture.sha256),
        ("/model/model_manifest_sha256", given.model.model_manifest_sha256, model.sha256),
    ]
    if given.profile is not None:
        rows.append(("/profile/sha256", given.profile.sha256, profile.sha256))
    for pointer, want, have in rows:
        if want != have:
            yield found(
                "binding.deployment-differs", file=layout.DEPLOYMENT, pointer=pointer, expected=want, actual=have
            )
    return f"{len(rows)} digests of the deployment are those at hand"


def check_fixture(
    files: FixtureBytes,
    deployment: Read[Deployment],
    profile: Read[RunProfile],
    model: Read[ModelManifest],
    policy_sha256: str | None,
) -> Check:
    """Fixture, payload and rollout agree with each other and are for this model, profile and policy."""
    expected = Expected(
        revision=deployment.document.model.revision,
        manifest_sha256=model.sha256,
        profile_sha256=profile.sha256,
        profile=profile.document,
        policy_sha256=policy_sha256,
        fresh_policy=deployment.document.adapter is None,
    )
    if deployment.document.adapter is not None and policy_sha256 is None:
        # Without it nothing says where the update started from, which a fresh adapter's zeros would.
        pointer, want = "/adapter", layout.ADAPTER_INITIAL
        yield found(
            "binding.file-absent", file=layout.DEPLOYMENT, pointer=pointer, expected=want, actual="not in the run"
        )
    checked, faults = check_bytes(files, expected)
    yield from faults
    if checked is None:
        return "fixture refused"
    lengths = ", ".join(str(length) for length in checked.fixture.shape.response_tokens)
    return f"{checked.fixture.shape.prompt_tokens:,} prompt tokens, responses of {lengths}"


def check_vocabulary(config: bytes, fixture: Read[TrainingFixture]) -> Check:
    """The vocabulary that the fixture was made for is that of the model at hand, whose `config.json` is `config`."""
    try:
        value = parse(config, file=layout.MODEL_CONFIG)
    except FindingError as fault:
        yield fault.finding
        return "no configuration"
    want = value.get("vocab_size") if isinstance(value, dict) else None
    have = fixture.document.shape.vocab_size
    if want != have or isinstance(want, bool):
        pointer = "/shape/vocab_size"
        yield found(
            "fixture.vocabulary-mismatch", file=layout.FIXTURE, pointer=pointer, expected=str(want), actual=str(have)
        )
    return f"{have} tokens"


def compare_ref(ref: FileRef, at_hand: FileRef | None, path: str, *, file: str, pointer: str) -> Iterator[Finding]:
    """A reference of the document `file` against the file at hand under the name that the layout fixes."""
    if ref.path != path:
        yield found("binding.path-mismatch", file=file, pointer=f"{pointer}/path", expected=path, actual=ref.path)
    if at_hand is None:
        yield found("binding.file-absent", file=file, pointer=pointer, expected=path, actual="not in the run directory")
    elif (ref.sha256, ref.size) != (at_hand.sha256, at_hand.size):
        yield found(
            "binding.hash-mismatch",
            file=file,
            pointer=f"{pointer}/sha256",
            expected=f"{ref.sha256} ({ref.size} bytes)",
            actual=f"{path} has {at_hand.sha256} ({at_hand.size} bytes)",
        )


def _topology(profile: RunProfile) -> Iterator[Finding]:
    topology = profile.topology
    for member in ("context_parallel", "expert_parallel"):
        value: int = getattr(topology, member)
        if value != topology.world_size:
            yield found(
                "binding.topology",
                file=layout.PROFILE,
                pointer=f"/topology/{member}",
                expected=str(topology.world_size),
                actual=str(value),
            )


def _plan(id: str, pointer: str, expected: str, actual: str) -> Finding:
    return found(id, file=layout.PLAN, pointer=pointer, expected=expected, actual=actual)
