"""A parity stage: conventional against resident exact, both cases, from every rank's exported shards.

The rule: the whole gradient is put together from the ranks' shards, which must agree where they hold the same tensor
and cover the adapter; then log-probs, losses, clip counts, norm, step and every distance are computed again. Copied
shards make a perfect distance, so nothing here is more than `derived`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mint2m_verify import phases as phase_names
from mint2m_verify.chain.cases import Case, Side, export_phases, profile_of
from mint2m_verify.chain.numbers import CASES, Number
from mint2m_verify.chain.places import PLACES
from mint2m_verify.chain.recompute import actor
from mint2m_verify.chain.recompute.actor import ADAPTER
from mint2m_verify.chain.recompute.evidence import Evidence, Recomputation
from mint2m_verify.chain.recompute.phases import check_rank_phases
from mint2m_verify.documents import PhaseEvidence, Rollout, RunProfile, Scores, TrainingPayload
from mint2m_verify.documents.validation import LoadedTensors
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.recompute import optimizer
from mint2m_verify.recompute import parity as distance
from mint2m_verify.recompute import scores as score_checks
from mint2m_verify.recompute.shard_file import ShardFile, Union
from mint2m_verify.recompute.tensors import Tensors, tensors_sha256

#: Distances are reported here and judged by the plan.
_NO_BOUNDS = distance.Thresholds(
    logprob=math.inf, loss=math.inf, cosine=-math.inf, relative_l2=math.inf, zero_mask=1 << 62
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What both sides of a case computed on; `adapter` is the policy before any step."""

    profile: RunProfile
    rollout: Rollout
    payload: TrainingPayload
    adapter: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """One side: whole gradient, scores, adapter after the step, rank 0's phases."""

    gradient: Tensors
    scores: Scores
    stepped: Tensors
    phases: tuple[PhaseEvidence, ...]


def shard_file(case: str, side: str, rank: int) -> str:
    """Where a rank's gradient shards of a computation lie, below the stage's tree."""
    return f"{case}/{side}/rank-{rank}.safetensors"


def phases_file(case: str, side: str, rank: int, *, step: bool) -> str:
    """Where a rank's record of the export, or of the second pass's step, lies."""
    return f"{case}/{side}/rank-{rank}.{'step' if step else 'phases'}.json"


def scores_file(case: str, side: str) -> str:
    """Where a computation's scores lie."""
    return f"{case}/{side}/scores.json"


def stepped_file(case: str, side: str) -> str:
    """Where the adapter after the second pass's step lies."""
    return f"{case}/{side}/stepped.safetensors"


def recompute(evidence: Evidence) -> Recomputation:
    """Numbers of both cases; a case that cannot be read has none, which no bound accepts."""
    numbers: list[Number] = []
    for case in CASES:
        try:
            base = evidence.document(RunProfile, evidence.fixture.profile.path, canonical_form=False)
            inputs = Inputs(
                profile=profile_of(case, base),  # type: ignore[arg-type]  # CASES are the names of cases
                rollout=evidence.document(Rollout, evidence.fixture.rollout.path),
                payload=evidence.document(TrainingPayload, evidence.fixture.payload.path),
                adapter=evidence.tensors(ADAPTER),
            )
        except FindingError as fault:
            yield fault.finding
            continue
        with np.errstate(all="ignore"):
            numbers += yield from _case(evidence, case, inputs)  # type: ignore[arg-type]
    return tuple(numbers)


