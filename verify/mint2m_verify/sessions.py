"""What the ranks recorded: all of them, every phase once and in order, chained, and in agreement.

The rule: a record counts only at its place in its rank's chain, whose first link names the execution, the plan and the
rank. Records of another execution, of another rank or in another order then do not fit, even where each of them is
genuine by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mint2m_verify import layout, phases
from mint2m_verify.canonical import JsonValue, canonical, sha256_hex
from mint2m_verify.documents import (
    FileRef,
    PhaseEvidence,
    PhaseRecord,
    Plan,
    RankSession,
    RankSessions,
    RunProfile,
)
from mint2m_verify.documents.inputs import Accumulation
from mint2m_verify.documents.records import chain_start
from mint2m_verify.expert_load import expert_load, miscounted
from mint2m_verify.finding import Finding, found
from mint2m_verify.findings import Check, Damage
from mint2m_verify.memory_plan import held_chunks, held_rows
from mint2m_verify.run_documents import Read
from mint2m_verify.seal import counted

_FILE = layout.RANK_SESSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A number, and how far rounding can have moved a record of it."""

    value: float
    slack: float

    def holds(self, have: float) -> bool:
        return math.isfinite(self.slack) and abs(have - self.value) <= self.slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Numbers of the update that are known from inputs and scores, to hold the records against."""

    response_tokens: tuple[int, ...]
    scored_tokens: tuple[int, ...]
    clipped: tuple[tuple[int, int], ...]
    gradient_norm: float
    clip_coefficient: float
    #: Of each response, value and slack: its part of the loss, the largest |ratio - 1|, the mean drift.
    shares: tuple[Near, ...]
    deviations: tuple[Near, ...]
    drifts: tuple[Near | None, ...]
    #: Digest of the adapter before and after the step; None where the exported files are rounded.
    adapter_sha256: tuple[str, str] | None


def check_ranks(
    sessions: Read[RankSessions], plan: Plan, profile: RunProfile, accumulation: Accumulation | None
) -> Check:
    """Every planned rank once, of this plan, each with exactly the phases of the profile, in order and chained."""
    document = sessions.document
    world = profile.topology.world_size
    if document.plan_sha256 != plan.plan_sha256:
        yield _fault("session.plan-mismatch", "/plan_sha256", plan.plan_sha256, document.plan_sha256)
    ranks = [session.rank for session in document.ranks]
    for rank in range(world):
        count = ranks.count(rank)
        if count == 0:
            yield _fault("session.rank-missing", "/ranks", f"rank {rank} of {world}", _listed(ranks))
        elif count > 1:
            yield _fault("session.rank-repeated", "/ranks", f"rank {rank} once", f"{count} times")
    for rank in sorted({rank for rank in ranks if rank >= world}):
        yield _fault("session.rank-unknown", "/ranks", f"ranks 0 to {world - 1}", f"rank {rank}")
    if sorted(ranks) == list(range(world)) and ranks != sorted(ranks):
        yield _fault("session.rank-order", "/ranks", _listed(sorted(ranks)), _listed(ranks))
    yield from _actors(document, plan)
    wanted = phases.expected_phases(profile, accumulation)
    for index, session in enumerate(document.ranks):
        where = f"/ranks/{index}"
        if session.world_size != world:
            yield _fault("session.world-size", f"{where}/world_size", str(world), str(session.world_size))
        yield from _phase_order(session, wanted, where)
        yield from _chain(session, document, _raw_phases(sessions.value, index), where)
    return f"{len(ranks)} of {world}, {len(wanted)} phases each"


def check_evidence(
    sessions: RankSessions, plan: Plan, profile: RunProfile, files: Mapping[str, FileRef], damage: Damage
) -> Check:
    """Each phase has seen what it must, ranks agree, and files that a rank names are the files at hand."""
    compared = 0
    for index, session in enumerate(sessions.ranks):
        for number, record in enumerate(session.phases):
            where = f"/ranks/{index}/phases/{number}"
            if record.phase in plan.phases:
                yield from _required(record, where)
            for position, ref in enumerate(record.files):
                compared += 1
                for fault in _named_file(ref, files.get(ref.path), f"{where}/files/{position}", record.phase):
                    yield fault.following(damage(ref.path))
        yield from _one_weights(session, f"/ranks/{index}")
        yield from _identity(session, plan, profile, f"/ranks/{index}")
    yield from _agreement(sessions)
    return f"{counted(len(sessions.ranks), 'rank')} in agreement, {counted(compared, 'file')} named"


def check_counts(sessions: RankSessions, profile: RunProfile) -> Check:
    """Chunks, backward calls, one finalize and one step, as the profile calls for; each rank held its share of rows.

    Chunks that a phase took over from an earlier execution are its word, and add to what it did itself.
    """
    chunks = phases.prefix_chunks(profile)
    captured = profile.context.prompt_tokens - 1
    steps: list[str] = []
    ranks = [session.rank for session in sessions.ranks for _ in session.phases]
    for rank, (record, where) in zip(ranks, _records(sessions), strict=True):
        seen = record.evidence
        resumed = seen.resumed_chunks or 0
        limit = chunks if record.phase in phases.RESUMABLE else 0
        if resumed > limit:
            pointer, most = f"{where}/resumed_chunks", f"at most {limit}"
            yield _fault("session.count-mismatch", pointer, most, str(resumed), stage=record.phase)
        held = held_rows(profile, rank)  # none where every chunk has fewer tokens than there are ranks before this one
        match record.phase:
            case phases.CAPTURE_PREFIX:
                yield from _equal(seen.prompt_tokens, captured, f"{where}/prompt_tokens", record.phase)
                yield from _equal(seen.chunks, chunks, f"{where}/chunks", record.phase)
                yield from _equal(seen.page_rows, held, f"{where}/page_rows", record.phase)
            case phases.PREFIX_BACKWARD:
                yield from _equal(seen.chunks, chunks, f"{where}/chunks", record.phase)
                held = held_rows(profile, rank, chunks=max(chunks - resumed, 0))
                yield from _equal(seen.backward_calls, chunks - resumed, f"{where}/backward_calls", record.phase)
                yield from _equal(seen.row_difference, 0.0, f"{where}/row_difference", record.phase)
                yield from _by_layer(seen, held, held_chunks(profile, rank, chunks - resumed), where, record.phase)
            case phases.FINALIZE:
                yield from _equal(seen.finalize_calls, 1, f"{where}/finalize_calls", record.phase)
            case phases.OPTIMIZER_STEP:
                yield from _equal(seen.optimizer_steps, 1, f"{where}/optimizer_steps", record.phase)
                yield from _equal(seen.gradients_zeroed, True, f"{where}/gradients_zeroed", record.phase)
                steps.append(str(seen.optimizer_steps))
                if seen.optimizer_contract != profile.optimizer:
                    yield _fault(
                        "session.optimizer-contract",
                        f"{where}/optimizer_contract",
                        str(profile.optimizer),
                        str(seen.optimizer_contract),
                        stage=record.phase,
                    )
            case _ if phases.response_of(record.phase) is not None:
                yield from _equal(seen.response, phases.response_of(record.phase), f"{where}/response", record.phase)
                yield from _equal(seen.backward_calls, 1, f"{where}/backward_calls", record.phase)
            case _:
                pass
    for pointer, expected, actual in miscounted(sessions, profile):
        yield _fault("session.count-mismatch", pointer, expected, actual, stage=phases.CAPTURE_PREFIX)
    reverse = f", {chunks} prefix backwards" if profile.prefix.gradient == "exact" else ", prefix detached"
    taken, load = earlier_work(sessions, profile), expert_load(sessions)
    return (
        f"{profile.group_size} response backwards{reverse}, 1 finalize; steps by rank {', '.join(steps) or 'none'}"
        f"{'' if taken is None else f'; {taken}'}"
        f"{'' if load is None else f'; {load}'}"
    )


def earlier_work(sessions: RankSessions, profile: RunProfile) -> str | None:
    """What the run took over from an earlier execution, by its first rank's word; None where it did all itself."""
    chunks = phases.prefix_chunks(profile)
    first = sessions.ranks[0].phases
    parts = [
        f"{record.phase} {record.evidence.resumed_chunks} of {chunks} chunks"
        for record in first
        if record.evidence.resumed_chunks
    ]
    return f"by an earlier execution: {', '.join(parts)}" if parts else None


