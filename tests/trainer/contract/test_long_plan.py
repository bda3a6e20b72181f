"""The checked-in two-million-token profile plans for four nodes of eight, with the 78-layer model's numbers.

Only `config.json` stands for the snapshot: planning hashes what lies there and reads sizes, it never loads weights. The
papers are files of a test, not placeholders: an all-zero digest is refused, which is shown too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.contract.fixture import Target, build_fixture, ledger_task
from mint2m_trainer.contract.positions import LONG_POSITIONS, read_positions
from mint2m_trainer.optimizer import STANDARD_CONTRACT
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.inputs import Image, RunProfile
from mint2m_verify.documents.runtime import Drivers, LockedWheel, NamedDigest, RuntimeLock
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.planning import Planned, plan_deployment
from mint2m_verify.runtime.lock import resolved
from mint2m_verify.runtime.provenance import make_provenance
from mint2m_verify.runtime.sbom import make_sbom
from mint2m_verify.runtime_identity import installed_packages, observe
from mint2m_verify.signers.choose import key_file_signer
from mint2m_verify.signers.sign_grant import GrantRequest, sign_grant
from mint2m_verify.signing import new_key_pair
from mint2m_verify.tree import manifest

PROFILE = LONG_POSITIONS.with_name("glm-2m.profile.json")
DIGEST = f"sha256:{hashlib.sha256(b'image').hexdigest()}"

#: Sizes of the 78-layer model; `indexer_types` are those of its IndexShare pattern: 21 full layers.
GLM: Mapping[str, Any] = {
    "model_type": "glm_moe_dsa",
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "kv_lora_rank": 512,
    "q_lora_rank": 2048,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "num_experts_per_tok": 8,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "first_k_dense_replace": 3,
    "indexer_types": ["full" if i < 3 or i % 4 == 2 else "shared" for i in range(78)],
    "max_position_embeddings": 1_048_576,
    "rope_parameters": {"rope_theta": 8e6, "rope_type": "default"},
}


def write_json(path: Path, value: object) -> str:
    """Writes a file and returns its SHA-256."""
    raw = (json.dumps(value, indent=1) + "\n").encode()
    path.write_bytes(raw)
    return sha256_hex(raw)


def write_papers(folder: Path) -> None:
    """Identity, lock, SBOM and provenance of an image with just what is installed here."""
    here = observe(image_digest=DIGEST)
    locked = RuntimeLock(
        name="mint2m-cuda13",
        environment="cuda13",
        base_image=Image(name="registry.example/cuda", digest=f"sha256:{sha256_hex(b'base')}"),
        container_file=NamedDigest(name="cuda13.Containerfile", sha256=sha256_hex(b"FROM scratch")),
        python=here.python,
        wheels=tuple(
            LockedWheel(name=item.name, version=item.version, sha256=(sha256_hex(item.name.encode()),))
            for item in installed_packages()
        ),
        system_packages=(),
        drivers=Drivers(cuda_driver_minimum="580.65.06", nccl="2.28.3"),
    )
    lock = resolved(locked.encode(), file="runtime-lock.json")
    image, sbom = Image(name="registry.example/mint2m", digest=DIGEST), make_sbom(lock)
    made = make_provenance(image, lock, container_file=b"FROM scratch", sbom=sbom, source_sha256=here.source_sha256)
    for name, raw in (
        ("runtime-identity", here.encode()),
        ("runtime-lock", locked.encode()),
        ("sbom", sbom),
        ("image-provenance", made),
    ):
        (folder / f"{name}.json").write_bytes(raw)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything that the deployment of four nodes of eight names."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "model").mkdir()
    write_json(folder / "model" / "config.json", read_positions(LONG_POSITIONS).applied(GLM))
    model_sha256 = manifest("model", folder / "model", MODEL_TREE).sha256
    profile_raw = PROFILE.read_bytes()
    (folder / "profile.json").write_bytes(profile_raw)
    build_fixture(
        folder,
        ledger_task(0, tokens=2_097_152),
        Target(
            revision="r",
            manifest_sha256=model_sha256,
            vocab_size=154880,
            profile_sha256=sha256_hex(profile_raw),
            policy_sha256=None,
        ),
    )
    write_papers(folder)
    write_json(
        folder / "deployment.json",
        {
            "schema": "mint2m.deployment/v1",
            "kind": "training",
            "name": "four-by-eight",
            "hardware_class": "h20-4x8",
            "ray_address": "10.0.0.1:6379",
            "node_ips": [f"10.0.0.{n}" for n in (1, 2, 3, 4)],
            "accelerators_per_node": 8,
            "image": {"name": "registry.example/mint2m", "digest": DIGEST},
            "model": {"snapshot": "model", "revision": "r", "model_manifest_sha256": model_sha256},
            "adapter": None,
            "fixture": {"path": "fixture.json", "sha256": sha256_hex((folder / "fixture.json").read_bytes())},
            "profile": {"path": "profile.json", "sha256": sha256_hex(profile_raw)},
            "runtime_identity": "runtime-identity.json",
            "runtime_lock": "runtime-lock.json",
            "sbom": "sbom.json",
            "image_provenance": "image-provenance.json",
            "authorization_grant": "grant.sigstore.json",
            "output_root": "out",
            "signer": {"kind": "ephemeral"},
        },
    )
    new_key_pair(str(folder / "grantor"))
    granted = GrantRequest(
        file=folder / "deployment.json",
        reason="a test",
        not_before="2020-01-01T00:00:00Z",
        not_after="2090-01-01T00:00:00Z",
        output=folder / "grant.sigstore.json",
    )
    sign_grant(granted, key_file_signer(folder / "grantor.key"))
    return folder


def plan(deployment: Path) -> Planned:
    return plan_deployment(deployment, profile=None, run_id="long", instance_nonce="n")


def changed(place: Path, name: str, edit: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the deployment with one change, beside it."""
    value = json.loads((place / "deployment.json").read_text())
    edit(value)
    write_json(place / name, value)
    return place / name