def _case(evidence: Evidence, case: Case, inputs: Inputs) -> Recomputation:
    conventional = yield from _side(evidence, case, "conventional", inputs)
    exact = yield from _side(evidence, case, "exact", inputs)
    if conventional is None or exact is None:
        return ()
    yield from _same_state(evidence, case, conventional, exact)
    name = f"{evidence.tree}{case}/"
    report = distance.compare(
        _distance_side(f"{name}conventional", conventional), _distance_side(f"{name}exact", exact), _NO_BOUNDS
    )
    for fault in report.findings:
        if fault.id != "parity.clip-count-mismatch":
            yield replace(fault, stage=evidence.planned.stage)
    overall = report.overall
    wrong_steps = 0
    for side, computed in (("conventional", conventional), ("exact", exact)):
        wrong = yield from _step(evidence, f"{evidence.tree}{stepped_file(case, side)}", computed, inputs)
        wrong_steps += wrong
    delta_cosine, delta_l2 = _delta(conventional, exact, inputs)
    reverse = next((seen for seen in exact.phases if seen.row_difference is not None), None)
    if reverse is None or not reverse.rows_compared:
        path = f"{evidence.tree}{phases_file(case, 'exact', 0, step=False)}"
        yield found("session.evidence-missing", stage=evidence.planned.stage, file=path, expected="rows compared")
    losses = [
        loss for side in (conventional, exact) for loss in score_checks.response_losses(side.scores, inputs.profile)
    ]
    deviation = max((score_checks.ratio_deviation(loss)[0] for loss in losses), default=math.inf)

    def derived(suffix: str, value: float | None) -> Number:
        return Number(name=f"{case}.{suffix}", value=value, standing="derived")

    rollout = inputs.rollout
    shortest = float(min(map(len, rollout.responses)))
    return (
        Number(name=f"{case}.prompt_tokens", value=float(len(rollout.prompt_tokens)), standing="checked"),
        Number(name=f"{case}.response_tokens", value=shortest, standing="checked"),
        derived("logprob", report.logprob_max_abs),
        derived("loss", report.loss_abs),
        derived("ratio.deviation", deviation),
        derived("cosine", None if overall is None else overall.cosine),
        derived("relative_l2", None if overall is None else overall.relative_l2),
        derived("zero_mask", None if overall is None else float(overall.zero_mask)),
        derived("tensors.compared", None if overall is None else float(overall.tensors)),
        derived("tensors.unmatched", float(len(report.missing) + len(report.extra))),
        *(
            derived(f"{item.family.value}.{word}", value)
            for item in report.families
            for word, value in (("cosine", item.distance.cosine), ("relative_l2", item.distance.relative_l2))
        ),
        derived("clipped_low", float(min(conventional.scores.clipped_low, exact.scores.clipped_low))),
        derived("clipped_high", float(min(conventional.scores.clipped_high, exact.scores.clipped_high))),
        derived("gradient_norm", optimizer.gradient_norm(conventional.gradient.values())),
        derived("step.mismatches", float(wrong_steps)),
        derived("delta.cosine", delta_cosine),
        derived("delta.relative_l2", delta_l2),
        Number(
            name=f"{case}.rows.difference",
            value=None if reverse is None else reverse.row_difference,
            standing="attested-only",
        ),
    )


def _side(evidence: Evidence, case: Case, side: Side, inputs: Inputs) -> Generator[Finding, None, Computed | None]:
    """One computation, put together from all ranks; None where a part of it cannot be read."""
    profile = inputs.profile
    first: tuple[PhaseEvidence, ...] = ()
    adapter_sha256 = tensors_sha256(inputs.adapter)
    gradient = yield from _gradient(evidence, case, side, inputs.adapter)
    path = f"{evidence.tree}{scores_file(case, side)}"
    stepped_path = f"{evidence.tree}{stepped_file(case, side)}"
    try:
        scores = evidence.document(Scores, path)
        stepped = evidence.tensors(stepped_path)
    except FindingError as fault:
        yield fault.finding
        return None
    if gradient is None or stepped.keys() != inputs.adapter.keys():
        yield found("chain.tensors-incomplete", stage=evidence.planned.stage, file=stepped_path)
        return None
    for rank in range(evidence.world_size):
        seen = yield from check_rank_phases(
            evidence,
            phases_file(case, side, rank, step=False),
            rank=rank,
            case=case,
            side=side,
            wanted=export_phases(profile, side),
        )
        first = first or seen
        yield from _adapter(evidence, phases_file(case, side, rank, step=False), seen, adapter_sha256)
        after = yield from check_rank_phases(
            evidence,
            phases_file(case, side, rank, step=True),
            rank=rank,
            case=case,
            side=f"{side}-step",
            wanted=(phase_names.OPTIMIZER_STEP,),
        )
        yield from _adapter(evidence, phases_file(case, side, rank, step=True), after, tensors_sha256(stepped))
    yield from _scores(evidence, path, scores, inputs)
    norm = optimizer.gradient_norm(gradient.values())
    if not abs(norm - scores.gradient_norm) <= 1e-9 * max(norm, 1e-30):
        yield found(
            "optimizer.norm-mismatch",
            stage=evidence.planned.stage,
            file=path,
            pointer="/gradient_norm",
            expected=repr(norm),
            actual=repr(scores.gradient_norm),
        )
    return Computed(gradient=gradient, scores=scores, stepped=stepped, phases=first)


def _gradient(evidence: Evidence, case: Case, side: Side, adapter: Tensors) -> Generator[Finding, None, Tensors | None]:
    """The whole gradient from every rank's shards, none of it in memory."""
    files: list[ShardFile] = []
    for rank in range(evidence.world_size):
        path = f"{evidence.tree}{shard_file(case, side, rank)}"
        try:
            files.append(evidence.tensors(path))
        except FindingError as fault:
            yield fault.finding
            return None
        yield from _own_shards(evidence, path, rank, frozenset(files[-1]))
    union = Union(files)
    for rank, file in enumerate(files):
        path = f"{evidence.tree}{shard_file(case, side, rank)}"
        for name in file:
            if union.holder(name) is not file and not np.array_equal(union[name], file[name]):
                stage = evidence.planned.stage
                yield found("chain.ranks-disagree", stage=stage, file=path, pointer=name, expected="as on rank 0")
    shapes, wanted = union.shapes(), {name: adapter[name].shape for name in adapter}
    if shapes != wanted:
        names = sorted(shapes.keys() ^ wanted.keys())
        yield found(
            "chain.tensors-incomplete",
            stage=evidence.planned.stage,
            file=f"{evidence.tree}{shard_file(case, side, 0)}",
            expected=f"{len(adapter)} trainable tensors",
            actual=f"{len(union)}; {', '.join(names[:3]) or 'other shapes'}",
        )
        return None
    return union


