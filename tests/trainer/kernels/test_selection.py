"""Selection against brute force in Python integers and against a numpy left fold, ties and blocks included."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mint2m_trainer.kernels import Candidates, KernelError, Kernels, KeyBlock, TorchKernels
from mint2m_trainer.kernels.cpu import CpuKernels
from mint2m_trainer.kernels.reference import index_scores, select

Made = Callable[..., Kernels]


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


def left_fold(q: Tensor, w: Tensor, keys: Tensor) -> np.ndarray:
    """Scores [T, S] in numpy float32: every product rounded, then added, in the order that the interface states."""
    a, b, c = (x.float().numpy() for x in (q, w, keys))
    total = np.zeros((a.shape[0], c.shape[0]), np.float32)
    for head in range(a.shape[1]):
        dot = np.zeros_like(total)
        for column in range(a.shape[2]):
            dot = dot + a[:, head, column : column + 1] * c[:, column]
        total = total + b[:, head : head + 1] * np.maximum(dot, np.float32(0))
    return total


def small_integers(*shape: int, seed: int) -> Tensor:
    """Values in -2..2: every product and sum is exact, so scores tie massively and without rounding."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def blocks_of(keys: Tensor, sizes: list[int]) -> list[KeyBlock]:
    blocks, start = [], 0
    for size in sizes:
        blocks.append(KeyBlock(start=start, keys=keys[start : start + size]))
        start += size
    assert start == keys.shape[0]
    return blocks


def cut(rows: int, size: int) -> list[int]:
    return [min(size, rows - start) for start in range(0, rows, size)]


def same(one: Candidates, other: Candidates) -> bool:
    return torch.equal(one.positions, other.positions) and torch.equal(
        one.scores.view(torch.int32), other.scores.view(torch.int32)
    )


@pytest.mark.parametrize("sizes", [[40], [1, 39], [13, 13, 14], [0, 20, 0, 20]])
@pytest.mark.parametrize("query_tile", [1, 7, 64])
def test_any_cut_of_the_rows_selects_what_the_rule_says_under_massive_ties(
    made: Made, sizes: list[int], query_tile: int
) -> None:
    q, w, keys = small_integers(12, 2, 3, seed=1), small_integers(12, 2, seed=2), small_integers(40, 3, seed=3)
    qpos = torch.arange(28, 40)
    want = brute_force(q, w, keys, qpos, 9)
    found = made(query_tile=query_tile).topk(q, w, blocks_of(keys, sizes), qpos, 9)
    assert found.positions.tolist() == want


@pytest.mark.parametrize("k", [1, 8, 200, 700, 1500])
def test_many_rows_of_which_most_tie_are_kept_by_position(made: Made, k: int) -> None:
    """1,200 rows, so that pools are cut back more than once; above half of the scores are exactly zero."""
    q, w, keys = small_integers(3, 1, 2, seed=11), torch.ones(3, 1), small_integers(1200, 2, seed=12)
    q[0] = 0.0  # every score of the first query ties
    qpos = torch.tensor([1199, 1199, 900])
    assert (left_fold(q, w, keys) == 0.0).mean() > 0.5
    want = brute_force(q, w, keys, qpos, k)
    for size in (1200, 333):
        found = made(query_tile=2).topk(q, w, blocks_of(keys, cut(1200, size)), qpos, k)
        assert found.positions.tolist() == want
        back = made(query_tile=2).topk(q, w, blocks_of(keys, cut(1200, size))[::-1], qpos, k)
        assert back.positions.tolist() == want


def test_blocks_in_another_order_select_the_same(made: Made) -> None:
    q, w, keys = small_integers(6, 2, 3, seed=4), small_integers(6, 2, seed=5), small_integers(30, 3, seed=6)
    qpos = torch.arange(24, 30)
    kernels = made(query_tile=4)
    forward = kernels.topk(q, w, blocks_of(keys, [10, 10, 10]), qpos, 7)
    backward = kernels.topk(q, w, blocks_of(keys, [10, 10, 10])[::-1], qpos, 7)
    assert same(forward, backward)


@pytest.mark.parametrize("shape", [(37, 1, 16, 1000), (5, 3, 5, 300), (9, 2, 32, 700)])
def test_scores_are_the_left_fold_bit_for_bit_and_the_order_is_its_stable_sort(
    made: Made, shape: tuple[int, int, int, int]
) -> None:
    queries, heads, width, rows = shape
    q, w, keys = normal(queries, heads, width, seed=21), normal(queries, heads, seed=22), normal(rows, width, seed=23)
    scores = left_fold(q, w, keys)
    qpos = torch.full((queries,), rows)
    want = np.argsort(-scores, axis=1, kind="stable")[:, :60]
    found = made(query_tile=16).topk(q, w, blocks_of(keys, [rows]), qpos, 60)
    assert np.array_equal(found.positions.numpy(), want)
    kept = np.take_along_axis(scores, want, axis=1)
    assert np.array_equal(found.scores.numpy().view(np.int32), kept.view(np.int32))


