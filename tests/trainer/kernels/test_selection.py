"""Selection against brute force in Python integers and float64, ties and blocks included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mint2m_trainer.kernels import KeyBlock, TorchKernels
from mint2m_trainer.kernels.reference import index_scores, select


def brute_force(q: Tensor, w: Tensor, keys: Tensor, qpos: Tensor, k: int) -> list[list[int]]:
    """The rule itself: Python's sort over (score descending, position ascending), float64 scores."""
    chosen = []
    for t in range(q.shape[0]):
        scores = []
        for s in range(int(qpos[t]) + 1):
            if s >= keys.shape[0]:
                break
            score = 0.0
            for h in range(q.shape[1]):
                score += float(w[t, h]) * max(float(q[t, h].double() @ keys[s].double()), 0.0)
            scores.append((-(score + 0.0), s))
        scores.sort()
        kept = [s for _, s in scores[:k]]
        chosen.append(kept + [-1] * (k - len(kept)))
    return chosen


def small_integers(*shape: int, seed: int) -> Tensor:
    """Values in -2..2: every product and sum is exact, so scores tie massively and without rounding."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def blocks_of(keys: Tensor, sizes: list[int]) -> list[KeyBlock]:
    blocks, start = [], 0
    for size in sizes:
        blocks.append(KeyBlock(start=start, keys=keys[start : start + size]))
        start += size
    assert start == keys.shape[0]
    return blocks


@pytest.mark.parametrize("sizes", [[40], [1, 39], [13, 13, 14], [0, 20, 0, 20]])
@pytest.mark.parametrize("query_tile", [1, 7, 64])
def test_any_cut_of_the_rows_selects_what_the_rule_says_under_massive_ties(sizes: list[int], query_tile: int) -> None:
    q, w, keys = small_integers(12, 2, 3, seed=1), small_integers(12, 2, seed=2), small_integers(40, 3, seed=3)
    qpos = torch.arange(28, 40)
    want = brute_force(q, w, keys, qpos, 9)
    found = TorchKernels(query_tile=query_tile).topk(q, w, blocks_of(keys, sizes), qpos, 9)
    assert found.positions.tolist() == want


def test_blocks_in_another_order_select_the_same() -> None:
    q, w, keys = small_integers(6, 2, 3, seed=4), small_integers(6, 2, seed=5), small_integers(30, 3, seed=6)
    qpos = torch.arange(24, 30)
    kernels = TorchKernels(query_tile=4)
    forward = kernels.topk(q, w, blocks_of(keys, [10, 10, 10]), qpos, 7)
    backward = kernels.topk(q, w, blocks_of(keys, [10, 10, 10])[::-1], qpos, 7)
    assert torch.equal(forward.positions, backward.positions)
    assert torch.equal(forward.scores, backward.scores)


def test_all_scores_zero_keep_the_lowest_positions() -> None:
    q, w, keys = torch.zeros(3, 2, 4), torch.ones(3, 2), small_integers(20, 4, seed=7)
    found = TorchKernels(query_tile=8).topk(q, w, blocks_of(keys, [7, 13]), torch.tensor([2, 9, 19]), 5)
    assert found.positions.tolist() == [[0, 1, 2, -1, -1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_negative_zero_ties_with_zero() -> None:
    scores, columns = select(torch.tensor([[-0.0, 0.0, -0.0, 0.0, -1.0]]), 3)
    assert columns.tolist() == [[0, 1, 2]]
    assert not torch.signbit(scores).any()


def test_a_negative_weight_on_a_dead_head_scores_positive_zero() -> None:
    score = index_scores(torch.tensor([[[-1.0]]]), torch.tensor([[-3.0]]), torch.tensor([[2.0]]))
    assert score.tolist() == [[0.0]]
    assert not torch.signbit(score).any()


def test_a_query_never_sees_a_later_row() -> None:
    q, w = torch.ones(4, 1, 1), torch.ones(4, 1)
    keys = torch.arange(1.0, 11.0).unsqueeze(1)  # the later, the higher
    found = TorchKernels(query_tile=2).topk(q, w, blocks_of(keys, [5, 5]), torch.tensor([0, 3, 6, 9]), 2)
    assert found.positions.tolist() == [[0, -1], [3, 2], [6, 5], [9, 8]]


def test_fewer_rows_than_slots_leave_empty_slots_at_the_end() -> None:
    q, w, keys = torch.ones(1, 1, 1), torch.ones(1, 1), torch.tensor([[1.0], [2.0]])
    found = TorchKernels(query_tile=1).topk(q, w, blocks_of(keys, [2]), torch.tensor([1]), 4)
    assert found.positions.tolist() == [[1, 0, -1, -1]]
    assert found.scores[0, 2:].tolist() == [float("-inf")] * 2


def test_random_scores_agree_with_a_full_stable_sort() -> None:
    scores = torch.randn(50, 300, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    scores[:, ::3] = 0.0
    want = scores.sort(dim=-1, descending=True, stable=True)
    kept, columns = select(scores, 120)
    assert torch.equal(columns, want.indices[:, :120])
    assert torch.equal(kept, want.values[:, :120])
