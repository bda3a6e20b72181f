"""What a run may be used for: the one scope that its class of hardware and its profile allow, and what a class is.

The rule: planner, doctor and verifier ask the same function, so a scope that nobody would plan is one that nobody can
claim. What is shorter than its class executes has no scope at all, and a run that takes no step has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from mint2m_verify.documents.inputs import Accumulation, ClaimScope, Deployment, HardwareClass, RunProfile
from mint2m_verify.finding import Finding, found

#: What a run of a class claims that is no rehearsal; a closed list, so that no run can award itself more.
CLAIM_SCOPES: Mapping[HardwareClass, ClaimScope] = {
    "reference-cpu": "reference_cpu_execution",
    "h20-4x8": "2m_execution_only_not_numerical_correctness",
}

#: What a promotion chain of a class claims, whichever stages it has; closed as well.
CHAIN_SCOPES: Mapping[HardwareClass, ClaimScope] = {
    "reference-cpu": "reference_cpu_numerical_correctness",
    "h20-4x8": "gradient_parity",
}

#: The prompt that a class must execute for its scope, where there is one.
EXECUTED_TOKENS: Mapping[HardwareClass, int] = {"h20-4x8": 2_097_152}

#: Nodes and accelerators of each that the name of a class means, where it means any.
PLACEMENTS: Mapping[HardwareClass, tuple[int, int]] = {"h20-4x8": (4, 8)}


def placement_fault(id: str, deployment: Deployment, *, file: str) -> Finding | None:
    """The finding `id` where nodes and accelerators are not those of the class; None where they are."""
    want = PLACEMENTS.get(deployment.hardware_class)
    have = (len(deployment.node_ips), deployment.accelerators_per_node)
    if want is None or want == have:
        return None
    expected, actual = (f"{nodes} nodes of {each}" for nodes, each in (want, have))
    expected += f", which {deployment.hardware_class} means"
    return found(id, file=file, pointer="/node_ips", expected=expected, actual=actual)


def ranks_fault(id: str, hardware_class: HardwareClass, world_size: int, *, file: str) -> Finding | None:
    """The finding `id` where ranks are not as many as the class has accelerators: idle ones show nothing."""
    want = PLACEMENTS.get(hardware_class)
    if want is None or want[0] * want[1] == world_size:
        return None
    expected = f"{want[0] * want[1]}, one for each accelerator of {hardware_class}"
    return found(id, file=file, pointer="/topology/world_size", expected=expected, actual=str(world_size))


def claim_scope(
    hardware_class: HardwareClass, profile: RunProfile, accumulation: Accumulation | None
) -> ClaimScope | None:
    """The scope of a training run; None where the closed list has nothing that fits."""
    if profile.rehearses is not None:
        return "topology_rehearsal"  # whatever the class: it counts as no run of any length
    if accumulation is not None and not accumulation.takes_step:
        return "gradient_accumulation_only"  # whatever the class: nothing was trained yet
    want = EXECUTED_TOKENS.get(hardware_class)
    return CLAIM_SCOPES[hardware_class] if want in (None, profile.context.prompt_tokens) else None
