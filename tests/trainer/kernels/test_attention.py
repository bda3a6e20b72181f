"""Sparse attention against brute force in float64, forward and backward, within bounds derived from the arithmetic."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from mint2m_trainer.kernels import KernelError, Kernels, TorchKernels
from mint2m_trainer.kernels.cpu import CpuKernels

Made = Callable[..., Kernels]

T, S, H, D, R, K = 11, 17, 3, 6, 4, 5
SCALE = 0.37
#: Half the distance from 1 to the next float32: the relative error of one rounding.
UNIT = 2.0**-24
#: The least normal float32; a weight below it may come out as zero.
SMALLEST = 2.0**-126


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    q: Tensor  # [T, H, D]
    rows: Tensor  # [S, D]
    idx: Tensor  # [T, K], distinct unless a test says otherwise
    ok: Tensor  # [T, K]
    grad: Tensor  # [T, H, R]
    scale: float = SCALE


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Results in float64, and how far float32 may be off each of them."""

    out: Tensor
    lse: Tensor
    grad_q: Tensor
    grad_rows: Tensor
    out_bound: Tensor
    lse_bound: Tensor
    grad_q_bound: Tensor
    grad_rows_bound: Tensor


def problem(
    dtype: torch.dtype = torch.float64,
    *,
    shape: tuple[int, int, int, int, int, int] = (T, S, H, D, R, K),
    kept: float = 0.7,
    scale: float = SCALE,
) -> Problem:
    queries, rows, heads, width, value_width, slots = shape
    generator = torch.Generator().manual_seed(5)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    ok = torch.rand(queries, slots, generator=generator) < kept
    ok[:, 0] = True
    return Problem(
        q=normal(queries, heads, width),
        rows=normal(rows, width),
        idx=torch.stack([torch.randperm(rows, generator=generator)[:slots] for _ in range(queries)]),
        ok=ok,
        grad=normal(queries, heads, value_width),
        scale=scale,
    )


def brute_force(p: Problem) -> Exact:
    """One query and head at a time, softmax and its derivative written out; bounds are first order in `UNIT`.

    A sum of n products is off by at most n + 1 roundings of the sum of magnitudes (Higham, Accuracy and Stability,
    section 3.1), an exponential by 2 ulp. A score off by e makes a weight off by the factor 1 + 2e, sum included.
    """
    q, rows, grad = p.q.double(), p.rows.double(), p.grad.double()
    queries, heads, width = q.shape
    value_width = grad.shape[2]
    out, lse = torch.zeros(queries, heads, value_width).double(), torch.full((queries, heads), -torch.inf).double()
    grad_q, grad_rows = torch.zeros_like(q), torch.zeros_like(rows)
    out_b, lse_b = torch.zeros_like(out), torch.zeros_like(lse)
    grad_q_b, grad_rows_b = torch.zeros_like(q), torch.zeros_like(rows)
    touched = torch.zeros(rows.shape[0])
    for t in range(queries):
        ids = p.idx[t][p.ok[t]]
        n = ids.numel()
        if n == 0:
            continue
        chosen = rows[ids]  # [n, D]
        values = chosen[:, :value_width]
        touched.index_add_(0, ids, torch.full((n,), float(2 * heads)))
        for h in range(heads):
            scores = chosen @ q[t, h] * p.scale  # [n]
            lse[t, h] = torch.logsumexp(scores, 0)
            weight = (scores - lse[t, h]).exp()
            out[t, h] = weight @ values
            pull = values @ grad[t, h]  # [n]
            slope = weight * (pull - weight @ pull) * p.scale
            grad_q[t, h] = slope @ chosen
            row_grad = torch.outer(slope, q[t, h])
            row_grad[:, :value_width] += torch.outer(weight, grad[t, h])
            grad_rows.index_add_(0, ids, row_grad)

            size = chosen.abs() @ q[t, h].abs() * abs(p.scale)  # [n]
            score_b = (width + 3) * UNIT * size + UNIT * (scores.abs() + lse[t, h].abs())
            lse_b[t, h] = score_b.max() + (n + 6) * UNIT + 2 * UNIT * lse[t, h].abs()
            weight_b = weight * (score_b + lse_b[t, h] + (n + 6) * UNIT) + SMALLEST
            out_b[t, h] = weight_b @ values.abs() + (n + 3) * UNIT * (weight @ values.abs())
            pull_size = values.abs() @ grad[t, h].abs()
            mean_b = out_b[t, h] @ grad[t, h].abs() + (value_width + 3) * UNIT * (out[t, h].abs() @ grad[t, h].abs())
            pull_b = (value_width + 3) * UNIT * pull_size
            distance = (pull - weight @ pull).abs()
            slope_b = abs(p.scale) * (weight_b * distance + weight * (pull_b + mean_b)) + 4 * UNIT * slope.abs()
            grad_q_b[t, h] = slope_b @ chosen.abs() + (n + 3) * UNIT * (slope.abs() @ chosen.abs())
            row_b = torch.outer(slope_b, q[t, h].abs())
            row_b[:, :value_width] += torch.outer(weight_b, grad[t, h].abs())
            row_size = torch.outer(slope.abs(), q[t, h].abs())
            row_size[:, :value_width] += torch.outer(weight, grad[t, h].abs())
            grad_rows_b.index_add_(0, ids, row_b + (queries * 2 * heads + 3) * UNIT * row_size)
    return Exact(
        out=out,
        lse=lse,
        grad_q=grad_q,
        grad_rows=grad_rows,
        out_bound=out_b,
        lse_bound=lse_b,
        grad_q_bound=grad_q_b,
        grad_rows_bound=grad_rows_b,
    )


