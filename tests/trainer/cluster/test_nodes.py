"""The cluster must be the deployment's, node by node, before anything is created in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.cluster.nodes import bundle_resources, check_nodes, live_nodes
from mint2m_verify import claim_scopes
from mint2m_verify.deployment_files import gather
from mint2m_verify.documents.inputs import Image
from mint2m_verify.documents.plan import Plan
from mint2m_verify.plan import build_plan

IMAGE = "mint2m_image_" + "ab" * 32


@pytest.fixture
def plan(tmp_path: Path, tiny_deployment: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Two nodes of two accelerators, with an image; the class is four of eight."""
    monkeypatch.setitem(claim_scopes.PLACEMENTS, "h20-4x8", (2, 2))
    inputs = gather(tiny_deployment(tmp_path / "run")).inputs
    assert inputs is not None
    deployment = replace(
        inputs.deployment,
        hardware_class="h20-4x8",
        ray_address="10.0.0.1:6379",
        node_ips=("10.0.0.1", "10.0.0.2"),
        accelerators_per_node=2,
        image=Image(name="i", digest="sha256:" + "ab" * 32),
    )
    topology = replace(inputs.profile.topology, world_size=4, context_parallel=4, expert_parallel=4)
    context = replace(inputs.profile.context, prompt_tokens=2_097_152)
    profile = replace(inputs.profile, topology=topology, context=context)
    return build_plan(replace(inputs, deployment=deployment, profile=profile), run_id="r", instance_nonce="n")


def record(ip: str, *, alive: bool = True, **changes: float) -> dict[str, Any]:
    """A node as Ray's own table has it."""
    resources = {"CPU": 16.0, "GPU": 2.0, f"node:{ip}": 1.0, IMAGE: 1.0} | changes
    return {"Alive": alive, "NodeManagerAddress": ip, "Resources": {k: v for k, v in resources.items() if v}}


def faults(plan: Plan, *records: dict[str, Any]) -> list[tuple[str | None, str | None, str | None]]:
    found = check_nodes(plan, live_nodes(records))
    return [(fault.pointer, fault.expected, fault.actual) for fault in found]


def test_the_planned_nodes_pass_and_others_do_not_disturb(plan: Plan) -> None:
    assert faults(plan, record("10.0.0.2"), record("10.0.0.9", GPU=0), record("10.0.0.1")) == []


def test_a_dead_record_does_not_count(plan: Plan) -> None:
    assert faults(plan, record("10.0.0.1"), record("10.0.0.2", alive=False)) == [("10.0.0.2", "one live node", "0")]


def test_two_live_records_for_one_address_are_refused(plan: Plan) -> None:
    assert faults(plan, record("10.0.0.1"), record("10.0.0.1"), record("10.0.0.2")) == [
        ("10.0.0.1", "one live node", "2")
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"GPU": 1.0}, "exactly 2 GPU"),
        ({"GPU": 3.0}, "exactly 2 GPU"),
        ({"GPU": 0.0}, "exactly 2 GPU"),
        ({"CPU": 1.0}, "at least 2 CPU"),
        ({IMAGE: 0.0}, f"at least 0.002 {IMAGE}"),
        ({"node:10.0.0.2": 0.0}, "at least 0.002 node:10.0.0.2"),
    ],
)
def test_a_node_that_lacks_a_resource_is_named_with_it(plan: Plan, changes: dict[str, float], expected: str) -> None:
    (fault,) = faults(plan, record("10.0.0.1"), record("10.0.0.2", **changes))
    assert fault[:2] == ("10.0.0.2", expected)


def test_in_the_reference_class_accelerators_are_logical_and_still_counted(plan: Plan) -> None:
    bundles = tuple(replace(bundle, accelerators=0) for bundle in plan.placement.bundles)
    logical = replace(
        plan,
        deployment=replace(plan.deployment, hardware_class="reference-cpu"),
        placement=replace(plan.placement, bundles=bundles),
    )
    assert faults(logical, record("10.0.0.1", GPU=0.0), record("10.0.0.2")) == []
    assert faults(logical, record("10.0.0.1", GPU=1.0), record("10.0.0.2")) == [("10.0.0.1", "exactly 2 GPU", "1")]


def test_every_bundle_binds_its_node_and_the_image(plan: Plan) -> None:
    assert [bundle_resources(bundle) for bundle in plan.placement.bundles] == [
        {"CPU": 1.0, "GPU": 1.0, f"node:{ip}": 0.001, IMAGE: 0.001}
        for ip in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2")
    ]
