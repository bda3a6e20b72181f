"""What `mint2m verify run` costs over the least it could: one hashlib pass and the imports of sigstore and numpy.

    python tests/benchmarks/bench_verify.py [RUN_DIRECTORY PUBLIC_KEY]

Without arguments a run is made first. Both sides are whole processes, measured in turn so that a busy machine slows
both; the figure is the ratio of medians. Exits 1 past 1.3 times or 200 MB of peak memory.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 9
RATIO_LIMIT = 1.3
PEAK_LIMIT_BYTES = 200 * 10**6

LEAST = """
import hashlib, os, sys
import numpy, sigstore, sigstore.verify
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(folder, name), "rb") as stream:
            hashlib.file_digest(stream, "sha256").hexdigest()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    seconds: float
    peak_bytes: int


def measure(command: list[str]) -> Cost:
    """Wall time and peak resident memory of one process; raises where it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} left with {os.waitstatus_to_exitcode(status)}")
    return Cost(seconds=seconds, peak_bytes=usage.ru_maxrss * 1024)


def main(run: Path, key: Path) -> int:
    least = [sys.executable, "-c", LEAST, str(run)]
    verify = [sys.executable, "-m", "mint2m", "verify", "run", str(run), "--key", str(key)]
    for command in (least, verify):
        measure(command)  # warm caches on both sides
    pairs = [(measure(least), measure(verify)) for _ in range(ROUNDS)]
    floor = statistics.median(pair[0].seconds for pair in pairs)
    cost = statistics.median(pair[1].seconds for pair in pairs)
    peak = max(pair[1].peak_bytes for pair in pairs)
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    print(f"files {size / 1e6:.1f} MB; hash and import {floor:.3f} s; verify run {cost:.3f} s")
    print(
        f"ratio {cost / floor:.2f} (limit {RATIO_LIMIT}); peak {peak / 1e6:.0f} MB (limit {PEAK_LIMIT_BYTES / 1e6:.0f})"
    )
    return 0 if cost <= RATIO_LIMIT * floor and peak <= PEAK_LIMIT_BYTES else 1


def fresh_run(folder: Path) -> tuple[Path, Path]:
    """A signed run of the packaged local deployment, and the public key that its owner keeps elsewhere."""
    tool = [sys.executable, "-m", "mint2m"]
    subprocess.run([*tool, "keys", "new", str(folder / "release")], check=True, stdout=subprocess.DEVNULL)
    key = ["--key", str(folder / "release.key")]
    subprocess.run([*tool, "run", "--deployment", "local", *key, "--output", str(folder / "run")], check=True)
    return folder / "run", folder / "release.pub"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
    with tempfile.TemporaryDirectory() as place:
        raise SystemExit(main(*fresh_run(Path(place))))