def _own_shards(evidence: Evidence, path: str, rank: int, names: frozenset[str]) -> Generator[Finding, None, None]:
    """A rank exports what it held when it was materialized: the actor stage has the list."""
    source = f"{PLACES['actor'].tree}{actor.tensors_file(rank)}"
    try:
        held = evidence.document(LoadedTensors, source)
    except FindingError as fault:
        yield fault.finding
        return
    want = {tensor.name for tensor in held.adapter}
    if names != want:
        differing = sorted(names ^ want)
        yield found(
            "chain.shard-of-another-rank",
            stage=evidence.planned.stage,
            file=path,
            pointer=differing[0],
            expected=f"the {len(want)} trainable tensors of rank {rank} in {source}",
            actual=f"{len(names)}, {len(differing)} of them others or missing",
        )


def _adapter(evidence: Evidence, name: str, seen: Sequence[PhaseEvidence], want: str) -> Generator[Finding, None, None]:
    """Whatever a rank says of its adapter in these phases is what the plan's file, or the step's, is."""
    for place, phase in enumerate(seen):
        if phase.adapter_sha256 is not None and phase.adapter_sha256 != want:
            yield found(
                "session.adapter-mismatch",
                stage=evidence.planned.stage,
                file=f"{evidence.tree}{name}",
                pointer=f"/phases/{place}/evidence/adapter_sha256",
                expected=want,
                actual=phase.adapter_sha256,
            )


def _scores(evidence: Evidence, path: str, scores: Scores, inputs: Inputs) -> Generator[Finding, None, None]:
    """Scores of this execution, rollout and profile, and every loss from its log-probs."""
    if scores.execution_id != evidence.execution_id:
        yield found(
            "chain.execution-mismatch",
            stage=evidence.planned.stage,
            file=path,
            pointer="/execution_id",
            expected=evidence.execution_id,
            actual=scores.execution_id,
        )
    checks: list[Check] = [
        score_checks.check_identity(scores, inputs.rollout, inputs.profile),
        score_checks.check_rewards(scores, inputs.rollout, inputs.payload),
    ]
    faults = [fault for check in checks for fault in check]
    if not faults:
        losses = score_checks.response_losses(scores, inputs.profile)
        faults += list(score_checks.check_losses(scores, losses, inputs.profile))
    for fault in faults:
        yield replace(fault, stage=evidence.planned.stage, file=path)


def _same_state(evidence: Evidence, case: Case, one: Computed, other: Computed) -> Generator[Finding, None, None]:
    """Both sides held the same base weights."""
    digests = [
        next((p.weights_sha256 for p in side.phases if p.weights_sha256 is not None), None) for side in (one, other)
    ]
    if digests[0] != digests[1]:
        yield found(
            "session.weights-changed",
            stage=evidence.planned.stage,
            file=f"{evidence.tree}{phases_file(case, 'exact', 0, step=False)}",
            expected=digests[0],
            actual=digests[1],
        )


def _distance_side(name: str, side: Computed) -> distance.Side:
    scores = side.scores
    return distance.Side(
        name=name,
        gradients=side.gradient,
        logprobs=tuple(entry.policy for entry in scores.responses),
        loss=scores.loss,
        gradient_norm=scores.gradient_norm,
        clip_coefficient=scores.clip_coefficient,
        clipped_low=scores.clipped_low,
        clipped_high=scores.clipped_high,
    )


def _step(evidence: Evidence, path: str, side: Computed, inputs: Inputs) -> Generator[Finding, None, int]:
    """Tensors whose step is not what the plan's optimizer makes of this side's gradient."""
    contract = evidence.plan.optimizer
    coefficient = optimizer.clip_coefficient(optimizer.gradient_norm(side.gradient.values()), contract.clip_grad)
    wrong = 0
    for name, gradient in side.gradient.items():
        before, after = inputs.adapter[name], side.stepped[name]
        right = optimizer.first_step(before.astype(gradient.dtype), gradient, coefficient, contract)
        if not optimizer.within_rounding(right.parameter.astype(after.dtype), after, before):
            wrong += 1
            yield found("optimizer.step-mismatch", stage=evidence.planned.stage, file=path, pointer=name)
    return wrong


def _delta(one: Computed, other: Computed, inputs: Inputs) -> tuple[float | None, float | None]:
    """Cosine and relative L2 of the two optimizer deltas, over all tensors at once."""
    product = ones = others = difference = 0.0
    for name, before in inputs.adapter.items():
        start = before.astype(np.float64)
        a, b = one.stepped[name] - start, other.stepped[name] - start
        product += float(np.sum(a * b))
        ones += float(np.sum(a * a))
        others += float(np.sum(b * b))
        difference += float(np.sum((b - a) ** 2))
    if not ones * others > 0:
        return None, None
    return product / math.sqrt(ones * others), math.sqrt(difference / ones)
