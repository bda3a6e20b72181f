"""Packaged sets: a validation deployment for this machine, with its model, adapter and fixture set, from seeds.

The rule: what is written here are ordinary files, as an operator would bring them, and the planner reads them as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mint2m_trainer.contract.fixture import (
    FIXTURE_NAME,
    PAYLOAD_NAME,
    ROLLOUT_NAME,
    RolloutScores,
    Target,
    build_fixture,
    ledger_task,
)
from mint2m_trainer.deployments import Packaged, packaged_profile
from mint2m_trainer.model.init_tiny import Json, init_tiny
from mint2m_trainer.stages.adapter import seeded_adapter
from mint2m_verify.chain.places import NAMED_TOKENS
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.inputs import Deployment, ModelSource, PinnedFile, RunProfile, Signer
from mint2m_verify.documents.validation import FixtureCase, FixtureSet, StageName
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.model_numbers import read_numbers
from mint2m_verify.tree import hash_tree, manifest, root_digest

#: Old log-probs of somewhere else, around those of an untrained model of byte tokens (about -5.5, here -4.9 to -7.1).
#: By -8 and -4 a ratio is above and below every clip, whatever the seed; each response has some of both.
_OLD = (-5.9, -8.0, -5.6, -4.0, -6.0, -5.5, -8.0, -5.8, -4.0, -6.1, -5.0, -5.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedSet:
    """What a promotion run on this machine computes on: a tiny model, an adapter, and prompts of a length a stage."""

    name: str
    world_size: int
    tokens: Mapping[StageName, int]
    chunk_tokens: Mapping[StageName, int]
    model_config: Mapping[str, Json]
    lora_rank: int = 4
    model_seed: int = 7
    ledger_seed: int = 7


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
            tokens=NAMED_TOKENS,
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


def write_set(item: PackagedSet, folder: Path) -> Path:
    """Make the set below the new directory `folder` and return its validation deployment."""
    folder.mkdir(parents=True)
    init_tiny(folder / "model", item.model_seed, item.model_config)
    model_sha256 = manifest("model", folder / "model", MODEL_TREE).sha256
    base = _base_profile(item)
    seeded_adapter(folder / "adapter", folder / "model", base.lora, seed=item.model_seed)
    target = Target(
        revision=f"init-tiny-{item.model_seed}",
        manifest_sha256=model_sha256,
        vocab_size=read_numbers(folder / "model").vocab,
        profile_sha256="",  # of each case
        policy_sha256=root_digest(hash_tree(folder / "adapter")),
    )
    cases = [_case(folder, item, base, target, stage) for stage in item.tokens]
    # The actor computes nothing on its fixture: it takes its profile from the shortest there is.
    actor = replace(min(cases, key=lambda case: item.tokens[case.stage]), stage="actor")
    raw = FixtureSet(name=item.name, cases=(actor, *cases)).encode()
    fixtures = _write(folder, "fixture-set.json", raw)
    deployment = Deployment(
        kind="validation",
        name=item.name,
        hardware_class="reference-cpu",
        ray_address="local",
        node_ips=("127.0.0.1",),
        accelerators_per_node=item.world_size,
        image=None,
        model=ModelSource(snapshot="model", revision=target.revision, model_manifest_sha256=model_sha256),
        adapter="adapter",
        fixture=PinnedFile(path=fixtures.path, sha256=fixtures.sha256),
        profile=None,
        runtime_identity=None,
        sbom=None,
        image_provenance=None,
        authorization_grant=None,
        output_root="..",
        signer=Signer(kind="ephemeral"),
    )
    path = folder / "deployment.json"
    write_atomic(path, (json.dumps(deployment.value(), indent=2) + "\n").encode("utf-8"))
    return path


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


def _case(folder: Path, item: PackagedSet, base: RunProfile, target: Target, stage: StageName) -> FixtureCase:
    """Profile and fixture of one stage, below a folder of its name."""
    tokens = item.tokens[stage]
    profile = replace(
        base,
        name=f"{item.name}-{stage}",
        context=replace(base.context, prompt_tokens=tokens),
        prefix=replace(base.prefix, chunk_tokens=item.chunk_tokens[stage]),
    )
    if stage == "scale-2m":
        # An execution, not a comparison: old log-probs are its own, so that every ratio is 1.
        profile = replace(
            profile, grpo=replace(profile.grpo, old_source="recompute", kl_beta=0.0, ref_source="rollout")
        )
    (folder / stage).mkdir()
    profile_ref = _write(folder, f"{stage}/profile.json", profile.encode())
    task = ledger_task(item.ledger_seed, tokens=tokens)
    old = tuple(_spread(len(text.encode()), shift) for shift, text in enumerate(task.responses))
    build_fixture(folder / stage, task, replace(target, profile_sha256=profile_ref.sha256), RolloutScores(old=old))
    fixture, payload, rollout = (
        FileRef.of(f"{stage}/{name}", read_once(folder / stage / name))
        for name in (FIXTURE_NAME, PAYLOAD_NAME, ROLLOUT_NAME)
    )
    return FixtureCase(stage=stage, profile=profile_ref, fixture=fixture, payload=payload, rollout=rollout)


def _spread(count: int, shift: int) -> tuple[float, ...]:
    return tuple(_OLD[(index + 5 * shift) % len(_OLD)] for index in range(count))


def _write(folder: Path, path: str, raw: bytes) -> FileRef:
    write_atomic(folder / path, raw)
    return FileRef.of(path, raw)
