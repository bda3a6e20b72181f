"""Bounds come from the plan, and nothing that was not computed, or not well enough, is within them."""

from __future__ import annotations

import math

import pytest

from mint2m_verify.chain.numbers import (
    Number,
    check_planned,
    compare_reported,
    judge,
    required_numbers,
    standard_thresholds,
)
from mint2m_verify.chain.places import ORDER
from mint2m_verify.documents.validation import PlannedStage, StageNumber, Threshold


def _planned(*bounds: Threshold) -> PlannedStage:
    return PlannedStage(stage="nccl", fixture=None, limit_s=1, thresholds=bounds)


def _bound(**changes: object) -> Threshold:
    return Threshold(**{"number": "x", "at_least": None, "at_most": 1.0, "standing": "derived", **changes})  # type: ignore[arg-type]


def _judge(value: float | None, bound: Threshold, standing: str = "derived") -> list[str]:
    found = judge([Number(name="x", value=value, standing=standing)], _planned(bound), file="f")  # type: ignore[arg-type]
    return [fault.id for fault in found]


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_a_value_within_its_bound_has_no_finding(value: float) -> None:
    assert _judge(value, _bound()) == []


@pytest.mark.parametrize("value", [1.0000001, math.inf, math.nan, None])
def test_a_value_beyond_its_bound_or_without_a_value_misses_it(value: float | None) -> None:
    assert _judge(value, _bound()) == ["chain.threshold-missed"]
    assert _judge(None if value is None else -value, _bound(at_least=-1.0, at_most=None)) == ["chain.threshold-missed"]


def test_a_weaker_standing_than_planned_is_told_even_where_the_value_is_good() -> None:
    assert _judge(0.0, _bound(), standing="attested-only") == ["chain.standing-too-low"]
    assert _judge(0.0, _bound(standing="replayed"), standing="checked") == ["chain.standing-too-low"]
    assert _judge(0.0, _bound(standing="derived"), standing="replayed") == []


def test_a_bounded_number_that_was_not_computed_is_told() -> None:
    assert [fault.id for fault in judge([], _planned(_bound()), file="f")] == ["chain.number-missing"]


@pytest.mark.parametrize("stage", ORDER)
def test_a_plan_that_leaves_any_number_of_a_stage_open_judges_nothing(stage: str) -> None:
    whole = standard_thresholds(stage, world_size=2, tokens=64)  # type: ignore[arg-type]
    assert required_numbers(stage) and len(required_numbers(stage)) == len(set(required_numbers(stage)))  # type: ignore[arg-type]
    for left_out in range(len(whole)):
        bounds = (*whole[:left_out], *whole[left_out + 1 :])
        planned = PlannedStage(stage=stage, fixture=None, limit_s=1, thresholds=bounds)  # type: ignore[arg-type]
        faults = list(check_planned(planned, file="f", index=0))
        assert [fault.id for fault in faults] == ["validation-plan.unbounded"]
        assert whole[left_out].number in (faults[0].expected or "")


def test_a_bound_of_nothing_and_a_second_bound_are_told() -> None:
    whole = standard_thresholds("nccl", world_size=2, tokens=None)
    twice = _planned(*whole, whole[0])
    empty = _planned(Threshold(number=whole[0].number, at_least=None, at_most=None, standing="derived"), *whole[1:])
    assert {f.id for f in check_planned(twice, file="f", index=0)} == {"validation-plan.unbounded"}
    assert {f.id for f in check_planned(empty, file="f", index=0)} == {"validation-plan.unbounded"}


@pytest.mark.parametrize(
    ("reported", "ids"),
    [
        ([("a", 1.0), ("b", None)], []),
        ([("a", 1.0 + 1e-12), ("b", None)], []),
        ([("a", 1.0 + 1e-6), ("b", None)], ["chain.number-mismatch"]),
        ([("a", None), ("b", None)], ["chain.number-mismatch"]),
        ([("b", None)], ["chain.number-mismatch"]),
        ([("a", 1.0), ("b", 0.0)], ["chain.number-mismatch"]),
        ([("a", 1.0), ("b", None), ("c", 2.0)], ["chain.number-mismatch"]),
    ],
)
def test_a_reported_number_is_the_recomputed_one_or_is_told(
    reported: list[tuple[str, float | None]], ids: list[str]
) -> None:
    numbers = [
        Number(name="a", value=1.0, standing="derived"),
        Number(name="b", value=math.inf, standing="derived"),
    ]
    have = [StageNumber(name=name, value=value) for name, value in reported]
    assert [fault.id for fault in compare_reported(have, numbers, stage="nccl", file="f")] == ids