def test_the_profile_is_that_of_the_reviewed_run() -> None:
    """TP1, CP32, EP32, PP1, rank 8, G=2, and the reviewed optimizer with its state dealt over the ranks."""
    profile = RunProfile.parse(PROFILE.read_bytes(), file=PROFILE.name, canonical_form=False)
    topology = profile.topology
    assert (topology.tensor_parallel, topology.pipeline_parallel) == (1, 1)
    assert (topology.world_size, topology.context_parallel, topology.expert_parallel) == (32, 32, 32)
    assert (profile.context.prompt_tokens, profile.group_size, profile.lora.rank) == (2_097_152, 2, 8)
    assert profile.prefix.gradient == "exact"
    assert profile.optimizer.distributed_optimizer
    same = {name: getattr(profile.optimizer, name) for name in profile.optimizer.__dataclass_fields__}
    assert {**same, "distributed_optimizer": False} == {
        name: getattr(STANDARD_CONTRACT, name) for name in STANDARD_CONTRACT.__dataclass_fields__
    }


def test_prompt_and_response_end_where_the_positions_end() -> None:
    profile = RunProfile.parse(PROFILE.read_bytes(), file=PROFILE.name, canonical_form=False)
    context = profile.context
    assert context.prompt_tokens + context.max_response_tokens == read_positions(LONG_POSITIONS).max_position_embeddings


def test_it_plans_without_a_finding_for_four_nodes_of_eight(place: Path) -> None:
    made = plan(place / "deployment.json")
    assert [finding.id for finding in made.gathered.findings] == []
    assert made.plan is not None
    assert made.plan.claim_scope == "2m_execution_only_not_numerical_correctness"
    assert len(made.plan.placement.ranks) == len({rank.actor for rank in made.plan.placement.ranks}) == 32
    assert made.plan.prefix_chunks == 512  # 2,097,151 tokens in chunks of 4,096
    assert [bundle.node_ip for bundle in made.plan.placement.bundles[::8]] == [f"10.0.0.{n}" for n in (1, 2, 3, 4)]
    assert {item.category for item in made.plan.memory} == {
        "weights",
        "lora",
        "gradients",
        "optimizer",
        "pages",
        "gradient-pages",
        "decisions",
        "activations",
        "communication",
    }
    assert sum(item.bytes for item in made.plan.memory) < 139 * 2**30  # what one H20 of the class has


@pytest.mark.parametrize(
    ("edit", "finding"),
    [
        (lambda d: d["image"].update(digest="sha256:" + "0" * 64), "image.placeholder-digest"),
        (lambda d: d["fixture"].update(sha256="0" * 64), "fixture.placeholder-hash"),
        (lambda d: d["model"].update(model_manifest_sha256="0" * 64), "model.manifest-mismatch"),
        (lambda d: d["profile"].update(sha256="0" * 64), "profile.hash-mismatch"),
        (lambda d: d.update(runtime_identity=None), "runtime-identity.missing"),
        (lambda d: d.update(runtime_lock=None), "runtime-lock.missing"),
        (lambda d: d.update(sbom=None), "sbom.missing"),
        (lambda d: d.update(image_provenance=None), "image-provenance.missing"),
        (lambda d: d.update(authorization_grant=None), "authorization.missing"),
        (lambda d: d.update(node_ips=["10.0.0.1"]), "topology.not-of-class"),
    ],
)
def test_no_placeholder_and_no_missing_paper_makes_a_plan(
    place: Path, edit: Callable[[dict[str, Any]], object], finding: str
) -> None:
    made = plan(changed(place, "changed.json", edit))
    assert made.plan is None
    assert finding in [fault.id for fault in made.gathered.findings]