def check_facts(sessions: RankSessions, facts: Facts) -> Check:
    """The records' own numbers against those of the scores and the gradient."""
    compared = 0
    for record, where in _records(sessions):
        seen, response = record.evidence, phases.response_of(record.phase)
        if response is not None and response < min(len(facts.scored_tokens), len(facts.response_tokens)):
            low, high = facts.clipped[response]
            pairs: list[tuple[str, object, object]] = [
                ("response_tokens", seen.response_tokens, facts.response_tokens[response]),
                ("scored_tokens", seen.scored_tokens, facts.scored_tokens[response]),
                ("clipped_low", seen.clipped_low, low),
                ("clipped_high", seen.clipped_high, high),
            ]
        elif record.phase in (phases.SCORE_OLD, phases.SCORE_REFERENCE):
            pairs = [("scored_tokens", seen.scored_tokens, sum(facts.scored_tokens))]
        elif record.phase == phases.FINALIZE:
            pairs = [
                ("gradient_norm", seen.gradient_norm, facts.gradient_norm),
                ("clip_coefficient", seen.clip_coefficient, facts.clip_coefficient),
            ]
        else:
            continue
        for member, have, want in pairs:
            compared += 1
            yield from _equal(have, want, f"{where}/{member}", record.phase)
    for record, where in _records(sessions):
        for member, near in _near(record, facts):
            have = getattr(record.evidence, member)
            compared += 1
            if near is None and have is not None:
                yield _fault("session.count-mismatch", f"{where}/{member}", "absent", repr(have), stage=record.phase)
            elif near is not None and (have is None or not near.holds(have)):
                yield _fault(
                    "session.number-mismatch", f"{where}/{member}", repr(near.value), repr(have), stage=record.phase
                )
        if facts.adapter_sha256 is not None and record.evidence.adapter_sha256 is not None:
            compared += 1
            want = facts.adapter_sha256[record.phase != phases.MATERIALIZE]
            if record.evidence.adapter_sha256 != want:
                pointer = f"{where}/adapter_sha256"
                yield _fault(
                    "session.adapter-mismatch", pointer, want, record.evidence.adapter_sha256, stage=record.phase
                )
    return f"{compared} numbers as recomputed"


