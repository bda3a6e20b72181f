"""`mint2m stage plan`: the validation plan, its inputs and the planner's signature, in one new directory.

The rule: everything that a stage will be judged by is written and signed here, before anything runs. A packaged set
makes its model, adapter and prompts from seeds; from then on nothing distinguishes it from one that an operator
brought.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mint2m_trainer.contract.fixture import RolloutScores, Target, build_fixture, ledger_task
from mint2m_trainer.deployments import Packaged, packaged_profile
from mint2m_trainer.model.init_tiny import Json, init_tiny
from mint2m_trainer.stages.adapter import seeded_adapter
from mint2m_trainer.stages.kernel_stage import keeps_compiled_code
from mint2m_trainer.stages.observing import identity_now
from mint2m_trainer.stages.setting import PLAN_SEAL
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain import places
from mint2m_verify.chain.numbers import standard_thresholds
from mint2m_verify.chain.plan_check import check_sound
from mint2m_verify.chain.statements import plan_payload
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.inputs import Deployment, ModelSource, PinnedFile, RunProfile, Signer
from mint2m_verify.documents.validation import PlannedFixture, PlannedModel, PlannedStage, StageName, ValidationPlan
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import FindingError, found
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.model_numbers import read_numbers
from mint2m_verify.signers.signer import Signer as StatementSigner
from mint2m_verify.source import checkout_sha256, observed_sha256
from mint2m_verify.tree import hash_tree, manifest, root_digest

#: Old log-probs of somewhere else, spread around those of an untrained model of byte tokens (about -5.5), so that some
#: ratios lie above and some below every clip.
_OLD = (-5.9, -5.2, -5.6, -5.1, -6.0, -5.5, -5.4, -5.8, -5.3, -6.1, -5.0, -5.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedSet:
    """A promotion run on this machine: one tiny model, one adapter, and a length for each stage that has one."""

    name: str
    world_size: int
    tokens: Mapping[StageName, int]
    chunk_tokens: Mapping[StageName, int]
    model_config: Mapping[str, Json]
    required: tuple[StageName, ...] = places.ORDER
    lora_rank: int = 4
    model_seed: int = 7
    ledger_seed: int = 7
    limit_s: Mapping[StageName, int] | None = None


#: 2 layers, one full indexer with 1 head of 16 and top-k 32: what 2,097,152 tokens ask of one machine's CPUs.
_SCALE_MODEL: Mapping[str, Json] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_topk": 32,
    "index_head_dim": 16,
    "index_n_heads": 1,
    "first_k_dense_replace": 1,
    "indexer_types": ["full", "shared"],
    "max_position_embeddings": 2_097_168,
}

PACKAGED_SETS: Mapping[str, PackagedSet] = {
    item.name: item
    for item in (
        PackagedSet(
            name="local",
            world_size=2,
            tokens=places.NAMED_TOKENS,
            chunk_tokens={"parity-32k": 1024, "parity-64k": 1024, "scale-2m": 4096},
            model_config=_SCALE_MODEL,
        ),
        PackagedSet(
            name="local-small",
            world_size=2,
            tokens={"parity-32k": 768, "parity-64k": 1024, "scale-2m": 1536},
            chunk_tokens={"parity-32k": 128, "parity-64k": 128, "scale-2m": 256},
            model_config=_SCALE_MODEL,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What was written."""

    directory: Path
    plan: ValidationPlan
    sha256: str


def plan_packaged(name: str, output: Path, signer: StatementSigner, *, nonce: str) -> Planned:
    """Make inputs, plan and signature of a packaged set in the new directory `output`.

    Raises:
        FindingError: `run.deployment-unknown`, `output.not-empty`, or what is wrong with the result.
    """
    item = PACKAGED_SETS.get(name)
    if item is None:
        known = f"one of: {', '.join(PACKAGED_SETS)}"
        raise FindingError(found("run.deployment-unknown", expected=known, actual=name))
    return plan_set(item, output, signer, nonce=nonce)


