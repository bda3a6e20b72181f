"""What rank 0 writes about an update: scores by token, gradient, optimizer state, adapters.

Files appear whole or not at all, and hold the whole update whatever the number of ranks was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from mint2m_trainer.peft import CONFIG_NAME, WEIGHTS_NAME, write_adapter
from mint2m_trainer.scoring import Group, ResponseOutcome
from mint2m_verify import layout as places
from mint2m_verify.documents import RunProfile, Scores
from mint2m_verify.files import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Where to write, and what the documents are bound to."""

    run_dir: Path
    plan_sha256: str
    execution_id: str
    profile: RunProfile
    rewards: tuple[float, ...]

    def path(self, relative: str) -> Path:
        """The path of a file to write; its directory exists afterwards."""
        path = self.run_dir / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def write_scores(
    records: Records,
    group: Group,
    outcomes: Sequence[ResponseOutcome],
    norm: tuple[float, float],
) -> tuple[str, ...]:
    """`artifacts/scores.json`; `norm` is the gradient norm and the clip coefficient."""
    scored = sum(outcome.scored for outcome in outcomes)
    options = records.profile.grpo
    drifts = [outcome.kl_sum for outcome in outcomes if outcome.kl_sum is not None]
    scores = Scores(
        plan_sha256=records.plan_sha256,
        execution_id=records.execution_id,
        rewards=records.rewards,
        advantages=group.advantages,
        old_source=options.old_source,
        ref_source=options.ref_source if group.has_reference else None,
        responses=tuple(outcome.scores for outcome in outcomes),
        loss=sum(outcome.share for outcome in outcomes),
        kl=sum(drifts) / scored if group.has_reference else None,
        clipped_low=sum(outcome.scores.clipped_low for outcome in outcomes),
        clipped_high=sum(outcome.scores.clipped_high for outcome in outcomes),
        scored_tokens=scored,
        gradient_norm=norm[0],
        clip_coefficient=norm[1],
    )
    write_atomic(records.path(places.SCORES), scores.encode())
    return (places.SCORES,)


def write_tensors(records: Records, relative: str, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """A safetensors file of tensors by name."""
    write_atomic(records.path(relative), save({name: t.contiguous() for name, t in tensors.items()}))
    return (relative,)


def write_adapter_copy(records: Records, relative: str, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """A PEFT adapter directory; its format is float32, to which a float64 run's adapter is rounded."""
    lora = records.profile.lora
    single = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    write_adapter(records.path(relative), single, lora.rank, lora.alpha)
    return (f"{relative}/{CONFIG_NAME}", f"{relative}/{WEIGHTS_NAME}")
