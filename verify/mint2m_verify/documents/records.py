"""What a run leaves: doctor's checks, the ownership journal, rank sessions, scores and the receipt."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from mint2m_verify.canonical import canonical, sha256_hex
from mint2m_verify.documents.base import Document, FileRef, encode
from mint2m_verify.documents.inputs import (
    ClaimScope,
    HardwareClass,
    LongPositions,
    OptimizerContract,
    PrefixGradient,
    Source,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    id: str
    status: Literal["passed", "blocked"]
    pointer: str | None
    expected: str | None
    actual: str | None
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor(Document):
    """Every prerequisite checked; `primary_failure` is the first blocked check in the fixed order."""

    NAME: ClassVar[str] = "doctor"

    scope: Literal["checkout", "run", "validation"]
    tool_version: str
    status: Literal["passed", "blocked"]
    checks: tuple[DoctorCheck, ...]
    primary_failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedResource:
    kind: Literal["ray", "placement-group", "actor", "process", "directory"]
    name: str
    id: str | None
    pid: int | None
    start_ticks: int | None
    node_ip: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipEvent(Document):
    """One line of the append-only journal; `previous_sha256` is the SHA-256 of the line before, newline excluded."""

    NAME: ClassVar[str] = "ownership-event"

    sequence: int
    previous_sha256: str | None
    time: str
    plan_sha256: str
    execution_id: str
    event: Literal["opened", "intent", "created", "released", "absent", "closed", "cleanup-failed"]
    resource: OwnedResource | None
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvidence:
    """What one phase saw on one rank. Which members a phase must have is fixed by `mint2m_verify.phases`."""

    runtime_identity_sha256: str | None = None
    source_sha256: str | None = None
    backend: Literal["gloo", "nccl"] | None = None
    world_size: int | None = None
    context_parallel: int | None = None
    expert_parallel: int | None = None
    weights_sha256: str | None = None
    adapter_sha256: str | None = None
    tensors: int | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    prompt_tokens: int | None = None
    chunks: int | None = None
    page_rows: int | None = None
    page_bytes: int | None = None
    pages_sha256: str | None = None
    forward_nonce: str | None = None
    response: int | None = None
    response_tokens: int | None = None
    scored_tokens: int | None = None
    loss: float | None = None
    clipped_low: int | None = None
    clipped_high: int | None = None
    kl: float | None = None
    max_ratio_deviation: float | None = None
    backward_calls: int | None = None
    row_difference: float | None = None
    rows_compared: int | None = None
    gradient_pages_released: int | None = None
    resumed_chunks: int | None = None
    finalize_calls: int | None = None
    gradient_norm: float | None = None
    clip_coefficient: float | None = None
    optimizer_contract: OptimizerContract | None = None
    optimizer_steps: int | None = None
    gradients_zeroed: bool | None = None
    moments_sha256: str | None = None
    optimizer_life_steps: int | None = None
    gradient_start_sha256: str | None = None
    collectives: int | None = None
    ledger_sha256: str | None = None
    peak_memory_bytes: int | None = None
    peak_host_memory_bytes: int | None = None
    expert_tokens: tuple[int, ...] | None = None

    OPTIONAL: ClassVar[frozenset[str]]


# Every member is left out of the JSON where it is None: phases differ in what they see.
PhaseEvidence.OPTIONAL = frozenset(member.name for member in fields(PhaseEvidence))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRecord:
    """One phase of one rank; `previous_sha256` chains it to the record before."""

    sequence: int
    phase: str
    started_at: str
    ended_at: str
    previous_sha256: str
    files: tuple[FileRef, ...]
    evidence: PhaseEvidence

    def record_sha256(self) -> str:
        """What the next record's `previous_sha256` must be."""
        return sha256_hex(canonical(encode(self)))