def plan_set(item: PackagedSet, output: Path, signer: StatementSigner, *, nonce: str) -> Planned:
    """`plan_packaged` of a set that need not be among the packaged ones."""
    if output.is_symlink() or (output.exists() and (not output.is_dir() or any(output.iterdir()))):
        raise FindingError(found("output.not-empty", file=str(output)))
    if not nonce:
        raise FindingError(found("plan.nonce-empty"))
    inputs = output / places.INPUTS
    inputs.mkdir(parents=True)
    init_tiny(inputs / "model", item.model_seed, item.model_config)
    model_manifest = manifest("model", inputs / "model", MODEL_TREE)
    base = _base_profile(item)
    seeded_adapter(inputs / "adapter", inputs / "model", base.lora, seed=item.model_seed)
    source = observed_sha256()
    identity = identity_now(None, source)
    revision = f"init-tiny-{item.model_seed}"
    deployment = _deployment(item, model_manifest.sha256, revision)
    manifest_ref = _write(output, f"{places.INPUTS}model-manifest.json", model_manifest.encode())
    identity_ref = _write(output, f"{places.INPUTS}runtime-identity.json", identity.encode())
    deployment_ref = _write(output, f"{places.INPUTS}deployment.json", _pretty(deployment))
    made = _Made(
        output=output,
        item=item,
        base=base,
        deployment=deployment,
        revision=revision,
        model_sha256=model_manifest.sha256,
    )
    fixtures = {stage: _fixture(made, stage) for stage in item.required if stage in places.NAMED_TOKENS}
    if "actor" in item.required:
        # The actor computes nothing on its fixture: it takes its profile from the shortest there is.
        fixtures["actor"] = fixtures.get("parity-32k") or _fixture(made, "parity-32k")
    limits = item.limit_s or {}
    plan = ValidationPlan(
        name=item.name,
        nonce_sha256=sha256_hex(nonce.encode("utf-8")),
        source_sha256=source,
        checkout_sha256=checkout_sha256(),
        runtime_identity=identity_ref,
        image_digest=None,
        deployment=deployment_ref,
        hardware_class="reference-cpu",
        claim_scope="reference_cpu_numerical_correctness",
        backend="gloo",
        topology=base.topology,
        model=PlannedModel(
            revision=revision,
            manifest=manifest_ref,
            adapter=tuple(
                FileRef.of(f"{places.INPUTS}adapter/{path.name}", read_once(path))
                for path in sorted((inputs / "adapter").iterdir())
            ),
        ),
        optimizer=base.optimizer,
        # Where kernels are compiled and kept, the stage that tries them must find them kept.
        kernel_cache_required=keeps_compiled_code(base.model.dtype),
        required_stages=item.required,
        stages=tuple(
            PlannedStage(
                stage=stage,
                fixture=fixtures.get(stage),
                limit_s=limits.get(stage, 75 * 60),
                thresholds=standard_thresholds(stage, world_size=item.world_size, tokens=item.tokens.get(stage)),
            )
            for stage in item.required
        ),
        timeouts_s=base.timeouts_s,
    )
    for fault in check_sound(plan):
        raise FindingError(fault)
    raw = plan.encode()
    write_atomic(output / places.PLAN, raw)
    write_atomic(output / PLAN_SEAL, signer.sign_statement(plan_payload(plan, raw)))
    return Planned(directory=output, plan=plan, sha256=sha256_hex(raw))