def check_cleanup(sessions: RankSessions) -> Check:
    """Each rank closed its session and its groups, and its actor was found absent."""
    for index, session in enumerate(sessions.ranks):
        for member in ("session_closed", "groups_destroyed", "actor_absent"):
            if not getattr(session.cleanup, member):
                where = f"/ranks/{index}/cleanup/{member}"
                yield _fault("session.cleanup-incomplete", where, "true", "false", stage="cleanup")
    return f"{counted(len(sessions.ranks), 'rank')} closed and absent"


def _actors(document: RankSessions, plan: Plan) -> Iterator[Finding]:
    planned = {rank.rank: rank.actor for rank in plan.placement.ranks}
    seen: set[str] = set()
    for index, session in enumerate(document.ranks):
        want = planned.get(session.rank)
        if want is not None and session.actor != want:
            yield _fault("session.actor-mismatch", f"/ranks/{index}/actor", want, session.actor)
        if session.actor_id in seen:
            yield _fault("session.actor-repeated", f"/ranks/{index}/actor_id", "an id of its own", session.actor_id)
        seen.add(session.actor_id)


def _phase_order(session: RankSession, wanted: Sequence[str], where: str) -> Iterator[Finding]:
    have = [record.phase for record in session.phases]
    rank = f"rank {session.rank}"
    missing = [phase for phase in wanted if phase not in have]
    extra = [phase for phase in dict.fromkeys(have) if phase not in wanted]
    repeated = [phase for phase in dict.fromkeys(have) if have.count(phase) > 1]
    for phase in missing:
        yield _fault("session.phase-missing", f"{where}/phases", phase, f"{rank}: {', '.join(have)}", stage=phase)
    for phase in extra:
        yield _fault("session.phase-unexpected", f"{where}/phases", None, f"{rank}: {phase}", stage=phase)
    for phase in repeated:
        times = f"{rank}: {have.count(phase)} times"
        yield _fault("session.phase-repeated", f"{where}/phases", "once", times, stage=phase)
    if not missing and not extra and not repeated and have != list(wanted):
        first = next(index for index, (a, b) in enumerate(zip(have, wanted, strict=True)) if a != b)
        yield _fault(
            "session.phase-order",
            f"{where}/phases/{first}",
            wanted[first],
            f"{rank}: {have[first]}",
            stage=have[first],
        )
    for number, record in enumerate(session.phases):
        if record.sequence != number:
            pointer = f"{where}/phases/{number}/sequence"
            yield _fault("session.sequence", pointer, str(number), str(record.sequence), stage=record.phase)
            break  # the numbers after the first wrong one say nothing new


def _chain(session: RankSession, document: RankSessions, raw: Sequence[JsonValue], where: str) -> Iterator[Finding]:
    """Each record names the one before by digest; computed from the JSON as it stood."""
    want = chain_start(execution_id=document.execution_id, plan_sha256=document.plan_sha256, rank=session.rank)
    for number, record in enumerate(session.phases):
        if record.previous_sha256 != want:
            pointer = f"{where}/phases/{number}/previous_sha256"
            yield _fault("session.chain-broken", pointer, want, record.previous_sha256, stage=record.phase)
        want = sha256_hex(canonical(raw[number]))


def _raw_phases(value: JsonValue, index: int) -> list[JsonValue]:
    ranks = value["ranks"] if isinstance(value, dict) else None
    rank = ranks[index] if isinstance(ranks, list) else None
    records = rank["phases"] if isinstance(rank, dict) else None
    if not isinstance(records, list):
        raise TypeError("rank sessions passed their schema without a list of phases")
    return records


