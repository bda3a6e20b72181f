"""The kernel stage's references: against a brute force, finite differences, and never the same inputs twice."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mint2m_verify.chain import kernel_cases as cases

ONE, OTHER = "1" * 64, "2" * 64


@pytest.mark.parametrize("name", sorted(cases.TOPK))
def test_selection_keeps_the_best_visible_rows_in_order_and_breaks_ties_by_position(name: str) -> None:
    case, inputs = cases.TOPK[name], cases.topk_inputs(name, ONE)
    result = cases.topk_reference(inputs, case.keep)
    for t in range(case.queries):
        scored = []
        for s in range(case.rows):
            if s <= inputs.qpos[t]:
                score = sum(
                    inputs.w[t, h] * max(0.0, float(np.dot(inputs.q[t, h], inputs.keys[s]))) for h in range(case.heads)
                )
                scored.append((-score, s))
        best = sorted(scored)[: case.keep]
        assert [int(p) for p in result.positions[t][: len(best)]] == [s for _, s in best]
        assert [float(v) for v in result.scores[t][: len(best)]] == [-score for score, _ in best]
        assert set(result.positions[t][len(best) :]) <= {-1}


def test_cases_have_real_ties_at_the_cut_and_rows_that_no_query_may_see() -> None:
    tied = hidden = 0
    for name, case in cases.TOPK.items():
        inputs = cases.topk_inputs(name, ONE)
        longer = cases.topk_reference(inputs, case.keep + 1).scores
        tied += int(np.sum(longer[:, case.keep - 1] == longer[:, case.keep]))
        hidden += int(np.sum(inputs.qpos < case.rows - 1))
    assert tied > 20 and hidden > 20


@pytest.mark.parametrize("name", sorted(cases.TOPK))
def test_every_number_of_a_selection_is_exact_in_float32(name: str) -> None:
    inputs = cases.topk_inputs(name, ONE)
    result = cases.topk_reference(inputs, cases.TOPK[name].keep)
    for values in (inputs.q, inputs.w, inputs.keys, result.scores):
        assert np.array_equal(values, values.astype(np.float32))


@pytest.mark.parametrize("name", sorted(cases.ATTEND))
def test_the_gradient_of_attention_is_that_of_finite_differences(name: str) -> None:
    case, inputs = cases.ATTEND[name], cases.attend_inputs(name, ONE)
    result = cases.attend_reference(inputs, case)

    def objective(q: np.ndarray, rows: np.ndarray) -> float:
        moved = cases.AttendInputs(q=q, rows=rows, idx=inputs.idx, ok=inputs.ok, grad=inputs.grad)
        return float(np.sum(cases.attend_reference(moved, case).out * inputs.grad))

    step = 1e-6
    draw = np.random.default_rng(0)
    for array, gradient in ((inputs.q, result.grad_q), (inputs.rows, result.grad_rows)):
        for _ in range(12):
            at = tuple(int(draw.integers(size)) for size in array.shape)
            up, down = array.copy(), array.copy()
            up[at] += step
            down[at] -= step
            sides = (
                [(up, inputs.rows), (down, inputs.rows)] if array is inputs.q else [(inputs.q, up), (inputs.q, down)]
            )
            slope = (objective(*sides[0]) - objective(*sides[1])) / (2 * step)
            assert slope == pytest.approx(gradient[at], rel=1e-4, abs=1e-5)


def test_inputs_are_those_of_one_execution() -> None:
    for name in cases.ATTEND:
        one, again, other = (cases.attend_inputs(name, execution) for execution in (ONE, ONE, OTHER))
        assert np.array_equal(one.q, again.q) and not np.array_equal(one.q, other.q)
    for name in cases.TOPK:
        one_t, other_t = cases.topk_inputs(name, ONE), cases.topk_inputs(name, OTHER)
        assert not np.array_equal(one_t.q, other_t.q)


def test_selected_rows_are_distinct_unless_a_case_repeats_them() -> None:
    for (name, case), row in itertools.product(cases.ATTEND.items(), (0, -1)):
        idx = cases.attend_inputs(name, ONE).idx[row]
        assert case.repeated or len(set(idx)) == len(idx)
        assert idx.min() >= 0 and idx.max() < case.rows
