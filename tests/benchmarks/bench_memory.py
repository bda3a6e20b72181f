"""The byte plan against the measured peak of one exact update, at several prompt lengths.

    python tests/benchmarks/bench_memory.py [--prompt 1024 8192 32768] [--ranks 1] [--chunk 512] [--config JSON]

Each rank of each length is a process of its own; the plan is a rank's, and so is the largest peak. Measured is the
high-water mark minus what was resident after loading; planned is the plan without what loading leaves: weights, LoRA,
and the gradient buffers that it allocates. Exits 1 where the two are further apart than the bound, in either direction:
a plan that is too high refuses runs that would fit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench_update import Limits, measure
from one_update import Request, free_port, profile
from update_inputs import make_model, make_rollout

from mint2m_verify.memory_plan import rank_memory
from mint2m_verify.model_numbers import read_numbers

BOUND = 0.15


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, nargs="+", default=[1024, 8192, 32768])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--group", type=int, default=2)
    parser.add_argument("--response", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--tile", type=int, default=128)
    parser.add_argument("--config", default="{}", help="JSON object: members of the tiny model's config to change.")
    options = parser.parse_args(words)
    worst = 0.0
    print(
        f"model: init-tiny 7 with {options.config}; chunk {options.chunk}, G={options.group}, R={options.response}, "
        f"{options.ranks} ranks"
    )
    print(f"{'P':>8} {'measured MiB':>13} {'planned MiB':>12} {'planned/measured':>17}  {'largest parts, MiB'}")
    with tempfile.TemporaryDirectory(prefix="mint2m-benchmark-") as place:
        folder = Path(place)
        snapshot, adapter = make_model(folder, json.loads(options.config))
        for prompt in options.prompt:
            rollout = make_rollout(
                folder / "rollout.json", prompt=prompt, group=options.group, response=options.response
            )
            request = Request(
                method="exact",
                snapshot=str(snapshot),
                adapter=str(adapter),
                rollout=str(rollout),
                chunk=options.chunk,
                tile=options.tile,
                ranks=options.ranks,
                port=free_port(),
            )
            measured = largest_peak(request, folder)
            plan = rank_memory(read_numbers(snapshot), profile(request, prompt, [options.response] * options.group))
            loaded = plan.bytes_of("weights") + plan.bytes_of("lora") + plan.bytes_of("gradients") // 2
            planned = plan.total - loaded
            parts = sorted(plan.items, key=lambda item: -item.bytes)
            shown = ", ".join(
                f"{item.category} {item.bytes / 2**20:.1f}" for item in parts if item.category != "weights"
            )
            worst = max(worst, abs(planned / measured - 1))
            print(
                f"{prompt:>8} {measured / 2**20:>13.1f} {planned / 2**20:>12.1f} {planned / measured:>17.3f}  {shown}"
            )
    print(f"furthest apart: {worst:.1%} (bound {BOUND:.0%})")
    return 0 if worst <= BOUND else 1


def largest_peak(request: Request, folder: Path) -> int:
    """Bytes over loading of the rank that took most."""
    limits = Limits(memory_bytes=16 << 30, seconds=3600)

    def one(rank: int) -> int:
        place = folder / f"rank-{rank}"
        place.mkdir(exist_ok=True)
        return int(measure(replace(request, rank=rank), limits, place)["peak_bytes"])

    with ThreadPoolExecutor(request.ranks) as pool:
        return max(pool.map(one, range(request.ranks)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