def _required(record: PhaseRecord, where: str) -> Iterator[Finding]:
    for member in phases.required_evidence(record.phase):
        if getattr(record.evidence, member) is None:
            pointer = f"{where}/evidence/{member}"
            yield _fault("session.evidence-missing", pointer, member, None, stage=record.phase)


def _named_file(ref: FileRef, at_hand: FileRef | None, where: str, phase: str) -> Iterator[Finding]:
    if at_hand is None:
        yield _fault("session.file-missing", where, ref.path, "not in the run directory", stage=phase)
    elif (at_hand.sha256, at_hand.size) != (ref.sha256, ref.size):
        want = f"{ref.path}: {ref.sha256} ({ref.size} bytes)"
        have = f"{at_hand.sha256} ({at_hand.size} bytes)"
        yield _fault("session.file-mismatch", where, want, have, stage=phase)


def _one_weights(session: RankSession, where: str) -> Iterator[Finding]:
    """The base model is frozen: a rank holds the same weights and buffers from the first phase to the last."""
    first: str | None = None
    for number, record in enumerate(session.phases):
        digest = record.evidence.weights_sha256
        if digest is None:
            continue
        first = first or digest
        if digest != first:
            pointer = f"{where}/phases/{number}/evidence/weights_sha256"
            yield _fault("session.weights-changed", pointer, first, digest, stage=record.phase)


def _identity(session: RankSession, plan: Plan, profile: RunProfile, where: str) -> Iterator[Finding]:
    """What ran, against the plan: source, runtime identity, backend's shape."""
    topology = profile.topology
    wanted: Mapping[str, object] = {
        "runtime_identity_sha256": plan.inputs.runtime_identity.sha256,
        "source_sha256": plan.source_sha256,
        "world_size": topology.world_size,
        "context_parallel": topology.context_parallel,
        "expert_parallel": topology.expert_parallel,
    }
    for number, record in enumerate(session.phases):
        for member, want in wanted.items():
            have = getattr(record.evidence, member)
            if have is not None and have != want:
                pointer = f"{where}/phases/{number}/evidence/{member}"
                yield _fault("session.identity-mismatch", pointer, str(want), str(have), stage=record.phase)


def _agreement(sessions: RankSessions) -> Iterator[Finding]:
    """Members that describe the update are equal on all ranks, phase by phase."""
    first: dict[tuple[str, str], tuple[int, object]] = {}
    for index, session in enumerate(sessions.ranks):
        for number, record in enumerate(session.phases):
            for member in phases.SHARED_EVIDENCE:
                value = getattr(record.evidence, member)
                rank, want = first.setdefault((record.phase, member), (session.rank, value))
                if value != want:
                    pointer = f"/ranks/{index}/phases/{number}/evidence/{member}"
                    words = f"{want} as on rank {rank}"
                    yield _fault("session.ranks-disagree", pointer, words, str(value), stage=record.phase)


def _near(record: PhaseRecord, facts: Facts) -> list[tuple[str, Near | None]]:
    response = phases.response_of(record.phase)
    if response is None or response >= len(facts.shares):
        return []
    return [
        ("loss", facts.shares[response]),
        ("max_ratio_deviation", facts.deviations[response]),
        ("kl", facts.drifts[response]),
    ]


def _records(sessions: RankSessions) -> Iterator[tuple[PhaseRecord, str]]:
    for index, session in enumerate(sessions.ranks):
        for number, record in enumerate(session.phases):
            yield record, f"/ranks/{index}/phases/{number}/evidence"


def _equal(have: object, want: object, pointer: str, phase: str) -> Iterator[Finding]:
    if have is not None and have != want:  # an absent member has its own finding
        yield _fault("session.count-mismatch", pointer, str(want), str(have), stage=phase)


def _by_layer(seen: PhaseEvidence, rows: int, chunks: int, where: str, phase: str) -> Iterator[Finding]:
    """Every row that the rank holds was compared, and every gradient page released, once a layer.

    How many layers there are, the first of the two numbers says; it is at least one.
    """
    compared, released = seen.rows_compared, seen.gradient_pages_released
    layers = max((compared or 0) // rows, 1) if rows else 1
    yield from _equal(compared, layers * rows, f"{where}/rows_compared", phase)
    yield from _equal(released, layers * chunks, f"{where}/gradient_pages_released", phase)


def _listed(ranks: Sequence[int]) -> str:
    return "ranks " + ", ".join(str(rank) for rank in ranks) if ranks else "no rank"


def _fault(id: str, pointer: str, expected: str | None, actual: str | None, *, stage: str | None = None) -> Finding:
    return found(id, file=_FILE, pointer=pointer, expected=expected, actual=actual, stage=stage)
