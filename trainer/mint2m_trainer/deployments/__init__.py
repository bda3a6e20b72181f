"""Deployments that come with the package and need nothing prepared: a name instead of a file.

The rule: a packaged deployment becomes ordinary files below the run directory, with real hashes, before the doctor
looks at it. From there on nothing distinguishes it from one that an operator wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mint2m_trainer.contract.fixture import Target, build_fixture, ledger_task
from mint2m_trainer.model.init_tiny import Json, init_tiny
from mint2m_verify import layout
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents.inputs import Deployment, ModelSource, PinnedFile, RunProfile, Signer
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.model_numbers import read_numbers
from mint2m_verify.tree import manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """A deployment on this machine: its model and its prompt are made from seeds, its ranks share the machine."""

    name: str
    world_size: int
    prompt_tokens: int
    chunk_tokens: int
    model_seed: int = 7
    ledger_seed: int = 7
    #: Members of the model's config to change from the tiny defaults.
    model_config: Mapping[str, Json] = field(default_factory=lambda: {"max_position_embeddings": 65_536})


_PROFILE = "local.profile.json"

PACKAGED: Mapping[str, Packaged] = {
    item.name: item
    for item in (
        # 32,768 byte tokens: a document of 32 KiB.
        Packaged(name="local", world_size=2, prompt_tokens=32_768, chunk_tokens=1024),
        Packaged(name="local-8k", world_size=2, prompt_tokens=8192, chunk_tokens=512),
        Packaged(name="local-8k-1", world_size=1, prompt_tokens=8192, chunk_tokens=512),
        Packaged(
            name="local-128k",
            world_size=2,
            prompt_tokens=131_072,
            chunk_tokens=2048,
            model_config={"max_position_embeddings": 262_144},
        ),
    )
}


def packaged_profile(item: Packaged) -> RunProfile:
    """The profile of a packaged deployment: the one common file, at its world size and length."""
    raw = read_once(Path(__file__).with_name(_PROFILE), name=_PROFILE)
    profile = RunProfile.parse(raw, file=_PROFILE, canonical_form=False)
    world = item.world_size
    return replace(
        profile,
        name=item.name,
        topology=replace(profile.topology, world_size=world, context_parallel=world, expert_parallel=world),
        context=replace(profile.context, prompt_tokens=item.prompt_tokens),
        prefix=replace(profile.prefix, chunk_tokens=item.chunk_tokens),
    )


def build(run_dir: Path, item: Packaged, *, profile: RunProfile | None = None) -> Path:
    """Make the inputs of a packaged deployment below `run_dir` and return its deployment file.

    Args:
        run_dir: may hold nothing under `inputs/` yet.
        profile: instead of the packaged one.

    Raises:
        FindingError: what a file could not be written for, or what the fixture's own check refuses.
    """
    profile = profile or packaged_profile(item)
    inputs = run_dir / "inputs"
    inputs.mkdir(parents=True)
    snapshot = inputs / "model"
    init_tiny(snapshot, item.model_seed, item.model_config)
    model_sha256 = manifest("model", snapshot, MODEL_TREE).sha256
    revision = f"init-tiny-{item.model_seed}"
    profile_raw = profile.encode()
    write_atomic(run_dir / layout.PROFILE, profile_raw)
    build_fixture(
        inputs,
        ledger_task(item.ledger_seed, tokens=profile.context.prompt_tokens),
        Target(
            revision=revision,
            manifest_sha256=model_sha256,
            vocab_size=read_numbers(snapshot).vocab,
            profile_sha256=sha256_hex(profile_raw),
            policy_sha256=None,
        ),
    )
    deployment = Deployment(
        kind="training",
        name=item.name,
        hardware_class="reference-cpu",
        ray_address="local",
        node_ips=("127.0.0.1",),
        accelerators_per_node=profile.topology.world_size,
        image=None,
        model=ModelSource(snapshot="model", revision=revision, model_manifest_sha256=model_sha256),
        adapter=None,
        fixture=PinnedFile(path="fixture.json", sha256=sha256_hex(read_once(run_dir / layout.FIXTURE))),
        profile=PinnedFile(path="profile.json", sha256=sha256_hex(profile_raw)),
        runtime_identity=None,
        sbom=None,
        image_provenance=None,
        authorization_grant=None,
        output_root="..",
        signer=Signer(kind="ephemeral"),
    )
    # Written for people too: they will want to copy and change it.
    text = json.dumps(deployment.value(), indent=2) + "\n"
    write_atomic(run_dir / layout.DEPLOYMENT, text.encode("utf-8"))
    return run_dir / layout.DEPLOYMENT
