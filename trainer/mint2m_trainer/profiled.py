"""Policy, layout and pages as a run profile asks for them: the same for whoever samples and whoever trains.

The rule: what the sampler captures and what the update captures are one function of one profile. Were the two to read
the profile each in its own way, pages could differ in the last bit and the ratio would not be one.
"""

from __future__ import annotations

from pathlib import Path

from mint2m_trainer import compat  # first: it must precede megatron
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.contract.positions import of_profile
from mint2m_trainer.model.glm import Bounds, PrefixModel
from mint2m_trainer.model.policy import PolicySource
from mint2m_trainer.prefix.layout import Layout
from mint2m_trainer.prefix.rows import RowStore
from mint2m_trainer.prefix.session import page_shape
from mint2m_trainer.prefix.store import PAGE_ROWS, make_store
from mint2m_verify.documents import RunProfile


def policy_source(profile: RunProfile, *, snapshot: Path, adapter: Path | None) -> PolicySource:
    """What the policy is made of."""
    return PolicySource(
        snapshot=snapshot,
        adapter=adapter,
        families=profile.lora.families,
        rank=profile.lora.rank,
        alpha=profile.lora.alpha,
        seed=profile.lora.seed,
        dtype=profile.model.dtype,
        angle_dtype=profile.model.rope_angle_dtype,
        positions=None if profile.model.positions is None else of_profile(profile.model.positions),
        bounds=Bounds(head_tokens=profile.memory.head_tokens, expert_tokens=profile.memory.expert_tokens),
    )


def layout_of(profile: RunProfile, comm: Comm) -> Layout:
    """How this rank's tokens are cut."""
    return Layout(chunk=profile.prefix.chunk_tokens, cp=comm.size, rank=comm.rank, route=profile.prefix.route)


def store_of(profile: RunProfile, inner: PrefixModel) -> RowStore:
    """An empty store for this rank's pages."""
    return make_store(
        profile.memory.store or "memory",
        page_shape(inner),
        page_rows=profile.memory.page_rows or PAGE_ROWS,
        device=compat.device(),
    )
