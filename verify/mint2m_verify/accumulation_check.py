"""A run's place in a step over several prompts, and the gradient of the earlier ones that it goes on from.

The rule: only the deployment, which the plan binds, says that a run is one of several; where it does not, nobody else
may. What the run goes on from is then one gradient, by the deployment, the copy, the receipt and every rank's record.
Whether it is what the run before left, and whether the counts are those of all runs, only a whole step can show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mint2m_verify import layout, phases
from mint2m_verify.documents import Deployment, FileRef, RankSessions, Rollout, RunProfile, TrainingReceipt
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.recompute.tensors import read_tensors, tensors_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A member of the deployment that cannot be, with what could."""

    pointer: str
    expected: str
    actual: str


def scored_tokens(rollout: Rollout, profile: RunProfile) -> tuple[int, ...]:
    """Of each response: all, or all but the first where the rollout has no old log-prob for that one."""
    recorded = rollout.old_logprobs if profile.grpo.old_source == "rollout" else None
    lengths = [len(tokens) for tokens in rollout.responses]
    return tuple(lengths if recorded is None else map(min, lengths, map(len, recorded)))


def contradictions(deployment: Deployment, scored: Sequence[int] | None) -> Iterator[Contradiction]:
    """What the place of a run says that cannot all be true.

    Args:
        scored: tokens of each of its responses; None where they are not known.
    """
    place = deployment.accumulation
    if place is None:
        return
    at = "/accumulation"
    if place.index >= place.prompts:
        yield Contradiction(pointer=f"{at}/index", expected=f"below {place.prompts}", actual=str(place.index))
    if (place.index == 0) != (place.gradient is None):
        expected = "none: it is the first" if place.index == 0 else "that of the run before"
        actual = "none" if place.gradient is None else place.gradient.path
        yield Contradiction(pointer=f"{at}/gradient", expected=expected, actual=actual)
    if deployment.optimizer is not None and not place.takes_step:
        yield Contradiction(
            pointer="/optimizer", expected="none: the run ends with its gradient", actual=deployment.optimizer.path
        )
    if scored is None:
        return
    most = place.prompts * len(scored)
    own = sum(1 for count in scored if count)
    for member, have, least in (("tokens", place.tokens, sum(scored)), ("responses", place.responses, own)):
        if have < least:
            yield Contradiction(pointer=f"{at}/{member}", expected=f"at least its own {least}", actual=str(have))
    if place.responses > most:
        yield Contradiction(pointer=f"{at}/responses", expected=f"at most {most}", actual=str(place.responses))


def concerns(deployment: Deployment, copy: FileRef | None, receipt: TrainingReceipt, sessions: RankSessions) -> bool:
    """Whether anything of the run speaks of other prompts of its step."""
    return (
        deployment.accumulation is not None
        or copy is not None
        or receipt.files.gradient_before is not None
        or any(digest is not None for _pointer, _phase, digest in _evidence(sessions))
    )


def check_place(
    deployment: Deployment,
    copy: FileRef | None,
    raw: bytes | None,
    receipt: TrainingReceipt,
    sessions: RankSessions,
    scored: Sequence[int] | None,
) -> Check:
    """The place against the run's own inputs, and what it went on from against the deployment.

    Args:
        copy: the reference to the copy of the gradient at hand, and `raw` its bytes.
        scored: as `contradictions` has it.
    """
    for fault in contradictions(deployment, scored):
        yield _differs(layout.DEPLOYMENT, fault.pointer, fault.expected, fault.actual)
    place = deployment.accumulation
    start = None if place is None else place.gradient
    if place is None or start is None:
        yield from _unnamed(copy, receipt, sessions)
    else:
        if copy is None:
            yield found(
                "binding.file-absent",
                file=layout.DEPLOYMENT,
                pointer="/accumulation/gradient",
                expected=layout.GRADIENT_INITIAL,
                actual="not in the run directory",
            )
        elif copy.sha256 != start.sha256:
            yield _differs(layout.DEPLOYMENT, "/accumulation/gradient/sha256", start.sha256, copy.sha256)
        named = receipt.files.gradient_before
        if named != copy:
            yield _differs(layout.RECEIPT, "/files/gradient_before", _shown(copy), _shown(named))
        digest = _digest(raw)
        for pointer, phase, have in _evidence(sessions):
            if phase == phases.FINALIZE and (have is None or have != digest):
                yield _differs(layout.RANK_SESSIONS, f"{pointer}/gradient_start_sha256", str(digest), str(have))
            elif phase != phases.FINALIZE and have is not None:
                yield _differs(layout.RANK_SESSIONS, f"{pointer}/gradient_start_sha256", "none", have)
    if place is None:
        return "one prompt"
    end = "steps on the sum" if place.takes_step else "ends with its gradient, which is no update"
    return f"prompt {place.index + 1} of {place.prompts}; {end}"


def _unnamed(copy: FileRef | None, receipt: TrainingReceipt, sessions: RankSessions) -> Iterator[Finding]:
    expected = "none: the deployment names no gradient to go on from"
    if copy is not None:
        yield _differs(layout.GRADIENT_INITIAL, None, expected, copy.sha256)
    if receipt.files.gradient_before is not None:
        yield _differs(layout.RECEIPT, "/files/gradient_before", expected, _shown(receipt.files.gradient_before))
    for pointer, _phase, have in _evidence(sessions):
        if have is not None:
            yield _differs(layout.RANK_SESSIONS, f"{pointer}/gradient_start_sha256", expected, have)


def _evidence(sessions: RankSessions) -> Iterator[tuple[str, str, str | None]]:
    """Pointer, phase and the digest of what was added, of every record."""
    for rank, session in enumerate(sessions.ranks):
        for number, record in enumerate(session.phases):
            yield f"/ranks/{rank}/phases/{number}/evidence", record.phase, record.evidence.gradient_start_sha256


def _digest(raw: bytes | None) -> str | None:
    """The digest of the copy's tensors; None where it cannot be read, of which the tensors' own check tells."""
    if raw is None:
        return None
    try:
        return tensors_sha256(read_tensors(raw, file=layout.GRADIENT_INITIAL))
    except FindingError:
        return None


def _shown(ref: FileRef | None) -> str:
    return "none" if ref is None else f"{ref.path} {ref.sha256}, {ref.size} bytes"


def _differs(file: str, pointer: str | None, expected: str, actual: str) -> Finding:
    return found("accumulation.mismatch", file=file, pointer=pointer, expected=expected, actual=actual)
