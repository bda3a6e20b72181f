"""One small update for several tests: its rollout, its profile, a rank's inputs, and running it in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mint2m_trainer.optimizer import STANDARD_CONTRACT
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update
from mint2m_verify.documents import Rollout, RunProfile, Scores
from mint2m_verify.documents.inputs import (
    Context,
    GrpoOptions,
    LoraOptions,
    MemoryOptions,
    ModelNumerics,
    PrefixOptions,
    Timeouts,
    Topology,
)

PROMPT, LENGTHS, REWARDS = 21, (4, 1, 6), (1.0, -1.0, 0.25)
GRPO = GrpoOptions(
    clip_low=0.2,
    clip_high=0.28,
    clip_dual=None,
    kl_beta=0.05,
    kl_estimator="k3",
    advantage_eps=1e-6,
    aggregation="token_mean",
    norm_tokens=None,
    old_source="recompute",
    ref_source="recompute",
)


def tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, 64, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def rollout(**change: Any) -> Rollout:
    responses = tuple(tokens(count, 50 + index) for index, count in enumerate(LENGTHS))
    base = Rollout(
        prompt_tokens=tokens(PROMPT, 1), responses=responses, rewards=REWARDS, old_logprobs=None, ref_logprobs=None
    )
    return replace(base, **change)


def profile(world: int = 1, *, gradient: str = "exact", grpo_options: GrpoOptions = GRPO) -> RunProfile:
    return RunProfile(
        name="test",
        topology=Topology(
            world_size=world, tensor_parallel=1, pipeline_parallel=1, context_parallel=world, expert_parallel=world
        ),
        context=Context(prompt_tokens=PROMPT, max_response_tokens=8),
        group_size=len(LENGTHS),
        model=ModelNumerics(dtype="float32", rope_angle_dtype="float32"),
        lora=LoraOptions(rank=2, alpha=4.0, families=("attention", "dense", "shared", "expert", "unembed"), seed=3),
        optimizer=STANDARD_CONTRACT,
        grpo=grpo_options,
        prefix=PrefixOptions(gradient=gradient, chunk_tokens=8, decisions="store", route="fetch"),
        memory=MemoryOptions(head_tokens=3, query_tile=5, expert_tokens=64, rank_bytes=None),
        timeouts_s=Timeouts(start=60, phase=60, cleanup=60),
    )


def recorded(**change: Any) -> tuple[RunProfile, Rollout]:
    """Old and reference log-probs from the rollout, some far enough from the policy's for both clips."""
    given = rollout()
    generator = torch.Generator().manual_seed(8)
    noisy = tuple(tuple((torch.randn(len(r), generator=generator) * 0.6 - 4.1).tolist()) for r in given.responses)
    reference = tuple(tuple(-4.1 for _ in r) for r in given.responses)
    options = replace(GRPO, old_source="rollout", ref_source="rollout", **change)
    return profile(grpo_options=options), replace(given, old_logprobs=noisy, ref_logprobs=reference)


def rank_inputs(run_dir: Path, snapshot: Path, port: int, /, **change: Any) -> RankInputs:
    """A rank's inputs in a world of one, with the given members changed."""
    base = RankInputs(
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=port,
        run_dir=run_dir,
        snapshot=snapshot,
        adapter=None,
        profile=profile(),
        rollout=rollout(),
        plan_sha256="ab" * 32,
        execution_id="cd" * 32,
        image_digest=None,
    )
    return replace(base, **change)


def run(inputs: RankInputs) -> dict[str, PhaseOutcome]:
    update = Update(inputs)
    try:
        return {phase: update.run(phase) for phase in update.phases}
    finally:
        update.close()


def scores_of(inputs: RankInputs) -> Scores:
    return Scores.parse((inputs.run_dir / "artifacts/scores.json").read_bytes(), file="scores.json")
