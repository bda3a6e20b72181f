"""Numbers of a stage, their standing, and the bounds that the validation plan sets them.

The rule: a bound comes from the plan and from nowhere else; a number without a bound gates nothing, so the numbers
that a stage is about must each have one; and a number that was not computed, or not as well as the plan asks, is
never within its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mint2m_verify.chain.places import NAMED_TOKENS
from mint2m_verify.documents.validation import (
    JudgedNumber,
    PlannedStage,
    StageName,
    StageNumber,
    StandingName,
    Threshold,
)
from mint2m_verify.finding import Finding, found

#: From the weakest to the strongest.
STRENGTH: tuple[StandingName, ...] = ("attested-only", "derived", "checked", "replayed")

CASES = ("ratio1", "active_clip")

#: Two sums over the same values in another order agree to far better than this, relative; a difference of nearly
#: equal ones, such as a kernel's error of 1e-7, only to as much of the values themselves, which are of order one.
_SAME, _SAME_ERROR = 1e-9, 1e-14


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number computed again; None where it has no value (a cosine with a zero side)."""

    name: str
    value: float | None
    standing: StandingName


def _at_most(number: str, bound: float, standing: StandingName = "derived") -> Threshold:
    return Threshold(number=number, at_least=None, at_most=bound, standing=standing)


def _at_least(number: str, bound: float, standing: StandingName = "derived") -> Threshold:
    return Threshold(number=number, at_least=bound, at_most=None, standing=standing)


def _exactly(number: str, value: float, standing: StandingName = "derived") -> Threshold:
    return Threshold(number=number, at_least=value, at_most=value, standing=standing)


def _parity(tokens: int) -> Iterator[Threshold]:
    for case in CASES:
        yield _exactly(f"{case}.prompt_tokens", tokens, "checked")
        yield _at_least(f"{case}.response_tokens", 3, "checked")
        yield _at_most(f"{case}.logprob", 5e-3)
        yield _at_most(f"{case}.loss", 5e-3)
        yield _at_least(f"{case}.cosine", 0.999)
        yield _at_most(f"{case}.relative_l2", 1e-2)
        yield _at_most(f"{case}.zero_mask", 0)
        yield _at_most(f"{case}.tensors.unmatched", 0)
        yield _at_most(f"{case}.rows.difference", 0, "attested-only")
        yield _at_most(f"{case}.step.mismatches", 0)
        yield _at_least(f"{case}.delta.cosine", 0.99)
        yield _at_most(f"{case}.delta.relative_l2", 0.15)
    yield _at_most("ratio1.ratio.deviation", 1e-3)
    yield _at_least("active_clip.clipped_low", 1)
    yield _at_least("active_clip.clipped_high", 1)


def standard_thresholds(stage: StageName, *, world_size: int, tokens: int | None) -> tuple[Threshold, ...]:
    """The project's own bounds of a stage, which a planner starts from.

    Args:
        world_size: ranks of the topology.
        tokens: prompt tokens of the stage's fixture; None for stages without one.
    """
    match stage:
        case "doctor":
            return (_at_most("checks.blocked", 0, "attested-only"), _at_least("checks.passed", 1, "attested-only"))
        case "kernel":
            return (
                _at_most("topk.mismatches", 0),
                _at_least("topk.cases", 1),
                _at_most("attend.out.error", 1e-5),
                _at_most("attend.lse.error", 1e-5),
                _at_most("attend.grad_q.error", 1e-5),
                _at_most("attend.grad_rows.error", 1e-5),
                _at_least("attend.cases", 1),
                _at_most("cache.changed", 0, "attested-only"),
            )
        case "nccl":
            return (
                _at_most("collectives.mismatches", 0),
                _at_least("collectives.checked", 5 * world_size),
                _exactly("collectives.ranks", world_size, "checked"),
                _at_most("barrier.missing", 0, "attested-only"),
            )
        case "actor":
            return (
                _at_most("tensors.mismatched", 0),
                _at_most("tensors.missing", 0),
                _at_least("tensors.loaded", 1),
                _at_most("adapter.mismatched", 0),
                _at_most("optimizer.mismatched", 0, "attested-only"),
                _at_most("optimizer.steps", 0, "attested-only"),
            )
        case "parity-32k" | "parity-64k":
            return tuple(_parity(tokens or NAMED_TOKENS[stage]))
        case "scale-2m":
            return (
                _exactly("prompt_tokens", tokens or NAMED_TOKENS[stage], "checked"),
                _at_most("run.findings", 0),
                _at_least("responses", 2, "checked"),
                _exactly("optimizer.steps", 1, "attested-only"),
                _at_most("rows.difference", 0, "attested-only"),
            )