@pytest.mark.parametrize("width", [16, 20])
def test_a_score_has_the_same_bits_in_a_block_of_one_row_and_of_all(made: Made, width: int) -> None:
    """Blocks of 1, 7 and 50 rows, queries alone and by threes: a matrix product differs in the last bit."""
    q, w, keys = normal(24, 2, width, seed=31), normal(24, 2, seed=32), normal(60, width, seed=33)
    qpos = torch.arange(36, 60)
    whole = made(query_tile=64).topk(q, w, blocks_of(keys, [60]), qpos, 60)
    for size, query_tile in ((1, 64), (7, 64), (50, 5)):
        assert same(whole, made(query_tile=query_tile).topk(q, w, blocks_of(keys, cut(60, size)), qpos, 60)), size
    for count in (1, 3):
        for first in (0, 16):
            part = slice(first, first + count)
            alone = made(query_tile=64).topk(q[part], w[part], blocks_of(keys, [60]), qpos[part], 60)
            assert torch.equal(alone.scores, whole.scores[part])
            assert torch.equal(alone.positions, whole.positions[part])


@pytest.mark.parametrize("direction", [-1, 1])
def test_rows_that_only_get_better_or_worse_are_selected_all_the_same(made: Made, direction: int) -> None:
    keys = (torch.arange(5000.0) * direction + 6000.0).unsqueeze(1)
    found = made(query_tile=8).topk(
        torch.ones(2, 1, 1), torch.ones(2, 1), blocks_of(keys, cut(5000, 700)), torch.full((2,), 4999), 300
    )
    best = list(range(4999, 4699, -1)) if direction == 1 else list(range(300))
    assert found.positions.tolist() == [best, best]


def test_the_torch_and_the_compiled_kernels_agree_in_every_bit() -> None:
    q, w, keys = normal(40, 4, 24, seed=41), normal(40, 4, seed=42), normal(2000, 24, seed=43)
    keys[::2] = keys[0]  # ties across the whole range
    qpos = torch.arange(1200, 1240)
    for dtype in (torch.float32, torch.bfloat16):
        a, b = q.to(dtype), keys.to(dtype)
        one = TorchKernels(query_tile=16).topk(a, w, blocks_of(b, [900, 1100]), qpos, 150)
        other = CpuKernels(query_tile=16).topk(a, w, blocks_of(b, [1999, 1]), qpos, 150)
        assert same(one, other)


def test_bfloat16_operands_are_widened_before_anything_is_rounded(made: Made) -> None:
    q, w, keys = normal(7, 2, 8, seed=51).bfloat16(), normal(7, 2, seed=52), normal(90, 8, seed=53).bfloat16()
    scores = left_fold(q, w, keys)
    want = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    found = made(query_tile=4).topk(q, w, blocks_of(keys, [90]), torch.full((7,), 90), 20)
    assert found.scores.dtype == torch.float32
    assert np.array_equal(found.positions.numpy(), want)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_a_visible_score_that_is_not_finite_is_refused_and_an_invisible_one_is_not(made: Made, value: float) -> None:
    q, w, keys = torch.full((3, 1, 2), -2.0), torch.full((3, 1), -3.0), torch.ones(30, 2)
    if not value < 0:
        q = -q  # relu must not hide an infinity
    keys[20] = value
    blocks = blocks_of(keys, [15, 15])
    early = made(query_tile=8).topk(q, w, blocks, torch.tensor([5, 10, 19]), 4)
    assert (early.positions >= 0).all()
    with pytest.raises(KernelError, match="row 20"):
        made(query_tile=8).topk(q, w, blocks, torch.tensor([5, 10, 20]), 4)


@pytest.mark.parametrize("where", ["q", "w"])
def test_a_query_that_is_not_finite_is_refused(made: Made, where: str) -> None:
    q, w, keys = torch.ones(2, 1, 2), torch.ones(2, 1), torch.ones(9, 2)
    (q if where == "q" else w)[1] = float("nan")
    with pytest.raises(KernelError):
        made(query_tile=8).topk(q, w, blocks_of(keys, [9]), torch.tensor([8, 8]), 2)


