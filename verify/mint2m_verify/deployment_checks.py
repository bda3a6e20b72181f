"""The deployment itself: its form, image, profile and topology.

The rule: a template's digest or address gets a finding of its own, while everything else in the deployment is examined
all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal

from mint2m_verify import schema
from mint2m_verify.canonical import parse, sha256_hex
from mint2m_verify.claim_scopes import EXECUTED_TOKENS, claim_scope, placement_fault
from mint2m_verify.deployment_parts import Parts, because, decode_document
from mint2m_verify.documents.inputs import Deployment, RunProfile
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.runtime.digests import is_placeholder, without_placeholders
from mint2m_verify.seal import counted


def check_deployment(parts: Parts, kind: Literal["training", "validation"] = "training") -> None:
    name = parts.path.name
    try:
        raw = read_once(parts.path.resolve(), name=name)
        value = parse(raw, file=name)
    except FindingError as stop:
        parts.record("deployment", because("deployment.unreadable", stop.finding))
        return
    faults = schema.check(without_placeholders(value), Deployment.NAME, file=name)
    if faults:
        parts.record("deployment", *(because("deployment.invalid", fault) for fault in faults))
        return
    parts.deployment_raw = raw
    deployment = parts.deployment = decode_document(Deployment, value)
    if deployment.kind != kind:
        fault = found("deployment.wrong-kind", file=name, pointer="/kind", expected=kind, actual=deployment.kind)
        parts.record("deployment", fault)
        return
    unfit = tuple(_of_a_run(deployment, name)) if kind == "validation" else ()
    if unfit:
        parts.record("deployment", *unfit)
        return
    parts.record("deployment", actual=f"{deployment.name}, {deployment.hardware_class}")


def _of_a_run(deployment: Deployment, file: str) -> Iterator[Finding]:
    """Members that only a training deployment has: each case has its profile, and a grant is over the plan."""
    rows = (("/profile", deployment.profile), ("/authorization_grant", deployment.authorization_grant))
    for pointer, value in rows:
        if value is not None:
            yield found("deployment.invalid", file=file, pointer=pointer, expected="null for kind validation")


def check_image(parts: Parts, deployment: Deployment) -> None:
    name = parts.path.name
    if deployment.image is None:
        if deployment.hardware_class != "reference-cpu":
            parts.record("image", found("image.missing", file=name, pointer="/image"))
            return
        parts.record("image", actual="none: reference-cpu runs this installation")
    elif is_placeholder(deployment.image.digest):
        digest = deployment.image.digest
        parts.record("image", found("image.placeholder-digest", file=name, pointer="/image/digest", actual=digest))
    else:
        parts.record("image", actual=deployment.image.digest)


def check_profile(parts: Parts, deployment: Deployment, given: Path | None) -> None:
    bound = deployment.profile
    if bound is None and given is None:
        parts.record("profile", found("profile.missing", file=parts.path.name, pointer="/profile"))
        return
    source = given if given is not None else parts.near(bound.path if bound is not None else "")
    try:
        raw = read_once(source.resolve(), name=source.name)
        value = parse(raw, file=source.name)
    except FindingError as stop:
        parts.record("profile", because("profile.unreadable", stop.finding))
        return
    digest = sha256_hex(raw)
    if bound is not None and digest != bound.sha256:
        fault_id = "profile.conflict" if given is not None else "profile.hash-mismatch"
        fault = found(fault_id, file=source.name, pointer="/profile/sha256", expected=bound.sha256, actual=digest)
        parts.record("profile", fault)
        return
    faults = schema.check(value, RunProfile.NAME, file=source.name)
    if faults:
        parts.record("profile", *(because("profile.invalid", fault) for fault in faults))
        return
    profile = decode_document(RunProfile, value)
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
    if profile.prefix.route != "fetch":
        faults.append(
            found(
                "profile.unsupported", file=file, pointer="/prefix/route", expected="fetch", actual=profile.prefix.route
            )
        )
    faults += _positions(profile, file)
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


def _positions(profile: RunProfile, file: str) -> list[Finding]:
    """Stretched positions that contradict themselves or are too few for the prompt and a response.

    A factor that is nearly the ratio rotates otherwise than the sampler that wrote the rollout; no log-prob says so.
    """
    positions = profile.model.positions
    if positions is None:
        return []
    rope, longer = positions.rope_parameters, positions.max_position_embeddings
    native, tokens = rope.original_max_position_embeddings, profile.context
    needed = tokens.prompt_tokens + tokens.max_response_tokens
    rows = (
        ("/rope_parameters/factor", rope.factor == longer / native, f"{longer / native!r}", repr(rope.factor)),
        ("/rope_parameters/beta_slow", rope.beta_slow < rope.beta_fast, "below beta_fast", repr(rope.beta_slow)),
        ("/max_position_embeddings", longer >= needed, f"{needed} or more", str(longer)),
    )
    return [
        found("profile.unsupported", file=file, pointer=f"/model/positions{pointer}", expected=expected, actual=actual)
        for pointer, holds, expected, actual in rows
        if not holds
    ]


#: The only address at which a run's own Ray listens.
LOOPBACK = "127.0.0.1"


#: Addresses that stand in documents for one's own (RFC 5737, RFC 3849), and those that no node can have.
_PLACEHOLDERS = tuple(
    ip_network(net)
    for net in (
        *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"),
        *("0.0.0.0/8", "240.0.0.0/4", "::/128"),
    )
)


def _placeholder(text: str) -> bool:
    """Whether this is an address, and one of those that are only written in examples."""
    try:
        address = ip_address(text)
    except ValueError:
        return False  # a host's name; the schema has seen to the rest
    return address.is_multicast or any(address in net for net in _PLACEHOLDERS)


def _loopback(text: str) -> bool:
    """Whether this is an address that means another machine on every machine."""
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return text.lower() == "localhost"


def check_topology(parts: Parts, deployment: Deployment) -> None:
    places = [(f"/node_ips/{number}", ip) for number, ip in enumerate(deployment.node_ips)]
    places.append(("/ray_address", deployment.ray_address.rpartition(":")[0].strip("[]")))
    reserved = [
        found("topology.placeholder-address", file=parts.path.name, pointer=pointer, actual=ip)
        for pointer, ip in places
        if _placeholder(ip)
    ]
    if reserved:
        parts.record("topology", *reserved)
        return
    # In the reference class several loopback addresses are hosts of one machine, which the tests have.
    cluster = deployment.hardware_class != "reference-cpu" and len(deployment.node_ips) > 1
    loops = [pointer for pointer, ip in places if cluster and _loopback(ip)]
    if loops:
        faults = (found("topology.loopback-address", file=parts.path.name, pointer=pointer) for pointer in loops)
        parts.record("topology", *faults)
        return
    if deployment.ray_address == "local" and deployment.node_ips != (LOOPBACK,):
        fault = found(
            "topology.not-local",
            file=parts.path.name,
            pointer="/node_ips",
            expected=f"{LOOPBACK} with ray_address local",
            actual=", ".join(deployment.node_ips),
        )
        parts.record("topology", fault)
        return
    fault_of_class = placement_fault("topology.not-of-class", deployment, file=parts.path.name)
    if fault_of_class is not None:
        parts.record("topology", fault_of_class)
        return
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
            actual=f"{counted(nodes, 'node')} of {each}",
        )
        parts.record("topology", fault)
        return
    if (
        deployment.kind == "training"
        and claim_scope(deployment.hardware_class, parts.profile, deployment.accumulation) is None
    ):
        fault = found(
            "scope.none",
            file=parts.path.name,
            pointer="/hardware_class",
            expected=f"{EXECUTED_TOKENS[deployment.hardware_class]} prompt tokens",
            actual=str(parts.profile.context.prompt_tokens),
        )
        parts.record("topology", fault)
        return
    parts.record("topology", actual=f"{counted(world, 'rank')} on {counted(nodes, 'node')}")