def required_numbers(stage: StageName) -> tuple[str, ...]:
    """Numbers that a plan must bound, or its stage would gate nothing."""
    return tuple(item.number for item in standard_thresholds(stage, world_size=1, tokens=1))


def check_planned(planned: PlannedStage, *, file: str, index: int) -> Iterator[Finding]:
    """Where a plan leaves a number of its stage without a bound, or bounds one twice or by nothing."""
    have = [item.number for item in planned.thresholds]
    for name in required_numbers(planned.stage):
        if name not in have:
            pointer = f"/stages/{index}/thresholds"
            yield found(
                "validation-plan.unbounded",
                stage=planned.stage,
                file=file,
                pointer=pointer,
                expected=f"a bound of {name}",
            )
    for place, item in enumerate(planned.thresholds):
        pointer = f"/stages/{index}/thresholds/{place}"
        if (item.at_least is None and item.at_most is None) or have.count(item.number) > 1:
            actual = f"{item.number}: no bound" if have.count(item.number) == 1 else f"{item.number} more than once"
            yield found("validation-plan.unbounded", stage=planned.stage, file=file, pointer=pointer, actual=actual)


def judge(
    numbers: Sequence[Number], planned: PlannedStage, *, file: str
) -> Generator[Finding, None, tuple[JudgedNumber, ...]]:
    """Each number beside its bounds, in order; what breaks a bound is a finding for `file`."""
    bounds: Mapping[str, Threshold] = {item.number: item for item in planned.thresholds}
    judged = []
    for number in numbers:
        bound = bounds.get(number.name)
        faults = () if bound is None else tuple(_against(number, bound, planned.stage, file))
        yield from faults
        judged.append(
            JudgedNumber(
                name=number.name,
                value=number.value if number.value is not None and math.isfinite(number.value) else None,
                standing=number.standing,
                at_least=None if bound is None else bound.at_least,
                at_most=None if bound is None else bound.at_most,
                holds=not faults,
            )
        )
    have = {number.name for number in numbers}
    for name in bounds:
        if name not in have:
            yield found("chain.number-missing", stage=planned.stage, file=file, pointer="/numbers", expected=name)
    return tuple(judged)


def compare_reported(
    reported: Sequence[StageNumber], numbers: Sequence[Number], *, stage: StageName, file: str
) -> Iterator[Finding]:
    """Where the stage's own numbers are not those that its artifacts give."""
    want = {number.name: number.value for number in numbers}
    have = {number.name: (place, number.value) for place, number in enumerate(reported)}
    for name in sorted(want.keys() | have.keys()):
        place, value = have.get(name, (None, None))
        pointer = "/numbers" if place is None else f"/numbers/{place}/value"
        if name not in want or name not in have or not same_value(want[name], value):
            yield found(
                "chain.number-mismatch",
                stage=stage,
                file=file,
                pointer=pointer,
                expected=f"{name} {_shown(want[name])}" if name in want else f"no {name}",
                actual=f"{name} {_shown(value)}" if name in have else f"no {name}",
            )


def _against(number: Number, bound: Threshold, stage: StageName, file: str) -> Iterator[Finding]:
    value = number.value
    if value is None or not math.isfinite(value):
        yield found("chain.threshold-missed", stage=stage, file=file, pointer=number.name, actual="no value")
    elif bound.at_least is not None and not value >= bound.at_least:
        want = f"at least {bound.at_least:g}"
        yield found(
            "chain.threshold-missed", stage=stage, file=file, pointer=number.name, expected=want, actual=f"{value:.9g}"
        )
    elif bound.at_most is not None and not value <= bound.at_most:
        want = f"at most {bound.at_most:g}"
        yield found(
            "chain.threshold-missed", stage=stage, file=file, pointer=number.name, expected=want, actual=f"{value:.9g}"
        )
    if STRENGTH.index(number.standing) < STRENGTH.index(bound.standing):
        yield found(
            "chain.standing-too-low",
            stage=stage,
            file=file,
            pointer=number.name,
            expected=bound.standing,
            actual=number.standing,
        )


def same_value(want: float | None, have: float | None) -> bool:
    """Whether two machines may have come to these: the last bits of a sum depend on the processor's instructions."""
    if want is None or have is None or not math.isfinite(want):
        return (want is None or not math.isfinite(want)) and have is None
    return abs(want - have) <= max(_SAME * abs(want), _SAME_ERROR)


def _shown(value: float | None) -> str:
    return "null" if value is None else f"{value:.12g}"