def _base_profile(item: PackagedSet) -> RunProfile:
    """The packaged profile with the set's topology; both clips can act, and the drift term counts."""
    packaged = Packaged(name=item.name, world_size=item.world_size, prompt_tokens=2, chunk_tokens=1)
    profile = packaged_profile(packaged)
    return replace(
        profile,
        lora=replace(profile.lora, rank=item.lora_rank, alpha=2.0 * item.lora_rank),
        grpo=replace(profile.grpo, old_source="rollout", kl_beta=0.02, ref_source="recompute"),
        # A rank of a long stage works for an hour in one phase.
        timeouts_s=replace(profile.timeouts_s, phase=4 * 3600),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What the fixtures of all stages have in common."""

    output: Path
    item: PackagedSet
    base: RunProfile
    deployment: Deployment
    revision: str
    model_sha256: str


def _fixture(made: _Made, stage: StageName) -> PlannedFixture:
    """Profile and fixture of one stage below `inputs/STAGE/`; for the scale stage also its training deployment."""
    output, item, base = made.output, made.item, made.base
    folder = f"{places.INPUTS}{stage}/"
    profile = replace(
        base,
        name=f"{item.name}-{stage}",
        context=replace(base.context, prompt_tokens=item.tokens[stage]),
        prefix=replace(base.prefix, chunk_tokens=item.chunk_tokens[stage]),
    )
    if stage == "scale-2m":
        # An execution, not a comparison: old log-probs are its own, so that every ratio is 1.
        profile = replace(
            profile, grpo=replace(profile.grpo, old_source="recompute", kl_beta=0.0, ref_source="rollout")
        )
    (output / folder).mkdir(parents=True)
    profile_ref = _write(output, f"{folder}profile.json", profile.encode())
    task = ledger_task(item.ledger_seed, tokens=item.tokens[stage])
    old = tuple(_spread(len(text.encode()), shift) for shift, text in enumerate(task.responses))
    policy = root_digest(hash_tree(output / places.INPUTS / "adapter"))
    build_fixture(
        output / folder,
        task,
        Target(
            revision=made.revision,
            manifest_sha256=made.model_sha256,
            vocab_size=read_numbers(output / places.INPUTS / "model").vocab,
            profile_sha256=profile_ref.sha256,
            policy_sha256=policy,
        ),
        RolloutScores(old=old),
    )
    names = ("fixture.json", "payload.json", "rollout.json")
    refs = [FileRef.of(f"{folder}{name}", read_once(output / folder / name)) for name in names]
    training = None
    if stage == "scale-2m":
        own = replace(
            made.deployment,
            kind="training",
            name=f"{item.name}-{stage}",
            model=replace(made.deployment.model, snapshot="../model"),
            adapter="../adapter",
            fixture=PinnedFile(path="fixture.json", sha256=refs[0].sha256),
            profile=PinnedFile(path="profile.json", sha256=profile_ref.sha256),
        )
        training = _write(output, f"{folder}deployment.json", _pretty(own))
    return PlannedFixture(profile=profile_ref, fixture=refs[0], payload=refs[1], rollout=refs[2], deployment=training)


def _spread(count: int, shift: int) -> tuple[float, ...]:
    return tuple(_OLD[(index + 5 * shift) % len(_OLD)] for index in range(count))


def _deployment(item: PackagedSet, model_sha256: str, revision: str) -> Deployment:
    """The validation deployment: where the ranks run and with which model; each stage has a fixture of its own."""
    return Deployment(
        kind="validation",
        name=item.name,
        hardware_class="reference-cpu",
        ray_address="local",
        node_ips=("127.0.0.1",),
        accelerators_per_node=item.world_size,
        image=None,
        model=ModelSource(snapshot="model", revision=revision, model_manifest_sha256=model_sha256),
        adapter="adapter",
        fixture=PinnedFile(path="model-manifest.json", sha256=model_sha256),
        profile=None,
        runtime_identity=None,
        sbom=None,
        image_provenance=None,
        authorization_grant=None,
        output_root="..",
        signer=Signer(kind="ephemeral"),
    )


def _write(output: Path, path: str, raw: bytes) -> FileRef:
    write_atomic(output / path, raw)
    return FileRef.of(path, raw)


def _pretty(document: Deployment) -> bytes:
    return (json.dumps(document.value(), indent=2) + "\n").encode("utf-8")
