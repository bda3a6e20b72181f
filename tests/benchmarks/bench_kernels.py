"""How fast the CPU kernels are: against the torch kernels, and against what this core can do, in one process.

    python tests/benchmarks/bench_kernels.py

One thread. Times are CPU seconds, the least of several rounds, because a shared machine only ever adds. Three
references are measured beside them: the rate of products and sums from the first-level cache without fused
multiply-add (what the kernels are built from), a large matrix product by torch, and a copy through memory. Scores plus
top-k are counted in query-key pairs; a pair of width W and H heads is 2 W H operations. Exits 1 where score plus top-k
at one head of width 16 over 16,384 rows falls short of 4e8 pairs a second, or where the two implementations keep
different rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mint2m_trainer.kernels import Kernels, KeyBlock, TorchKernels
from mint2m_trainer.kernels.compiled import compiled
from mint2m_trainer.kernels.cpu import CpuKernels
from mint2m_trainer.kernels.lanes import panel_set

ROUNDS = 5
PAIRS_PER_SECOND = 4e8
QUERY_TILE = 512
KEY_BLOCK_ROWS = 1 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    queries: int
    rows: int
    width: int
    heads: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    queries: int
    rows: int
    heads: int
    width: int
    value_width: int
    slots: int


#: The first is the one with a limit.
SELECTIONS = (
    Selection(queries=512, rows=16384, width=16, heads=1, kept=64),
    Selection(queries=512, rows=4096, width=16, heads=1, kept=16),
    Selection(queries=512, rows=16384, width=16, heads=1, kept=256),
    Selection(queries=512, rows=65536, width=16, heads=1, kept=64),
    Selection(queries=512, rows=65536, width=16, heads=1, kept=2048),
    Selection(queries=512, rows=8192, width=16, heads=4, kept=64),
    Selection(queries=64, rows=8192, width=128, heads=32, kept=2048),
)
ATTENTIONS = (
    Attention(queries=512, rows=4096, heads=4, width=48, value_width=32, slots=64),
    Attention(queries=512, rows=65536, heads=4, width=48, value_width=32, slots=64),
    Attention(queries=512, rows=4096, heads=8, width=96, value_width=64, slots=256),
    Attention(queries=32, rows=4096, heads=64, width=576, value_width=512, slots=512),
)


def least(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds of the fastest round, after one that is not counted."""
    work()
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


@compiled
def _products(a, b, c, times):  # type: ignore[no-untyped-def]
    for _ in range(times):
        panel_set(a, 0, 64, b, 0, 64, 64, c, 0, 64, 64)


def peak_flops() -> float:
    """Products and sums a second of 4 by 64 panels of depth 64: 16 KiB, all in the first-level cache."""
    a, b, c = np.ones(4 * 64, np.float32), np.ones(64 * 64, np.float32), np.empty(4 * 64, np.float32)
    times = 20_000
    return 2 * 4 * 64 * 64 * times / least(lambda: _products(a, b, c, times))


def matmul_flops() -> float:
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / least(lambda: a @ b)


def copy_bytes() -> float:
    """Bytes read and written a second by a copy that no cache holds."""
    source, target = torch.ones(1 << 26), torch.empty(1 << 26)
    return 2 * source.numel() * 4 / least(lambda: target.copy_(source))


