"""The phases of an update: which ones a profile calls for, in which order, and what each must have seen.

The rule: the list is derived from the profile and never read from the evidence, and it is the same on every rank.
A phase that was skipped, repeated or moved then shows, whatever the records say about themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from mint2m_verify.documents import RunProfile
from mint2m_verify.documents.inputs import Accumulation

BIND = "bind"
INITIALIZE = "initialize"
MATERIALIZE = "materialize"
SCORE_REFERENCE = "score-reference"
CAPTURE_PREFIX = "capture-prefix"
SCORE_OLD = "score-old"
PREFIX_BACKWARD = "prefix-backward"
FINALIZE = "finalize"
OPTIMIZER_STEP = "optimizer-step"
CHECKPOINT = "checkpoint"
_GRPO = "grpo-"

#: Every phase records these: the calls so far, their digest (equal on all ranks) and the memory's high-water mark.
COMMON_EVIDENCE = ("collectives", "ledger_sha256", "peak_memory_bytes")

_EVIDENCE: Mapping[str, tuple[str, ...]] = {
    BIND: ("runtime_identity_sha256", "source_sha256", "world_size"),
    INITIALIZE: ("backend", "world_size", "context_parallel", "expert_parallel"),
    MATERIALIZE: ("weights_sha256", "adapter_sha256", "tensors", "parameters", "trainable_parameters"),
    SCORE_REFERENCE: ("scored_tokens", "weights_sha256"),
    SCORE_OLD: ("scored_tokens", "weights_sha256"),
    CAPTURE_PREFIX: (
        "prompt_tokens",
        "chunks",
        "page_rows",
        "page_bytes",
        "pages_sha256",
        "weights_sha256",
        "forward_nonce",
    ),
    PREFIX_BACKWARD: ("chunks", "backward_calls", "rows_compared", "row_difference", "gradient_pages_released"),
    FINALIZE: ("finalize_calls", "gradient_norm", "clip_coefficient", "weights_sha256"),
    OPTIMIZER_STEP: ("optimizer_contract", "optimizer_steps", "gradients_zeroed", "adapter_sha256"),
    CHECKPOINT: ("adapter_sha256", "weights_sha256", "tensors"),
}
_GRPO_EVIDENCE = (
    "response",
    "response_tokens",
    "scored_tokens",
    "loss",
    "clipped_low",
    "clipped_high",
    "max_ratio_deviation",
    "backward_calls",
)

#: Members that describe the update and not the rank: equal on all ranks in every phase that has them.
SHARED_EVIDENCE = (
    "runtime_identity_sha256",
    "source_sha256",
    "backend",
    "world_size",
    "context_parallel",
    "expert_parallel",
    "adapter_sha256",
    "prompt_tokens",
    "chunks",
    "pages_sha256",
    "response",
    "response_tokens",
    "scored_tokens",
    "loss",
    "clipped_low",
    "clipped_high",
    "kl",
    "backward_calls",
    "resumed_chunks",
    "finalize_calls",
    "gradient_norm",
    "clip_coefficient",
    "optimizer_contract",
    "optimizer_steps",
    "gradients_zeroed",
    "moments_sha256",
    "optimizer_life_steps",
    "gradient_start_sha256",
    "collectives",
    "ledger_sha256",
)


#: Phases that may take over chunks from an earlier execution, and record how many where there were any.
RESUMABLE = frozenset({SCORE_REFERENCE, CAPTURE_PREFIX, PREFIX_BACKWARD})


def expected_phases(profile: RunProfile, accumulation: Accumulation | None = None) -> tuple[str, ...]:
    """The phases of one run under `profile`, in order; the same on every rank.

    Args:
        accumulation: its place in a step over several prompts; only the last of that step's runs takes the step.
    """
    grpo = profile.grpo
    reference = (SCORE_REFERENCE,) if grpo.kl_beta > 0 and grpo.ref_source == "recompute" else ()
    old = (SCORE_OLD,) if grpo.old_source == "recompute" else ()
    reverse = (PREFIX_BACKWARD,) if profile.prefix.gradient == "exact" else ()
    step = (OPTIMIZER_STEP, CHECKPOINT) if accumulation is None or accumulation.takes_step else ()
    return (
        BIND,
        INITIALIZE,
        MATERIALIZE,
        *reference,
        CAPTURE_PREFIX,
        *old,
        *(grpo_phase(response) for response in range(profile.group_size)),
        *reverse,
        FINALIZE,
        *step,
    )


def grpo_phase(response: int) -> str:
    """The phase that replays response number `response`."""
    return f"{_GRPO}{response}"


def response_of(phase: str) -> int | None:
    """The response that a `grpo-g` phase replays; None for other phases."""
    return int(phase.removeprefix(_GRPO)) if phase.startswith(_GRPO) else None


def required_evidence(phase: str) -> tuple[str, ...]:
    """Members of the evidence that `phase` must have."""
    return (*(_GRPO_EVIDENCE if phase.startswith(_GRPO) else _EVIDENCE[phase]), *COMMON_EVIDENCE)


def prefix_chunks(profile: RunProfile) -> int:
    """Chunks in which the P - 1 prompt tokens before the last are captured, and reversed."""
    return -(-(profile.context.prompt_tokens - 1) // profile.prefix.chunk_tokens)
