"""Time and memory of `mint2m verify chain` over the bytes of its gradient shards.

    python tests/benchmarks/bench_chain.py [--lora 4 32 128] [--experts 16] [--folder DIR]

For each LoRA rank a real promotion run through parity-32k is made, of a model whose experts are most of it, with short
prompts: four computations whose shards and stepped adapters grow with the rank. Then the chain is verified by a process
of its own, and, right after, another one hashes the same files and nothing else. Told are bytes, CPU seconds, the ratio
of the two, and peak memory. Exits 1 where the largest chain costs more than twice the CPU seconds a byte of the one
before it, or needs more than 1 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.stages.packaged_set import PACKAGED_SETS, PackagedSet
from mint2m_trainer.stages.planner import PlanRequest, plan_set
from mint2m_verify.signers.choose import key_file_signer
from mint2m_verify.signing import new_key_pair

PEAK_LIMIT_BYTES = 10**9
SLOPE_LIMIT = 2.0

STARTER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""

HASH = """
import hashlib, os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(folder, name), "rb") as stream:
            hashlib.file_digest(stream, "sha256").hexdigest()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds, of all threads, and peak resident bytes of one process."""

    seconds: float
    peak_bytes: int


def measure(command: list[str]) -> Cost:
    """Run to the end, started by a small process: a child counts its parent's memory until it is another program."""
    done = subprocess.run([sys.executable, "-c", STARTER, *command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} left with {done.returncode}\n{done.stdout}{done.stderr}")
    seconds, kilobytes = done.stdout.split()
    return Cost(seconds=float(seconds), peak_bytes=int(kilobytes) * 1024)


def small_set(lora: int, experts: int) -> PackagedSet:
    """A set of one short prompt, whose adapter is nearly all in `experts` experts of 512 by 512."""
    small = PACKAGED_SETS["local-small"]
    config = {
        **small.model_config,
        "hidden_size": 512,
        "moe_intermediate_size": 512,
        "n_routed_experts": experts,
    }
    return PackagedSet(
        name=f"lora-{lora}",
        world_size=small.world_size,
        tokens={"parity-32k": 800},
        chunk_tokens={"parity-32k": 400},
        model_config=config,
        lora_rank=lora,
    )


def make_chain(folder: Path, lora: int, experts: int) -> tuple[list[str], Path]:
    """The command that verifies a fresh chain, and the chain."""
    folder.mkdir(parents=True)
    for name in ("planner", "operator"):
        new_key_pair(str(folder / name))
    signer = key_file_signer(folder / "planner.key")
    plan_set(small_set(lora, experts), PlanRequest(output=folder / "plan", signer=signer, nonce="benchmark"))
    evidence, tool = folder / "evidence", [sys.executable, "-m", "mint2m"]
    every = ["stage", "all", "--validation-plan", str(folder / "plan/validation-plan.json")]
    words = ["--run-id", str(uuid.uuid4()), "--evidence", str(evidence), "--key", str(folder / "operator.key")]
    planner = ["--plan-key", str(folder / "planner.pub")]
    subprocess.run([*tool, *every, *words, *planner], check=True, stdout=subprocess.DEVNULL)
    return [*tool, "verify", "chain", str(evidence), "--key", str(folder / "operator.pub"), *planner], evidence


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lora", type=int, nargs="+", default=[4, 32, 128])
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="Where chains are made; needs room for all. Default: temporary.")
    options = parser.parse_args(words)
    costs: list[tuple[float, float]] = []  # GB, CPU seconds
    peak = 0
    print(
        f"{'LoRA rank':>9} {'shards GB':>10} {'all GB':>7} {'verify s':>9} {'hash s':>7} {'ratio':>6} {'s/GB':>6} "
        f"{'peak MB':>8}"
    )
    with tempfile.TemporaryDirectory(prefix="mint2m-benchmark-", dir=options.folder) as place:
        for lora in options.lora:
            verify, evidence = make_chain(Path(place) / str(lora), lora, options.experts)
            sizes = {path: path.stat().st_size for path in evidence.rglob("*") if path.is_file()}
            shards = sum(size for path, size in sizes.items() if "artifacts/parity" in str(path)) / 1e9
            cost, least = measure(verify), measure([sys.executable, "-c", HASH, str(evidence)])
            whole = sum(sizes.values()) / 1e9
            costs.append((whole, cost.seconds))
            peak = max(peak, cost.peak_bytes)
            print(
                f"{lora:>9} {shards:>10.2f} {whole:>7.2f} {cost.seconds:>9.1f} {least.seconds:>7.1f} "
                f"{cost.seconds / least.seconds:>6.1f} {cost.seconds / whole:>6.1f} {cost.peak_bytes / 1e6:>8.0f}",
                flush=True,
            )
    grows = len(costs) > 1 and costs[-1][1] / costs[-1][0] > SLOPE_LIMIT * costs[-2][1] / costs[-2][0]
    return 1 if grows or peak > PEAK_LIMIT_BYTES else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
