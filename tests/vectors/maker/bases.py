"""The bases: small real runs, made by the trainer itself and signed with keys that exist only for these tests.

The rule: a base is what `mint2m run` leaves, byte for byte. A vector then shows what the verifier says of real evidence
with one change, not of a model of evidence. Bases differ where the verifier has different things to look at:

`run`           two ranks, packaged model inside the run directory, old log-probs recomputed, clipping active.
`run-one-rank`  one rank, an operator's deployment with the model elsewhere and a given adapter, old log-probs from the
                rollout (one response in the older form, its first token unscored), KL against a recomputed reference,
                weight decay 0.1, clipping inactive, signed with P-256 where the other is Ed25519.
`run-again`     not a base of its own: the files in which a second execution of the plan of `run` differs.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from maker.forge import BASES, KEYS, NONCE
from mint2m_trainer import deployments
from mint2m_trainer.contract.fixture import GENERATED, RolloutScores, Target, Task, build_fixture
from mint2m_trainer.run import ChosenSigner, RunRequest, run
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.inputs import Deployment, ModelSource, PinnedFile, RunProfile, Signer, Timeouts
from mint2m_verify.finding import Verdict
from mint2m_verify.signers.choose import key_file_signer
from mint2m_verify.tree import hash_tree, manifest, root_digest

RUN_ID = "vectors"

#: The smallest model that still has every part: a dense and a sparse layer, a full and a shared indexer.
MODEL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 4,
    "index_topk": 16,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "first_k_dense_replace": 1,
    "indexer_types": ["full", "shared"],
    "max_position_embeddings": 4096,
}

PACKAGED = deployments.Packaged(name="vectors", world_size=2, prompt_tokens=880, chunk_tokens=256, model_config=MODEL)

#: Old log-probs of somewhere else: far enough from those of an untrained model (about -5.5) to clip on both sides.
OLD = ((-5.9, -5.2, -5.6, -5.1, -6.0, -5.5, -5.4, -5.8), (-5.3, -5.9, -5.0, -5.5, -5.7, -5.2, -6.1, -5.5, -5.4))


def make_keys() -> None:
    """Keys for these tests only, each made once; none of them signs anything else."""
    KEYS.mkdir(exist_ok=True)
    for name, key in (
        ("release", ed25519.Ed25519PrivateKey.generate()),
        ("release-p256", ec.generate_private_key(ec.SECP256R1())),
        ("stranger", ed25519.Ed25519PrivateKey.generate()),
        ("planner", ed25519.Ed25519PrivateKey.generate()),
    ):
        if (KEYS / f"{name}.key").exists():
            continue
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (KEYS / f"{name}.key").write_bytes(secret)
        (KEYS / f"{name}.pub").write_bytes(public)


def _key(name: str) -> ChosenSigner:
    source = KEYS / f"{name}.key"
    return ChosenSigner(signer=key_file_signer(source), source=source)


def make_bases() -> None:
    """Run the trainer three times; about two minutes."""
    make_keys()
    deployments.PACKAGED[PACKAGED.name] = PACKAGED  # type: ignore[index]  # the one place that adds a packaged one
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name in ("run", "run-again"):
            profile = work / "profile.json"
            profile.write_bytes(_two_ranks().encode())
            request = RunRequest(deployment=PACKAGED.name, profile=profile, output=work / name, signer=_key("release"))
            _run(request)
        one = _operator(work / "site", work / "run")
        request = RunRequest(deployment=str(one), output=work / "run-one-rank", signer=_key("release-p256"))
        _run(request)
        shutil.rmtree(BASES, ignore_errors=True)
        shutil.copytree(work / "run", BASES / "run")
        shutil.copytree(work / "run-one-rank", BASES / "run-one-rank")
        _copy_differences(work / "run-again", work / "run", BASES / "run-again")


def _run(request: RunRequest) -> None:
    result = run(replace(request, run_id=RUN_ID, instance_nonce=NONCE))
    if result.report.verdict is not Verdict.ACCEPTED:
        raise SystemExit(f"{request.output}: {[(fault.id, fault.actual) for fault in result.report.findings]}")


def _two_ranks() -> RunProfile:
    profile = deployments.packaged_profile(PACKAGED)
    return replace(
        profile,
        lora=replace(profile.lora, rank=2, alpha=4.0),
        optimizer=replace(profile.optimizer, clip_grad=0.05),
        timeouts_s=Timeouts(start=180, phase=120, cleanup=60),
    )


def _one_rank(prompt_tokens: int) -> RunProfile:
    profile = _two_ranks()
    return replace(
        profile,
        name="one-rank",
        topology=replace(profile.topology, world_size=1, context_parallel=1, expert_parallel=1),
        context=replace(profile.context, prompt_tokens=prompt_tokens),
        optimizer=replace(profile.optimizer, clip_grad=5.0, weight_decay=0.1),
        grpo=replace(
            profile.grpo,
            old_source="rollout",
            kl_beta=0.05,
            ref_source="recompute",
            clip_high=0.3,
            aggregation="sequence_mean",
        ),
        prefix=replace(profile.prefix, chunk_tokens=16),
    )


def _operator(site: Path, first: Path) -> Path:
    """What an operator has: a snapshot, an adapter (the one `first` trained), a fixture, a profile, a deployment."""
    site.mkdir()
    shutil.copytree(first / "inputs/model", site / "model")
    shutil.copytree(first / "adapter", site / "policy")
    task = Task(
        prompt="Two ships bring 1 and 3 crates. How many crates came?\n",
        ground_truth="4",
        responses=("Answer: 2", "Answer: 4"),
        distribution=GENERATED,
    )
    profile = _one_rank(len(task.prompt.encode()))
    (site / "profile.json").write_bytes(profile.encode())
    model_sha256 = manifest("model", site / "model", "model").sha256
    build_fixture(
        site / "fixture",
        task,
        Target(
            revision="tiny",
            manifest_sha256=model_sha256,
            vocab_size=256,
            profile_sha256=profile.sha256,
            policy_sha256=root_digest(hash_tree(site / "policy")),
        ),
        RolloutScores(old=OLD),
    )
    deployment = Deployment(
        kind="training",
        name="one-rank",
        hardware_class="reference-cpu",
        ray_address="local",
        node_ips=("127.0.0.1",),
        accelerators_per_node=1,
        image=None,
        model=ModelSource(snapshot="model", revision="tiny", model_manifest_sha256=model_sha256),
        adapter="policy",
        fixture=PinnedFile(
            path="fixture/fixture.json", sha256=sha256_hex((site / "fixture/fixture.json").read_bytes())
        ),
        profile=PinnedFile(path="profile.json", sha256=profile.sha256),
        runtime_identity=None,
        sbom=None,
        image_provenance=None,
        authorization_grant=None,
        output_root="..",
        signer=Signer(kind="ephemeral"),
    )
    path = site / "deployment.json"
    # As people write it: indented, which machine-made documents may not be.
    path.write_text(json.dumps(deployment.value(), indent=2) + "\n", encoding="utf-8")
    return path


def _copy_differences(source: Path, base: Path, target: Path) -> None:
    """The files of `source` that `base` does not hold with the same bytes."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and (not (base / name).is_file() or (base / name).read_bytes() != path.read_bytes()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)
