"""What the ranks' replies become: chained rank sessions, and the receipt of the whole update.

The rule: the receipt repeats numbers and references, and adds nothing of its own. Each number in it is one that a rank
recorded or that `scores.json` holds, so the verifier can compare every one with its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mint2m_trainer.cluster.directory import Written, reference, write_document, write_manifest
from mint2m_trainer.cluster.messages import Hello, PhaseReply
from mint2m_verify import layout, phases
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import (
    PhaseEvidence,
    PhaseRecord,
    RankCleanup,
    RankPlacement,
    RankSession,
    RankSessions,
    ReceiptCleanup,
    ReceiptFiles,
    Scores,
    TrainingReceipt,
    chain_start,
)
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the ranks ended: for each rank whether it closed, and whether everything is absent."""

    actor_ids: tuple[str, ...]
    closed: tuple[bool, ...]
    actors_absent: bool
    placement_group_absent: bool
    coordinator_absent: bool


def disagreements(replies: Sequence[PhaseReply]) -> Iterable[Finding]:
    """Members of the evidence that must be equal on all ranks and are not."""
    first = replies[0]
    for reply in replies[1:]:
        for member in phases.SHARED_EVIDENCE:
            want, have = getattr(first.evidence, member), getattr(reply.evidence, member)
            if want != have:
                yield found(
                    "rank.disagrees",
                    stage=reply.phase,
                    pointer=member,
                    expected=f"rank {first.rank}: {want}",
                    actual=f"rank {reply.rank}: {have}",
                )


def rank_sessions(
    plan: Plan,
    execution_id: str,
    hellos: Sequence[Hello],
    replies: Mapping[str, Sequence[PhaseReply]],
    ended: Ended,
) -> RankSessions:
    """All ranks' records, each chained to the one before."""
    sessions = []
    for planned, hello, actor_id, closed in zip(
        plan.placement.ranks, hellos, ended.actor_ids, ended.closed, strict=True
    ):
        previous = chain_start(execution_id=execution_id, plan_sha256=plan.plan_sha256, rank=planned.rank)
        records = []
        for sequence, phase in enumerate(plan.phases):
            reply = replies[phase][planned.rank]
            record = PhaseRecord(
                sequence=sequence,
                phase=phase,
                started_at=reply.started_at,
                ended_at=reply.ended_at,
                previous_sha256=previous,
                files=reply.files,
                evidence=reply.evidence,
            )
            previous = record.record_sha256()
            records.append(record)
        sessions.append(
            RankSession(
                rank=planned.rank,
                world_size=plan.profile.topology.world_size,
                actor=planned.actor,
                actor_id=actor_id,
                pid=hello.pid,
                placement=RankPlacement(
                    planned_node_ip=planned.node_ip,
                    planned_slot=planned.slot,
                    observed_node_ip=hello.node_ip,
                    observed_slot=hello.bundle % plan.deployment.accelerators_per_node,
                    observed_accelerator=hello.accelerator,
                ),
                phases=tuple(records),
                cleanup=RankCleanup(session_closed=closed, groups_destroyed=closed, actor_absent=ended.actors_absent),
            )
        )
    return RankSessions(plan_sha256=plan.plan_sha256, execution_id=execution_id, ranks=tuple(sessions))


def write_receipt(
    root: Path,
    plan: Plan,
    sessions: RankSessions,
    ended: Ended,
    *,
    written: Written,
    started_at: str,
    ended_at: str,
) -> TrainingReceipt:
    """Manifests, rank sessions and last the receipt that binds them. The journal is closed by now."""
    scores = Scores.parse(read_once(root / layout.SCORES, name=layout.SCORES), file=layout.SCORES)
    first = {record.phase: record.evidence for record in sessions.ranks[0].phases}
    finalize, step = first[phases.FINALIZE], first.get(phases.OPTIMIZER_STEP)
    moments = step is not None and step.optimizer_life_steps is not None
    gradient = finalize.gradient_start_sha256 is not None
    reverse = first.get(phases.PREFIX_BACKWARD)
    differences = [
        record.evidence.row_difference
        for session in sessions.ranks
        for record in session.phases
        if record.phase == phases.PREFIX_BACKWARD
    ]
    files = ReceiptFiles(
        doctor=reference(root, layout.DOCTOR),
        plan=reference(root, layout.PLAN),
        ownership=reference(root, layout.OWNERSHIP),
        rank_sessions=write_document(root, layout.RANK_SESSIONS, sessions.encode()),
        scores=reference(root, layout.SCORES),
        gradient=reference(root, layout.GRADIENT, written),
        adapter_before_manifest=write_manifest(
            root, "file", "artifacts/adapter-before", layout.ADAPTER_BEFORE_MANIFEST, written
        ),
        optimizer_before=reference(root, layout.OPTIMIZER_INITIAL) if moments else None,
        gradient_before=reference(root, layout.GRADIENT_INITIAL) if gradient else None,
    )
    if step is not None:
        files = replace(
            files,
            optimizer_after=reference(root, layout.OPTIMIZER_AFTER, written),
            checkpoint_manifest=write_manifest(root, "checkpoint", "checkpoint", layout.CHECKPOINT_MANIFEST, written),
            adapter_manifest=write_manifest(root, "file", "adapter", layout.ADAPTER_MANIFEST, written),
        )
    receipt = TrainingReceipt(
        run_id=plan.run_id,
        plan_sha256=plan.plan_sha256,
        execution_id=sessions.execution_id,
        claim_scope=plan.claim_scope,
        hardware_class=plan.deployment.hardware_class,
        started_at=started_at,
        ended_at=ended_at,
        world_size=plan.profile.topology.world_size,
        group_size=plan.profile.group_size,
        prompt_tokens=plan.profile.context.prompt_tokens,
        chunk_tokens=plan.profile.prefix.chunk_tokens,
        prefix_gradient=plan.profile.prefix.gradient,
        response_backwards=sum(
            _recorded(first[phase].backward_calls, phase) for phase in first if phases.response_of(phase) is not None
        ),
        # Those that an earlier execution went through are in the gradient as well.
        prefix_backwards=0
        if reverse is None
        else _recorded(reverse.backward_calls, phases.PREFIX_BACKWARD) + (reverse.resumed_chunks or 0),
        finalize_calls=_recorded(finalize.finalize_calls, phases.FINALIZE),
        optimizer_steps=0 if step is None else _recorded(step.optimizer_steps, phases.OPTIMIZER_STEP),
        signal="signal" if scores.has_signal else "no-signal",
        max_row_difference=max((d for d in differences if d is not None), default=None),
        loss=scores.loss,
        gradient_norm=scores.gradient_norm,
        clip_coefficient=scores.clip_coefficient,
        files=files,
        positions=plan.profile.model.positions,
        optimizer_steps_before=_before(step),
        cleanup=ReceiptCleanup(
            coordinator_absent=ended.coordinator_absent,
            placement_group_absent=ended.placement_group_absent,
            actors_absent=ended.actors_absent,
        ),
    )
    write_document(root, layout.RECEIPT, receipt.encode())
    return receipt


def _before(step: PhaseEvidence | None) -> int | None:
    """Steps in the life of the optimizer's state before this run's; None where it began at zero or took none."""
    if step is None or step.optimizer_life_steps is None:
        return None
    return step.optimizer_life_steps - _recorded(step.optimizer_steps, phases.OPTIMIZER_STEP)


def _recorded(value: int | None, phase: str) -> int:
    if value is None:
        raise FindingError(found("rank.failed", stage=phase, actual="the phase recorded no count"))
    return value
