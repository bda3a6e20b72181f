"""Where one exact update over a long prompt spends its time: by phase, by kernel, by function.

    python tests/benchmarks/profile_update.py [PROMPT_TOKENS]

One process, one thread, the packaged one-rank profile at 8,192 tokens with 4 responses of 64. The kernels are timed
apart in CPU seconds, and what they did is set against this core's rate of products and sums, measured in the same run.
The second update runs under cProfile, for the functions that take most of the rest; it slows what is called often.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from bench_kernels import peak_flops, table
from one_update import Request, rank_inputs
from torch import Tensor
from update_inputs import make_model, make_rollout

from mint2m_trainer import update as update_module
from mint2m_trainer.kernels import Candidates, Kernels, KeyBlock, choose_kernels
from mint2m_verify import phases

PROMPT, GROUP, RESPONSE = 8192, 4, 64
CHUNK, TILE = 1024, 256
KERNELS = ("topk", "attend", "attend_backward")
FUNCTIONS = 14


class TimedKernels:
    """The chosen kernels, with the CPU seconds and the operations of each method."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.seconds = dict.fromkeys(KERNELS, 0.0)
        self.operations = dict.fromkeys(KERNELS, 0)
        self.pairs = 0

    def _count(self, name: str, seconds: float, operations: int) -> None:
        self.seconds[name] += seconds
        self.operations[name] += operations

    def topk(self, q: Tensor, w: Tensor, blocks: Iterable[KeyBlock], qpos: Tensor, k: int) -> Candidates:
        held = list(blocks)  # gathering keys is not the kernel's work
        start = time.process_time()
        found = self._kernels.topk(q, w, held, qpos, k)
        seconds = time.process_time() - start
        pairs = sum(int((qpos - block.start + 1).clamp(0, block.keys.shape[0]).sum()) for block in held)
        self.pairs += pairs
        self._count("topk", seconds, 2 * pairs * q.shape[1] * q.shape[2])
        return found

    def attend(
        self, q: Tensor, rows: Tensor, idx: Tensor, ok: Tensor, scale: float, value_width: int
    ) -> tuple[Tensor, Tensor]:
        start = time.process_time()
        found = self._kernels.attend(q, rows, idx, ok, scale, value_width)
        seconds = time.process_time() - start
        self._count("attend", seconds, 2 * int(ok.sum()) * q.shape[1] * (q.shape[2] + value_width))
        return found

    def attend_backward(
        self, q: Tensor, rows: Tensor, idx: Tensor, ok: Tensor, scale: float, out: Tensor, lse: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        start = time.process_time()
        found = self._kernels.attend_backward(q, rows, idx, ok, scale, out, lse, grad)
        seconds = time.process_time() - start
        work = 2 * int(ok.sum()) * q.shape[1] * (3 * q.shape[2] + 2 * out.shape[2])
        self._count("attend_backward", seconds, work)
        return found


def run(request: Request, profiler: cProfile.Profile | None) -> tuple[TimedKernels, list[tuple[str, list[float]]]]:
    """One update up to its step; each phase with its CPU seconds and those of the kernels in it."""
    made: list[TimedKernels] = []

    def timed(device: torch.device, dtype: torch.dtype, query_tile: int) -> Kernels:
        made.append(TimedKernels(choose_kernels(device, dtype, query_tile)))
        return made[-1]

    spent: list[tuple[str, list[float]]] = []
    rollout = json.loads(Path(request.rollout).read_text(encoding="utf-8"))
    update_module.choose_kernels = timed
    with tempfile.TemporaryDirectory(prefix="mint2m-profile-") as folder:
        update = update_module.Update(rank_inputs(request, rollout, Path(folder)))
        try:
            for phase in update.phases:
                before = [made[-1].seconds[name] for name in KERNELS] if made else [0.0] * len(KERNELS)
                start = time.process_time()
                if profiler is not None and made:
                    profiler.enable()
                update.run(phase)
                if profiler is not None:
                    profiler.disable()
                whole = time.process_time() - start
                if made:
                    spent.append(
                        (phase, [whole, *(made[-1].seconds[n] - b for n, b in zip(KERNELS, before, strict=True))])
                    )
                if phase == phases.OPTIMIZER_STEP:
                    break
        finally:
            update.close()
            update_module.choose_kernels = choose_kernels
    return made[-1], spent


def main(prompt: int) -> int:
    torch.set_num_threads(1)
    peak = peak_flops()
    with tempfile.TemporaryDirectory(prefix="mint2m-profile-") as place:
        folder = Path(place)
        snapshot, adapter = make_model(folder, {})
        rollout = make_rollout(folder / "rollout.json", prompt=prompt, group=GROUP, response=RESPONSE)
        request = Request(
            method="exact", snapshot=str(snapshot), adapter=str(adapter), rollout=str(rollout), chunk=CHUNK, tile=TILE
        )
        kernels, spent = run(request, None)
        profiler = cProfile.Profile(time.process_time)
        run(request, profiler)
    lines = [[phase, *(f"{seconds:.2f}" for seconds in (*each, each[0] - sum(each[1:])))] for phase, each in spent]
    table(f"CPU seconds of one exact update over {prompt:,} tokens", ["phase", "all", *KERNELS, "the rest"], lines)
    lines = []
    for name in KERNELS:
        seconds, work = kernels.seconds[name], kernels.operations[name]
        if seconds > 0:
            lines.append([name, f"{seconds:.2f}", f"{work / seconds / 1e9:.1f}", f"{work / seconds / peak:.0%}"])
    table(f"Kernels, against {peak / 1e9:.0f} GFLOP/s in cache", ["kernel", "CPU s", "GFLOP/s", "of the peak"], lines)
    print(f"\nscore and top-k: {kernels.pairs / max(kernels.seconds['topk'], 1e-9):.2e} visible pairs a second\n")
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(FUNCTIONS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else PROMPT))