def selection(case: Selection, made: Callable[..., Kernels], rounds: int) -> tuple[float, torch.Tensor]:
    """Pairs a second, and the rows kept."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(case.queries, case.heads, case.width, generator=generator)
    w = torch.rand(case.queries, case.heads, generator=generator)
    keys = torch.randn(case.rows, case.width, generator=generator)
    qpos = torch.full((case.queries,), case.rows - 1)
    blocks = [KeyBlock(start=s, keys=keys[s : s + KEY_BLOCK_ROWS]) for s in range(0, case.rows, KEY_BLOCK_ROWS)]
    kernels = made(query_tile=QUERY_TILE)
    seconds = least(lambda: kernels.topk(q, w, blocks, qpos, case.kept), rounds)
    return case.queries * case.rows / seconds, kernels.topk(q, w, blocks, qpos, case.kept).positions


def attention(case: Attention, made: Callable[..., Kernels]) -> tuple[float, float]:
    """CPU seconds of forward and of backward."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(case.queries, case.heads, case.width, generator=generator)
    rows = torch.randn(case.rows, case.width, generator=generator)
    grad = torch.randn(case.queries, case.heads, case.value_width, generator=generator)
    idx = torch.stack([torch.randperm(case.rows, generator=generator)[: case.slots] for _ in range(case.queries)])
    ok = torch.ones(idx.shape, dtype=torch.bool)
    kernels = made(query_tile=QUERY_TILE)
    scale = case.width**-0.5
    out, lse = kernels.attend(q, rows, idx, ok, scale, case.value_width)
    return (
        least(lambda: kernels.attend(q, rows, idx, ok, scale, case.value_width)),
        least(lambda: kernels.attend_backward(q, rows, idx, ok, scale, out, lse, grad)),
    )


def table(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---:|' * len(head)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def main() -> int:
    torch.set_num_threads(1)
    peak, product, copied = peak_flops(), matmul_flops(), copy_bytes()
    print(
        f"one core: {peak / 1e9:.0f} GFLOP/s of products and sums in cache, {product / 1e9:.0f} by torch's matrix "
        f"product, {copied / 1e9:.1f} GB/s copied"
    )
    lines, short, differ = [], False, False
    for number, case in enumerate(SELECTIONS):
        work = case.queries * case.rows * case.width * case.heads
        fast, kept = selection(case, CpuKernels, ROUNDS)
        short |= number == 0 and fast < PAIRS_PER_SECOND
        ratio = "-"
        if work < 2**31:  # the torch kernels would take minutes
            slow, others = selection(case, TorchKernels, 1)
            differ |= not torch.equal(kept, others)
            ratio = f"{fast / slow:.0f}"
        share = fast * 2 * case.width * case.heads / peak
        shape = [str(value) for value in (case.queries, case.rows, case.heads, case.width, case.kept)]
        lines.append([*shape, f"{fast:.2e}", f"{share:.0%}", ratio])
    table(
        "Score and top-k",
        ["queries", "rows", "heads", "width", "kept", "pairs/s", "of the cache peak", "times torch"],
        lines,
    )
    lines = []
    for case in ATTENTIONS:
        fast, slow = attention(case, CpuKernels), attention(case, TorchKernels)
        pairs = case.queries * case.slots * case.heads
        # Scores and values forward; scores, pull, query gradient and both parts of a row's gradient backward.
        forward = 2 * pairs * (case.width + case.value_width)
        backward = 2 * pairs * (3 * case.width + 2 * case.value_width)
        gathered = case.queries * case.slots * case.width * 4
        shape = [str(v) for v in (case.queries, case.rows, case.heads, case.width, case.value_width, case.slots)]
        for name, work, at in (("forward", forward, 0), ("backward", backward, 1)):
            rate, bandwidth = work / fast[at], (1 + 2 * at) * gathered / fast[at]
            lines.append(
                [
                    *shape,
                    name,
                    f"{rate / 1e9:.0f}",
                    f"{rate / peak:.0%}",
                    f"{bandwidth / copied:.0%}",
                    f"{slow[at] / fast[at]:.1f}",
                ]
            )
    table(
        "Sparse attention; row bytes: rows gathered, and backward also their gradient read and written",
        ["queries", "rows", "heads", "width", "values", "slots", "pass", "GFLOP/s", "of the cache peak",
         "row bytes of the copy rate", "times torch"],
        lines,
    )  # fmt: skip
    if differ:
        print("\nthe two implementations keep different rows")
    if short:
        print(f"\nscore and top-k at one head of 16 is below {PAIRS_PER_SECOND:.0e} pairs a second")
    return 1 if short or differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
