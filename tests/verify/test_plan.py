"""The plan: the same bytes for the same inputs, another address for any other, and no way to alter it unseen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
import rfc8785

from mint2m_trainer.deployments import PACKAGED, build
from mint2m_verify import schema
from mint2m_verify.deployment_files import PlannedInputs, gather
from mint2m_verify.documents.inputs import Image
from mint2m_verify.documents.plan import Plan
from mint2m_verify.finding import FindingError
from mint2m_verify.plan import build_plan, check_address, differences


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> PlannedInputs:
    gathered = gather(build(tmp_path_factory.mktemp("plan") / "run", PACKAGED["local-8k"]))
    assert gathered.inputs is not None, gathered.findings
    return gathered.inputs


def plan_of(inputs: PlannedInputs, *, run_id: str = "run", nonce: str = "nonce") -> Plan:
    return build_plan(inputs, run_id=run_id, instance_nonce=nonce)


def test_the_same_inputs_make_the_same_bytes(inputs: PlannedInputs) -> None:
    assert plan_of(inputs).encode() == plan_of(inputs).encode()


def test_the_address_is_the_sha256_of_the_plan_without_it(inputs: PlannedInputs) -> None:
    value = json.loads(plan_of(inputs).encode())
    address = value.pop("plan_sha256")
    assert address == hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def test_the_plan_is_valid_and_reads_back(inputs: PlannedInputs) -> None:
    plan = plan_of(inputs)
    assert schema.check(json.loads(plan.encode()), "plan", file="plan") == ()
    assert Plan.parse(plan.encode(), file="plan") == plan


def test_the_nonce_is_hashed_and_not_in_the_plan(inputs: PlannedInputs) -> None:
    plan = plan_of(inputs, nonce="a very secret nonce")
    assert plan.nonce_sha256 == hashlib.sha256(b"a very secret nonce").hexdigest()
    assert b"secret" not in plan.encode()


def test_two_nonces_or_run_ids_share_no_name(inputs: PlannedInputs) -> None:
    plans = [plan_of(inputs), plan_of(inputs, nonce="other"), plan_of(inputs, run_id="other")]
    names = [
        name
        for plan in plans
        for name in (
            plan.namespace,
            plan.placement.group,
            plan.placement.coordinator,
            *(rank.actor for rank in plan.placement.ranks),
        )
    ]
    assert len(set(names)) == len(names)


def test_input_references_are_the_bytes_as_the_operator_wrote_them(inputs: PlannedInputs) -> None:
    refs = plan_of(inputs).inputs
    for ref, raw in (
        (refs.deployment, inputs.deployment_raw),
        (refs.profile, inputs.profile_raw),
        (refs.rollout, inputs.fixture_bytes.rollout),
    ):
        assert (ref.sha256, ref.size) == (hashlib.sha256(raw).hexdigest(), len(raw))
    assert refs.payload.path == "inputs/payload.json"


def test_chunks_cover_the_prompt_but_its_last_token(inputs: PlannedInputs) -> None:
    assert plan_of(inputs).prefix_chunks == 16  # 8,191 tokens in chunks of 512: 15.998
    profile = replace(inputs.profile, prefix=replace(inputs.profile.prefix, chunk_tokens=8191))
    assert plan_of(replace(inputs, profile=profile)).prefix_chunks == 1


def test_a_detached_profile_has_no_prefix_backward(inputs: PlannedInputs) -> None:
    profile = replace(inputs.profile, prefix=replace(inputs.profile.prefix, gradient="detached"))
    assert "prefix-backward" in plan_of(inputs).phases
    assert "prefix-backward" not in plan_of(replace(inputs, profile=profile)).phases


def test_four_nodes_of_eight_need_only_another_deployment(inputs: PlannedInputs) -> None:
    ips = tuple(f"10.1.0.{n}" for n in range(1, 5))
    digest = "sha256:" + "ab" * 32
    deployment = replace(
        inputs.deployment,
        hardware_class="h20-4x8",
        node_ips=ips,
        accelerators_per_node=8,
        image=Image(name="registry/image", digest=digest),
    )
    topology = replace(inputs.profile.topology, world_size=32, context_parallel=32, expert_parallel=32)
    profile = replace(
        inputs.profile, topology=topology, context=replace(inputs.profile.context, prompt_tokens=2_097_152)
    )
    plan = plan_of(replace(inputs, deployment=deployment, profile=profile))
    ranks = plan.placement.ranks
    assert [(rank.node_ip, rank.slot) for rank in ranks] == [(ip, slot) for ip in ips for slot in range(8)]
    assert len({rank.actor for rank in ranks}) == 32
    for rank, bundle in zip(ranks, plan.placement.bundles, strict=True):
        assert bundle.accelerators == 1
        assert {item.name for item in bundle.resources} == {f"node:{rank.node_ip}", "mint2m_image_" + "ab" * 32}
    assert plan.claim_scope == "2m_execution_only_not_numerical_correctness"
    for nodes, each in ((4, 4), (2, 8), (1, 32), (8, 4), (4, 16)):
        other = replace(deployment, node_ips=ips[:1] * nodes, accelerators_per_node=each)
        with pytest.raises(FindingError) as refused:
            plan_of(replace(inputs, deployment=other, profile=profile))
        fault = refused.value.finding
        assert (fault.id, fault.actual) == ("topology.not-of-class", f"{nodes} nodes of {each}")


@pytest.mark.parametrize("run_id", ["", "-x", "a b", "a/b", "x" * 65, "é"])
def test_a_run_id_that_cannot_be_a_name_is_refused(inputs: PlannedInputs, run_id: str) -> None:
    with pytest.raises(FindingError) as refused:
        plan_of(inputs, run_id=run_id)
    assert refused.value.finding.id == "plan.run-id-invalid"


def test_an_altered_plan_is_refused(inputs: PlannedInputs) -> None:
    plan = plan_of(inputs)
    check_address(plan, file="plan.json")
    altered = replace(plan, prefix_chunks=plan.prefix_chunks + 1)
    with pytest.raises(FindingError) as refused:
        check_address(altered, file="plan.json")
    assert refused.value.finding.id == "plan.altered"


def test_changed_inputs_are_named_member_by_member(inputs: PlannedInputs) -> None:
    plan = plan_of(inputs)
    profile = replace(inputs.profile, optimizer=replace(inputs.profile.optimizer, lr=2e-4))
    now = plan_of(replace(inputs, profile=profile, profile_raw=profile.encode()))
    pointers = [fault.pointer for fault in differences(plan, now, file="plan.json")]
    assert pointers == ["/inputs/profile/sha256", "/profile/optimizer/lr"]
    assert differences(plan, plan_of(inputs), file="plan.json") == ()