def test_no_rows_or_only_later_ones_leave_every_slot_empty(made: Made) -> None:
    q, w = torch.ones(2, 1, 3), torch.ones(2, 1)
    for blocks in ([], [KeyBlock(start=0, keys=torch.ones(0, 3))], [KeyBlock(start=5, keys=torch.ones(4, 3))]):
        found = made(query_tile=8).topk(q, w, blocks, torch.tensor([0, 4]), 3)
        assert found.positions.tolist() == [[-1] * 3] * 2
        assert found.scores.tolist() == [[float("-inf")] * 3] * 2


def test_all_scores_zero_keep_the_lowest_positions(made: Made) -> None:
    q, w, keys = torch.zeros(3, 2, 4), torch.ones(3, 2), small_integers(20, 4, seed=7)
    found = made(query_tile=8).topk(q, w, blocks_of(keys, [7, 13]), torch.tensor([2, 9, 19]), 5)
    assert found.positions.tolist() == [[0, 1, 2, -1, -1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_negative_zero_ties_with_zero() -> None:
    scores, columns = select(torch.tensor([[-0.0, 0.0, -0.0, 0.0, -1.0]]), 3)
    assert columns.tolist() == [[0, 1, 2]]
    assert not torch.signbit(scores).any()


def test_a_negative_weight_on_a_dead_head_scores_positive_zero(made: Made) -> None:
    q, w, key = torch.tensor([[[-1.0]]]), torch.tensor([[-3.0]]), torch.tensor([[2.0]])
    score = index_scores(q, w, key)
    assert score.tolist() == [[0.0]]
    assert not torch.signbit(score).any()
    found = made(query_tile=1).topk(q, w, [KeyBlock(start=0, keys=key)], torch.tensor([0]), 1)
    assert not torch.signbit(found.scores).any()


def test_a_query_never_sees_a_later_row(made: Made) -> None:
    q, w = torch.ones(4, 1, 1), torch.ones(4, 1)
    keys = torch.arange(1.0, 11.0).unsqueeze(1)  # the later, the higher
    found = made(query_tile=2).topk(q, w, blocks_of(keys, [5, 5]), torch.tensor([0, 3, 6, 9]), 2)
    assert found.positions.tolist() == [[0, -1], [3, 2], [6, 5], [9, 8]]


def test_fewer_rows_than_slots_leave_empty_slots_at_the_end(made: Made) -> None:
    q, w, keys = torch.ones(1, 1, 1), torch.ones(1, 1), torch.tensor([[1.0], [2.0]])
    found = made(query_tile=1).topk(q, w, blocks_of(keys, [2]), torch.tensor([1]), 4)
    assert found.positions.tolist() == [[1, 0, -1, -1]]
    assert found.scores[0, 2:].tolist() == [float("-inf")] * 2


def test_random_scores_agree_with_a_full_stable_sort() -> None:
    scores = torch.randn(50, 300, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    scores[:, ::3] = 0.0
    want = scores.sort(dim=-1, descending=True, stable=True)
    kept, columns = select(scores, 120)
    assert torch.equal(columns, want.indices[:, :120])
    assert torch.equal(kept, want.values[:, :120])


def test_the_compiled_kernels_refuse_what_they_do_not_compute() -> None:
    q, w, keys = torch.ones(1, 1, 2, dtype=torch.float64), torch.ones(1, 1), torch.ones(3, 2)
    with pytest.raises(KernelError, match="float64"):
        CpuKernels(query_tile=1).topk(q, w, blocks_of(keys, [3]), torch.tensor([2]), 1)
    with pytest.raises(KernelError, match="wide"):
        CpuKernels(query_tile=1).topk(q.float(), w, [KeyBlock(start=0, keys=torch.ones(3, 4))], torch.tensor([2]), 1)
    with pytest.raises(KernelError, match="32 bits"):
        CpuKernels(query_tile=1).topk(q.float(), w, [KeyBlock(start=2**32, keys=keys)], torch.tensor([2**32]), 1)


MEMORY = """
import resource, torch
from mint2m_trainer.kernels import KeyBlock
from mint2m_trainer.kernels.cpu import CpuKernels
T, S, W, K = 4096, 65536, 16, 64
q, w, keys = torch.randn(T, 1, W), torch.ones(T, 1), torch.randn(S, W)
blocks = [KeyBlock(start=s, keys=keys[s : s + 8192]) for s in range(0, S, 8192)]
CpuKernels(query_tile=64).topk(q[:64], w[:64], blocks[:1], torch.full((64,), S), K)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
CpuKernels(query_tile=64).topk(q, w, blocks, torch.full((T,), S), K)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - T * K * 12)
"""


def test_selection_over_65536_rows_takes_a_few_tiles_besides_its_result() -> None:
    """One pack of 16,384 keys is 2 MiB, staged and packed; the 4,096 by 65,536 scores would be 1 GiB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 8 * 2**20
