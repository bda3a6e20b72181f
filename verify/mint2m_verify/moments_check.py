"""What the optimizer went on from: the deployment, the copy at hand, the receipt and every rank name the same moments.

The rule: a state is its moments and the number of steps that led to them, since Adam divides by what both say. Where
the deployment names none, nobody else may: a step is then judged from zero state, and whoever had loaded moments in
silence would leave other weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from mint2m_verify import layout, phases
from mint2m_verify.documents import Deployment, FileRef, RankSessions, TrainingReceipt
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.recompute.tensors import read_tensors, tensors_sha256


def concerns(deployment: Deployment, copy: FileRef | None, receipt: TrainingReceipt, sessions: RankSessions) -> bool:
    """Whether anything of the run speaks of moments that were there before its step."""
    recorded = any(_recorded(sessions))
    return (
        deployment.optimizer is not None
        or copy is not None
        or receipt.files.optimizer_before is not None
        or receipt.optimizer_steps_before is not None
        or recorded
    )


def check_start(
    deployment: Deployment,
    copy: FileRef | None,
    raw: bytes | None,
    receipt: TrainingReceipt,
    sessions: RankSessions,
) -> Check:
    """All of them against the deployment, which the plan binds.

    Args:
        copy: the reference to the copy at hand, and `raw` its bytes.
    """
    start = deployment.optimizer
    if start is None:
        yield from _unnamed(copy, receipt, sessions)
        return "zero state"
    if deployment.adapter is None:
        yield _differs(layout.DEPLOYMENT, "/optimizer", "an adapter to go on from", "moments of a fresh one")
    if copy is None:
        pointer, absent = "/optimizer", "not in the run directory"
        yield found(
            "binding.file-absent",
            file=layout.DEPLOYMENT,
            pointer=pointer,
            expected=layout.OPTIMIZER_INITIAL,
            actual=absent,
        )
    elif copy.sha256 != start.sha256:
        yield _differs(layout.DEPLOYMENT, "/optimizer/sha256", start.sha256, copy.sha256)
    named = receipt.files.optimizer_before
    if named != copy:
        yield _differs(layout.RECEIPT, "/files/optimizer_before", _shown(copy), _shown(named))
    if receipt.optimizer_steps_before != start.steps:
        have = str(receipt.optimizer_steps_before)
        yield _differs(layout.RECEIPT, "/optimizer_steps_before", str(start.steps), have)
    digest = _digest(raw)
    for pointer, phase, moments, steps in _evidence(sessions):
        if phase == phases.MATERIALIZE and (moments is None or moments != digest):
            yield _differs(layout.RANK_SESSIONS, f"{pointer}/moments_sha256", str(digest), str(moments))
        if phase == phases.OPTIMIZER_STEP and steps != start.steps + 1:
            yield _differs(layout.RANK_SESSIONS, f"{pointer}/optimizer_life_steps", str(start.steps + 1), str(steps))
    return f"{start.sha256[:12]}…, after {start.steps} step{'' if start.steps == 1 else 's'}"


def _unnamed(copy: FileRef | None, receipt: TrainingReceipt, sessions: RankSessions) -> Iterator[Finding]:
    rows = (
        (layout.OPTIMIZER_INITIAL, None, None if copy is None else copy.sha256),
        (layout.RECEIPT, "/files/optimizer_before", receipt.files.optimizer_before),
        (layout.RECEIPT, "/optimizer_steps_before", receipt.optimizer_steps_before),
    )
    for file, pointer, have in rows:
        if have is not None:
            yield _differs(file, pointer, "none: the deployment names no moments", str(have))
    for pointer, _phase, moments, steps in _evidence(sessions):
        if moments is not None or steps is not None:
            yield _differs(layout.RANK_SESSIONS, pointer, "none: the deployment names no moments", "moments")


def _evidence(sessions: RankSessions) -> Iterator[tuple[str, str, str | None, int | None]]:
    """Pointer, phase, and the two members that speak of earlier moments, of every record."""
    for rank, session in enumerate(sessions.ranks):
        for number, record in enumerate(session.phases):
            seen = record.evidence
            pointer = f"/ranks/{rank}/phases/{number}/evidence"
            yield pointer, record.phase, seen.moments_sha256, seen.optimizer_life_steps


def _recorded(sessions: RankSessions) -> Iterator[bool]:
    for _pointer, _phase, moments, steps in _evidence(sessions):
        yield moments is not None or steps is not None


def _digest(raw: bytes | None) -> str | None:
    """The digest of the copy's tensors; None where it cannot be read, of which the step's own check tells."""
    if raw is None:
        return None
    try:
        return tensors_sha256(read_tensors(raw, file=layout.OPTIMIZER_INITIAL))
    except FindingError:
        return None


def _shown(ref: FileRef | None) -> str:
    return "none" if ref is None else f"{ref.path} {ref.sha256}, {ref.size} bytes"


def _differs(file: str, pointer: str | None, expected: str, actual: str) -> Finding:
    return found("optimizer.start-mismatch", file=file, pointer=pointer, expected=expected, actual=actual)