def chain_start(*, execution_id: str, plan_sha256: str, rank: int) -> str:
    """`previous_sha256` of a rank's first record: it ties the chain to one execution of one plan on one rank."""
    return sha256_hex(canonical({"execution_id": execution_id, "plan_sha256": plan_sha256, "rank": rank}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    planned_node_ip: str
    planned_slot: int
    observed_node_ip: str
    observed_slot: int
    observed_accelerator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCleanup:
    session_closed: bool
    groups_destroyed: bool
    actor_absent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSession:
    rank: int
    world_size: int
    actor: str
    actor_id: str
    pid: int
    placement: RankPlacement
    phases: tuple[PhaseRecord, ...]
    cleanup: RankCleanup


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSessions(Document):
    """Each rank's phases in order."""

    NAME: ClassVar[str] = "rank-sessions"

    plan_sha256: str
    execution_id: str
    ranks: tuple[RankSession, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseScores:
    """One response by token; the lists cover the scored tokens, which start at `first_scored`.

    `advantages` are there where each token has its own, from the rollout.
    """

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"advantages"})

    response: int
    tokens: tuple[int, ...]
    first_scored: int
    policy: tuple[float, ...]
    old: tuple[float, ...]
    ref: tuple[float, ...] | None
    loss: tuple[float, ...]
    clipped_low: int
    clipped_high: int
    advantages: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores(Document):
    """Scores and losses by token, and the aggregated loss; `advantages` is null where each token has its own."""

    NAME: ClassVar[str] = "scores"

    plan_sha256: str
    execution_id: str
    rewards: tuple[float, ...]
    advantages: tuple[float, ...] | None
    old_source: Source
    ref_source: Source | None
    responses: tuple[ResponseScores, ...]
    loss: float
    kl: float | None
    clipped_low: int
    clipped_high: int
    scored_tokens: int
    gradient_norm: float
    clip_coefficient: float

    @property
    def has_signal(self) -> bool:
        """Whether any advantage is not zero; without one there is no policy gradient."""
        if self.advantages is not None:
            return any(self.advantages)
        return any(any(entry.advantages or ()) for entry in self.responses)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptFiles:
    """`optimizer_before` and `gradient_before` are there where the run went on from what an earlier one left.

    What a step leaves is missing where the run ended with a gradient.
    """

    OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"optimizer_after", "checkpoint_manifest", "adapter_manifest", "optimizer_before", "gradient_before"}
    )

    doctor: FileRef
    plan: FileRef
    ownership: FileRef
    rank_sessions: FileRef
    scores: FileRef
    gradient: FileRef
    adapter_before_manifest: FileRef
    optimizer_after: FileRef | None = None
    checkpoint_manifest: FileRef | None = None
    adapter_manifest: FileRef | None = None
    optimizer_before: FileRef | None = None
    gradient_before: FileRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptCleanup:
    coordinator_absent: bool
    placement_group_absent: bool
    actors_absent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReceipt(Document):
    """One GRPO update, or the gradient of one prompt of it: what ran, bound to every file it left.

    `optimizer_steps` are this run's, `optimizer_steps_before` those in the life of the moments that it began with.
    """

    NAME: ClassVar[str] = "training-receipt"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"positions", "optimizer_steps_before"})

    run_id: str
    plan_sha256: str
    execution_id: str
    claim_scope: ClaimScope
    hardware_class: HardwareClass
    started_at: str
    ended_at: str
    world_size: int
    group_size: int
    prompt_tokens: int
    chunk_tokens: int
    prefix_gradient: PrefixGradient
    response_backwards: int
    prefix_backwards: int
    finalize_calls: int
    optimizer_steps: int
    signal: Literal["signal", "no-signal"]
    max_row_difference: float | None
    loss: float
    gradient_norm: float
    clip_coefficient: float
    files: ReceiptFiles
    cleanup: ReceiptCleanup
    positions: LongPositions | None = None
    optimizer_steps_before: int | None = None

    @property
    def ends_with_gradient(self) -> bool:
        """Whether it claims no update, but a gradient that a later run goes on from."""
        return self.claim_scope == "gradient_accumulation_only"