def run(kernels: Kernels, p: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, lse = kernels.attend(p.q, p.rows, p.idx, p.ok, p.scale, p.grad.shape[2])
    return out, lse, *kernels.attend_backward(p.q, p.rows, p.idx, p.ok, p.scale, out, lse, p.grad)


def within(found: Tensor, right: Tensor, bound: Tensor) -> None:
    off = (found.double() - right).abs()
    assert (off <= bound).all(), f"off by {(off / bound.clamp(min=1e-300)).max():.2f} times the bound"


SHAPES = [
    (T, S, H, D, R, K),
    (3, 200, 1, 16, 16, 64),  # one whole block
    (5, 300, 5, 20, 16, 150),  # blocks that are not whole, heads and widths that fill no vector
    (2, 90, 8, 48, 32, 65),
    (1, 1, 1, 1, 1, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("query_tile", [2, 100])
def test_output_log_sum_exp_and_gradients_are_those_of_float64(
    made: Made, shape: tuple[int, int, int, int, int, int], query_tile: int
) -> None:
    p = problem(torch.float32, shape=shape)
    right = brute_force(p)
    out, lse, grad_q, grad_rows = run(made(query_tile=query_tile), p)
    within(out, right.out, right.out_bound)
    within(lse, right.lse, right.lse_bound)
    within(grad_q, right.grad_q, right.grad_q_bound)
    within(grad_rows, right.grad_rows, right.grad_rows_bound)


def test_in_float64_the_torch_kernels_are_brute_force_to_twelve_digits() -> None:
    p = problem()
    right = brute_force(p)
    for found, want in zip(
        run(TorchKernels(query_tile=4), p), (right.out, right.lse, right.grad_q, right.grad_rows), strict=True
    ):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


class _Attention(torch.autograd.Function):
    """The two kernels as one operation that autograd can check."""

    KERNELS = TorchKernels(query_tile=3)

    @classmethod
    def forward(cls, ctx: Any, q: Tensor, rows: Tensor, p: Problem) -> Tensor:
        out, lse = cls.KERNELS.attend(q, rows, p.idx, p.ok, SCALE, R)
        ctx.save_for_backward(q, rows, out, lse)
        ctx.problem = p
        return out

    @classmethod
    def backward(cls, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, rows, out, lse = ctx.saved_tensors
        p = ctx.problem
        return *cls.KERNELS.attend_backward(q, rows, p.idx, p.ok, SCALE, out, lse, grad), None


def test_backward_passes_finite_differences() -> None:
    p = problem()
    q, rows = p.q.requires_grad_(), p.rows.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: _Attention.apply(a, b, p), (q, rows), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("scale", [300.0, -300.0])
def test_scores_of_thousands_neither_overflow_nor_lose_the_greatest(made: Made, scale: float) -> None:
    p = problem(torch.float32, shape=(4, 200, 2, 16, 8, 130), scale=scale)
    right = brute_force(p)
    assert right.lse.abs().max() > 1000
    out, lse, grad_q, grad_rows = run(made(query_tile=3), p)
    for found, want, bound in (
        (out, right.out, right.out_bound),
        (lse, right.lse, right.lse_bound),
        (grad_q, right.grad_q, right.grad_q_bound),
        (grad_rows, right.grad_rows, right.grad_rows_bound),
    ):
        assert torch.isfinite(found).all()
        # Past first order: a score of 1,000s is off by up to a thousandth, and exp(x) - 1 < 1.1 x there.
        within(found, want, 1.1 * bound)


def test_a_query_without_rows_gives_zero_and_no_weight_in_a_merge(made: Made) -> None:
    p = problem(torch.float32)
    p.ok[4] = False
    right = brute_force(p)
    out, lse, grad_q, grad_rows = run(made(query_tile=3), p)
    assert not out[4].any()
    assert (lse[4] == -torch.inf).all()
    assert not grad_q[4].any()
    within(out, right.out, right.out_bound)
    within(grad_rows, right.grad_rows, right.grad_rows_bound)


def test_a_row_named_twice_counts_twice(made: Made) -> None:
    p = problem(torch.float32)
    p.idx[:, 1] = p.idx[:, 0]
    p.ok[:, 1] = True
    right = brute_force(p)
    out, _, grad_q, grad_rows = run(made(query_tile=3), p)
    within(out, right.out, right.out_bound)
    within(grad_q, right.grad_q, right.grad_q_bound)
    within(grad_rows, right.grad_rows, right.grad_rows_bound)


def test_what_an_empty_slot_points_to_changes_nothing(made: Made) -> None:
    p = problem(torch.float32)
    other = Problem(
        q=p.q, rows=p.rows, idx=torch.where(p.ok, p.idx, (p.idx + 1) % S), ok=p.ok, grad=p.grad, scale=p.scale
    )
    kernels = made(query_tile=4)
    for one, two in zip(run(kernels, p), run(kernels, other), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-7)


def test_an_empty_slot_may_point_outside_or_to_a_row_of_nan() -> None:
    """The compiled kernels do not read what does not count."""
    p = problem(torch.float32)
    free = [row for row in range(S) if not (p.idx[p.ok] == row).any()]
    kernels = CpuKernels(query_tile=4)
    want = run(kernels, p)
    p.idx[~p.ok] = 10**6
    if free:
        p.rows[free] = float("nan")
    for one, two in zip(run(kernels, p), want, strict=True):
        assert torch.equal(one, two)


def test_neither_the_tile_nor_the_other_queries_nor_the_table_show_in_a_querys_bits() -> None:
    p = problem(torch.float32, shape=(13, 300, 5, 20, 16, 150))
    out, lse, grad_q, _ = run(CpuKernels(query_tile=100), p)
    table = torch.cat([torch.ones(7, 20), p.rows, torch.zeros(3, 20)])
    for first, count in ((0, 1), (3, 4), (9, 4)):
        part = slice(first, first + count)
        alone = Problem(q=p.q[part], rows=table, idx=p.idx[part] + 7, ok=p.ok[part], grad=p.grad[part])
        found = run(CpuKernels(query_tile=3), alone)
        assert torch.equal(found[0], out[part])
        assert torch.equal(found[1], lse[part])
        assert torch.equal(found[2], grad_q[part])


def test_rows_gather_gradient_in_the_order_of_queries_whatever_the_tile() -> None:
    p = problem(torch.float32, shape=(40, 9, 2, 12, 8, 7))
    whole = run(CpuKernels(query_tile=100), p)[3]
    for query_tile in (1, 7):
        assert torch.equal(run(CpuKernels(query_tile=query_tile), p)[3], whole)


def test_bfloat16_is_widened_and_rounded_once_at_the_end(made: Made) -> None:
    p = problem(torch.bfloat16, shape=(5, 300, 5, 20, 16, 150))
    right = brute_force(p)
    out, lse, grad_q, grad_rows = run(made(query_tile=3), p)
    assert (out.dtype, lse.dtype, grad_q.dtype, grad_rows.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.bfloat16,
        torch.float32,
    )
    within(lse, right.lse, right.lse_bound)
    within(out, right.out, right.out_bound + 2.0**-8 * right.out.abs())
    # Backward sees the rounded output: the mean that it subtracts moves by what rounding moved.
    moved = 2.0**-8 * (right.out.abs() * p.grad.double().abs()).sum(-1, keepdim=True) * SCALE
    reach = p.rows.double().abs().max()
    within(grad_q, right.grad_q, right.grad_q_bound + 2.0**-8 * right.grad_q.abs() + moved * reach)


def test_a_nan_stays_in_its_query(made: Made) -> None:
    p = problem(torch.float32)
    p.q[2] = float("nan")
    out, lse, grad_q, _ = run(made(query_tile=4), p)
    for found in (out, lse, grad_q):
        assert found[2].isnan().all()
        assert torch.isfinite(torch.cat([found[:2], found[3:]])).all()


def test_the_compiled_kernels_refuse_a_row_that_is_not_there_and_types_they_do_not_compute() -> None:
    p = problem(torch.float32)
    for outside in (-1, S):
        p.idx[3, 0] = outside
        with pytest.raises(KernelError, match="query 3"):
            CpuKernels(query_tile=2).attend(p.q, p.rows, p.idx, p.ok, SCALE, R)
    with pytest.raises(KernelError, match="float64"):
        CpuKernels(query_tile=2).attend(p.q.double(), p.rows, p.idx, p.ok, SCALE, R)


MEMORY = """
import resource, torch
from mint2m_trainer.kernels.cpu import CpuKernels
T, S, H, D, R, K = 8192, 4096, 2, 48, 32, 64
q, rows, grad = torch.randn(T, H, D), torch.randn(S, D), torch.randn(T, H, R)
idx, ok = torch.randint(0, S, (T, K)), torch.ones(T, K, dtype=torch.bool)
kernels = CpuKernels(query_tile=64)
out, lse = kernels.attend(q[:64], rows, idx[:64], ok[:64], 0.1, R)
kernels.attend_backward(q[:64], rows, idx[:64], ok[:64], 0.1, out, lse, grad[:64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out, lse = kernels.attend(q, rows, idx, ok, 0.1, R)
results = kernels.attend_backward(q, rows, idx, ok, 0.1, out, lse, grad)
kept = sum(tensor.numel() * 4 for tensor in (out, lse, *results))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - kept)
"""


def test_attention_of_8192_queries_takes_a_tile_besides_its_results() -> None:
    """All gathered rows would be 100 MB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 2 * 2**20
