"""What an operator of an online training has: the smallest model, a dataset that it sometimes answers, a key.

A random model answers nothing, so the right answers are chosen by it: one token is asked for, the two likeliest may be
drawn, and a row's truth is the likelier. Some draws are right then and some are not, which is all that a search needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from mint2m_trainer import deployments
from mint2m_trainer.contract.fixture import GENERATED
from mint2m_trainer.model.init_tiny import init_tiny
from mint2m_trainer.online.search import Search, SearchRow, search
from mint2m_verify.canonical import canonical, sha256_hex
from mint2m_verify.documents.inputs import ModelSource, PinnedFile, RunProfile, Timeouts
from mint2m_verify.documents.sampling import SamplingParameters
from mint2m_verify.documents.training import Moments, OnlineDeployment, TrainingRow
from mint2m_verify.rewards import response_text
from mint2m_verify.tree import manifest

#: Bytes below 64: digits and signs, no letters; the embedding and the head stay small.
MODEL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
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
SAMPLING = SamplingParameters(temperature=1.0, top_p=1.0, top_k=2, stop_tokens=(10,), max_tokens=2)
GROUP, ROWS = 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The deployment file, and the public half of the key that it signs with."""

    deployment: Path
    public_key: Path


def build_site(
    folder: Path,
    *,
    key: Path | None = None,
    world_size: int = 1,
    answered: bool = True,
    moments: Moments | None = None,
    prompts: int | None = None,
    checkpoints_kept: int | None = None,
) -> Site:
    """Make everything below `folder`; the dataset has rows of different lengths, and one that nobody answers.

    Args:
        key: a private key with its public half beside it; None makes one.
        moments: as the deployment has them; `prompts` a step and `checkpoints_kept` the same.
        answered: ask the model for its answers, which takes seconds; without, nobody answers any row.
    """
    folder.mkdir(parents=True)
    init_tiny(folder / "model", 5, MODEL)  # type: ignore[arg-type]
    profile = _profile(world_size)
    (folder / "profile.json").write_bytes(profile.encode())
    questions = [TrainingRow(prompt=f"{n}+{n} " * (3 + n), question="?", ground_truth="0") for n in range(ROWS)]
    truths = _answers(folder / "model", profile, questions) if answered else ["999"] * ROWS
    truths[1] = "999"  # longer than any response: a group without signal
    lines = [canonical(replace(row, ground_truth=truth).value()) for row, truth in zip(questions, truths, strict=True)]
    (folder / "dataset.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    signing = _new_key(folder / "training.key") if key is None else key
    deployment = OnlineDeployment(
        name="online",
        seed=7,
        hardware_class="reference-cpu",
        ranks_on_this_machine=world_size,
        model=ModelSource(
            snapshot="model",
            revision="tiny",
            model_manifest_sha256=manifest("model", folder / "model", "model").sha256,
        ),
        adapter=None,
        profile=PinnedFile(path="profile.json", sha256=profile.sha256),
        dataset=PinnedFile(path="dataset.jsonl", sha256=sha256_hex((folder / "dataset.jsonl").read_bytes())),
        reward_rule="exact-match/v1",
        sampling=SAMPLING,
        rows_per_step=3,
        logprob_bound=1e-5,
        distribution=GENERATED,
        signing_key=str(signing.resolve()),
        moments=moments,
        prompts_per_step=prompts,
        checkpoints_kept=checkpoints_kept,
    )
    path = folder / "online.json"
    path.write_text(json.dumps(deployment.value(), indent=2) + "\n", encoding="utf-8")
    return Site(deployment=path, public_key=signing.with_suffix(".pub"))


def _profile(world_size: int) -> RunProfile:
    profile = deployments.packaged_profile(deployments.PACKAGED["local-8k-1"])
    return replace(
        profile,
        name="online",
        topology=replace(
            profile.topology, world_size=world_size, context_parallel=world_size, expert_parallel=world_size
        ),
        context=replace(profile.context, prompt_tokens=32, max_response_tokens=4),
        group_size=GROUP,
        lora=replace(profile.lora, rank=1, alpha=2.0),
        optimizer=replace(profile.optimizer, lr=0.01),
        prefix=replace(profile.prefix, chunk_tokens=8),
        timeouts_s=Timeouts(start=180, phase=120, cleanup=60),
    )


def _answers(snapshot: Path, profile: RunProfile, rows: Sequence[TrainingRow]) -> list[str]:
    """What the fresh policy answers greedily, trimmed as the reward trims it."""
    tried = search(
        Search(
            profile=profile,
            snapshot=snapshot,
            adapter=None,
            rows=tuple(
                SearchRow(
                    row=number,
                    prompt_tokens=tuple(row.text.encode()),
                    ground_truth=row.ground_truth,
                    seeds=tuple(range(GROUP)),
                )
                for number, row in enumerate(rows)
            ),
            parameters=replace(SAMPLING, temperature=0.0, top_k=None),
            reward_rule="exact-match/v1",
        )
    )  # greedy draws are all alike, so no row has signal and all are tried
    return [response_text(attempt.responses[0].tokens).strip(" \t\r\n") for attempt in tried]


def _new_key(path: Path) -> Path:
    key = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return path
