"""Sparse attention against dense softmax attention in float64, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mint2m_trainer.kernels import SparseAttention, TorchKernels

T, S, H, D, R, K = 11, 17, 3, 6, 4, 5
SCALE = 0.37


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q [T, H, D], rows [S, D], distinct idx [T, K], ok [T, K] with at least one slot a query."""
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(T, H, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    rows = torch.randn(S, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    idx = torch.stack([torch.randperm(S, generator=generator)[:K] for _ in range(T)])
    ok = torch.rand(T, K, generator=generator) < 0.7
    ok[:, 0] = True
    return q, rows, idx, ok


def dense(q: Tensor, rows: Tensor, idx: Tensor, ok: Tensor) -> Tensor:
    """Attention over all rows with a mask, by plain autograd."""
    mask = torch.full((T, S), float("-inf"), dtype=q.dtype)
    for t in range(T):
        mask[t, idx[t][ok[t]]] = 0.0
    weights = (torch.einsum("thd,sd->ths", q, rows) * SCALE + mask[:, None]).softmax(-1)
    return torch.einsum("ths,sr->thr", weights, rows[:, :R])


@pytest.mark.parametrize("query_tile", [1, 4, 100])
def test_output_and_gradients_equal_dense_attention(query_tile: int) -> None:
    q, rows, idx, ok = problem()
    out = SparseAttention.apply(q, rows, idx, ok, SCALE, R, TorchKernels(query_tile=query_tile))
    want = dense(q, rows, idx, ok)
    weight = torch.randn(T, H, R, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    got = torch.autograd.grad((out * weight).sum(), (q, rows))
    right = torch.autograd.grad((want * weight).sum(), (q, rows))
    torch.testing.assert_close(out, want, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(got[0], right[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got[1], right[1], rtol=1e-12, atol=1e-12)


def test_backward_passes_finite_differences() -> None:
    q, rows, idx, ok = problem()
    kernels = TorchKernels(query_tile=3)
    assert torch.autograd.gradcheck(
        lambda a, b: SparseAttention.apply(a, b, idx, ok, SCALE, R, kernels), (q, rows), eps=1e-6, atol=1e-7
    )


def test_the_log_sum_exp_is_that_of_the_kept_scores() -> None:
    q, rows, idx, ok = problem()
    _, lse = TorchKernels(query_tile=4).attend(q.detach(), rows.detach(), idx, ok, SCALE, R)
    for t in range(T):
        kept = rows.detach()[idx[t][ok[t]]]
        want = torch.logsumexp(q.detach()[t] @ kept.T * SCALE, dim=-1)
        torch.testing.assert_close(lse[t], want, rtol=1e-13, atol=1e-13)


def test_what_an_empty_slot_points_to_changes_nothing() -> None:
    q, rows, idx, ok = problem()
    kernels = TorchKernels(query_tile=4)
    moved = torch.where(ok, idx, (idx + 1) % S)
    one = SparseAttention.apply(q, rows, idx, ok, SCALE, R, kernels)
    other = SparseAttention.apply(q, rows, moved, ok, SCALE, R, kernels)
    assert torch.equal(one, other)
    for a, b in zip(
        torch.autograd.grad(one.sum(), (q, rows)), torch.autograd.grad(other.sum(), (q, rows)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)


def test_float32_stays_near_float64() -> None:
    exact = SparseAttention.apply(*problem(), SCALE, R, TorchKernels(query_tile=4))
    single = SparseAttention.apply(*problem(torch.float32), SCALE, R, TorchKernels(query_tile=4))
    torch.testing.assert_close(single.double(), exact, rtol=2e-6, atol=2e-6)


def test_backward_keeps_no_gathered_rows() -> None:
    q, rows, idx, ok = problem()
    saved: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        SparseAttention.apply(q, rows, idx, ok, SCALE, R, TorchKernels(query_tile=4))
    assert (T, K, D) not in saved
    assert max(torch.Size(shape).numel() for shape in saved) <= max(T * H * D, S * D, T * K)
