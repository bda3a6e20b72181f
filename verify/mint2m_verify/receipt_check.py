"""The receipt, against everything that it summarizes.

The rule: a receipt proves nothing by itself. Each of its numbers is counted again from the records, the scores and the
tensors, and each file that it names must be the file at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mint2m_verify import layout, phases
from mint2m_verify.binding import compare_ref
from mint2m_verify.documents import FileRef, PhaseRecord, Plan, RankSessions, RunProfile, Scores, TrainingReceipt
from mint2m_verify.documents.base import decode
from mint2m_verify.documents.failure import FailedReceipt
from mint2m_verify.finding import Finding, found
from mint2m_verify.findings import Check, Damage
from mint2m_verify.run_documents import read_value

_FILE = layout.RECEIPT

#: The place of each file that a receipt names.
PLACES: Mapping[str, str] = {
    "doctor": layout.DOCTOR,
    "plan": layout.PLAN,
    "ownership": layout.OWNERSHIP,
    "rank_sessions": layout.RANK_SESSIONS,
    "scores": layout.SCORES,
    "gradient": layout.GRADIENT,
    "optimizer_after": layout.OPTIMIZER_AFTER,
    "checkpoint_manifest": layout.CHECKPOINT_MANIFEST,
    "adapter_before_manifest": layout.ADAPTER_BEFORE_MANIFEST,
    "adapter_manifest": layout.ADAPTER_MANIFEST,
}


def check_files(receipt: TrainingReceipt, at_hand: Mapping[str, FileRef], damage: Damage) -> Check:
    """Every file that the receipt names is the file at hand, under the name that the layout fixes."""
    for member, path in PLACES.items():
        ref: FileRef | None = getattr(receipt.files, member)
        if ref is None:
            continue  # `check_self` says which may be left out
        for fault in compare_ref(ref, at_hand.get(path), path, file=_FILE, pointer=f"/files/{member}"):
            yield fault.following(damage(path))
    return f"{len(_named(receipt))} files as named"


def _named(receipt: TrainingReceipt) -> tuple[str, ...]:
    """Members of the files that the receipt names, of those that have a fixed place."""
    return tuple(member for member in PLACES if getattr(receipt.files, member) is not None)


def failure(raw: bytes, *, file: str) -> Finding:
    """What a failed receipt says of its run; it needs no signature to be believed, since it claims nothing."""
    value, _ = read_value(FailedReceipt, raw, file=file, canonical_form=True)
    actual = "a failed receipt that cannot be read"
    if value is not None:
        receipt = decode(FailedReceipt, value)
        actual = f"stopped in {receipt.stopped_in}: {receipt.finding.id}"
    return found("receipt.failed", file=file, expected=layout.RECEIPT, actual=actual)


def check_self(receipt: TrainingReceipt) -> Check:
    """What a receipt says that cannot all be true, seen without any other file."""
    chunks = -(-(receipt.prompt_tokens - 1) // receipt.chunk_tokens)
    rows: list[tuple[str, object, object]] = [
        ("/response_backwards", receipt.group_size, receipt.response_backwards),
        ("/prefix_backwards", chunks if receipt.prefix_gradient == "exact" else 0, receipt.prefix_backwards),
        ("/finalize_calls", 1, receipt.finalize_calls),
        ("/optimizer_steps", 0 if receipt.ends_with_gradient else 1, receipt.optimizer_steps),
        ("/max_row_difference", 0.0 if receipt.prefix_gradient == "exact" else None, receipt.max_row_difference),
        ("/cleanup/coordinator_absent", True, receipt.cleanup.coordinator_absent),
        ("/cleanup/placement_group_absent", True, receipt.cleanup.placement_group_absent),
        ("/cleanup/actors_absent", True, receipt.cleanup.actors_absent),
    ]
    for member, path in PLACES.items():
        want = path not in layout.STEP_FILES or not receipt.ends_with_gradient
        have = getattr(receipt.files, member) is not None
        rows.append((f"/files/{member}", "a file" if want else "none", "a file" if have else "none"))
    yield from _compare(rows)
    if not receipt.clip_coefficient <= 1:
        yield from _compare([("/clip_coefficient", "at most 1", receipt.clip_coefficient)])
    step = "no step" if receipt.ends_with_gradient else f"{receipt.optimizer_steps} step"
    return (
        f"{receipt.response_backwards} response backwards, {receipt.prefix_backwards} prefix backwards, "
        f"{receipt.finalize_calls} finalize, {step}"
    )


def check_numbers(
    receipt: TrainingReceipt, plan: Plan, profile: RunProfile, sessions: RankSessions, scores: Scores
) -> Check:
    """The receipt's identities and numbers, from plan, profile, rank records and scores."""
    rows: list[tuple[str, object, object]] = [
        ("/run_id", plan.run_id, receipt.run_id),
        ("/plan_sha256", plan.plan_sha256, receipt.plan_sha256),
        ("/execution_id", sessions.execution_id, receipt.execution_id),
        ("/claim_scope", plan.claim_scope, receipt.claim_scope),
        ("/hardware_class", plan.deployment.hardware_class, receipt.hardware_class),
        ("/world_size", len(sessions.ranks), receipt.world_size),
        ("/group_size", profile.group_size, receipt.group_size),
        ("/prompt_tokens", profile.context.prompt_tokens, receipt.prompt_tokens),
        ("/chunk_tokens", profile.prefix.chunk_tokens, receipt.chunk_tokens),
        ("/prefix_gradient", profile.prefix.gradient, receipt.prefix_gradient),
        ("/positions", profile.model.positions, receipt.positions),
        ("/signal", "signal" if scores.has_signal else "no-signal", receipt.signal),
        ("/loss", scores.loss, receipt.loss),
        ("/gradient_norm", scores.gradient_norm, receipt.gradient_norm),
        ("/clip_coefficient", scores.clip_coefficient, receipt.clip_coefficient),
        ("/max_row_difference", _largest_row_difference(sessions), receipt.max_row_difference),
    ]
    yield from _compare(rows)
    for session in sessions.ranks:
        yield from _compare(
            [
                ("/response_backwards", _sum(session.phases, "grpo"), receipt.response_backwards),
                ("/prefix_backwards", _sum(session.phases, phases.PREFIX_BACKWARD), receipt.prefix_backwards),
                ("/finalize_calls", _sum(session.phases, phases.FINALIZE), receipt.finalize_calls),
                ("/optimizer_steps", _sum(session.phases, phases.OPTIMIZER_STEP), receipt.optimizer_steps),
            ]
        )
    for file, plan_sha256, execution in (
        (layout.RANK_SESSIONS, sessions.plan_sha256, sessions.execution_id),
        (layout.SCORES, scores.plan_sha256, scores.execution_id),
    ):
        for member, want, have in (
            ("plan_sha256", receipt.plan_sha256, plan_sha256),
            ("execution_id", receipt.execution_id, execution),
        ):
            if want != have:
                yield found("receipt.other-run", file=file, pointer=f"/{member}", expected=want, actual=have)
    return f"{len(rows)} numbers and identities recounted"


def _largest_row_difference(sessions: RankSessions) -> float | None:
    seen = [
        record.evidence.row_difference
        for session in sessions.ranks
        for record in session.phases
        if record.evidence.row_difference is not None
    ]
    return max(seen, default=None)


def _sum(records: Sequence[PhaseRecord], phase: str) -> int:
    """Calls that one rank recorded or took over in `phase`, or in all `grpo-g` phases for `grpo`."""
    total = 0
    for record in records:
        seen = record.evidence
        replay = phase == "grpo" and phases.response_of(record.phase) is not None
        if replay or record.phase == phase:
            counts = (seen.backward_calls, seen.finalize_calls, seen.optimizer_steps)
            total += next((count for count in counts if count is not None), 0)
            total += seen.resumed_chunks or 0  # their backward is in the gradient all the same
    return total


def _compare(rows: Sequence[tuple[str, object, object]]) -> Iterator[Finding]:
    for pointer, want, have in rows:
        if want != have:
            yield found("receipt.mismatch", file=_FILE, pointer=pointer, expected=str(want), actual=str(have))
