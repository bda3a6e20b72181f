"""The two cases of a parity stage, and what of an update each side runs.

The rule: a case is the stage's profile with constants changed here, never by the evidence. `ratio1` scores old
log-probs itself and has no drift term: every ratio is 1. `active_clip` takes the rollout's old log-probs, so that both
clips can act.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from mint2m_verify import phases
from mint2m_verify.documents import RunProfile

Case = Literal["ratio1", "active_clip"]
Side = Literal["conventional", "exact"]

#: In the order in which a stage runs them.
COMPUTATIONS: tuple[tuple[Case, Side], ...] = (
    ("ratio1", "conventional"),
    ("ratio1", "exact"),
    ("active_clip", "conventional"),
    ("active_clip", "exact"),
)

#: What may not run while gradients are exported.
PROHIBITED = (phases.OPTIMIZER_STEP, phases.CHECKPOINT)


def profile_of(case: Case, base: RunProfile) -> RunProfile:
    """The profile of a case: the stage's, exact, its constants those of the case."""
    grpo = base.grpo
    if case == "ratio1":
        grpo = replace(grpo, old_source="recompute", kl_beta=0.0)
    else:
        grpo = replace(grpo, old_source="rollout")
    return replace(base, grpo=grpo, prefix=replace(base.prefix, gradient="exact"))


def export_phases(profile: RunProfile, side: Side) -> tuple[str, ...]:
    """The phases of the pass that exports gradients: an update's, without the optimizer."""
    skipped = PROHIBITED if side == "exact" else (*PROHIBITED, phases.PREFIX_BACKWARD)
    return tuple(phase for phase in phases.expected_phases(profile) if phase not in skipped)
