"""What `mint2m verify run` costs over the least it could: one hashlib pass and the imports of sigstore and numpy.

    python tests/benchmarks/bench_verify.py [RUN_DIRECTORY PUBLIC_KEY]

Without arguments it measures the published run over 2,097,152 tokens and a small one that is made first. Both sides are
whole processes, measured in turn so that a busy machine slows both; the figure is the ratio of medians. Our modules are
compiled before, as an installation does it, whatever the environment says of keeping them so.

Two floors are told: `import sigstore.verify`, what a verifier of Sigstore bundles loads, and the bare `import sigstore`
of a version string, which leaves no room for any verifier: jsonschema and cryptography alone take longer to load.
Exits 1 past 1.5 times the first, or past 200 MB.
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

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "evidence/reference-cpu/artifacts/scale-2m/run", ROOT / "evidence/keys/operator.pub"

ROUNDS = 9
RATIO_LIMIT = 1.5
PEAK_LIMIT_BYTES = 200 * 10**6

#: What a verifier of Sigstore bundles imports.
VERIFIER = "sigstore.verify"

LEAST = """
import hashlib, os, sys
import numpy
__import__(sys.argv[2])
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(folder, name), "rb") as stream:
            hashlib.file_digest(stream, "sha256").hexdigest()
"""


def compiled() -> dict[str, str]:
    """The environment in which the modules of a checkout are kept compiled, as those of an installation are."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    seconds: float
    peak_bytes: int


def measure(command: list[str]) -> Cost:
    """Wall time and peak resident memory of one process; raises where it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=compiled())
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} left with {os.waitstatus_to_exitcode(status)}")
    return Cost(seconds=seconds, peak_bytes=usage.ru_maxrss * 1024)


def compare(run: Path, key: Path) -> bool:
    """Measure and print; whether the run keeps the bounds."""
    verify = [sys.executable, "-m", "mint2m", "verify", "run", str(run), "--key", str(key)]
    floors = {name: [sys.executable, "-c", LEAST, str(run), name] for name in (VERIFIER, "sigstore")}
    for command in (verify, *floors.values()):
        measure(command)  # warm caches on all sides
    rounds = [(measure(verify), {name: measure(least) for name, least in floors.items()}) for _ in range(ROUNDS)]
    cost = statistics.median(done.seconds for done, _ in rounds)
    lowest = {name: statistics.median(each[name].seconds for _, each in rounds) for name in floors}
    peak = max(done.peak_bytes for done, _ in rounds)
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    print(f"{run.name}: files {size / 1e6:.1f} MB; verify run {cost:.3f} s; peak {peak / 1e6:.0f} MB (limit 200)")
    for name, floor in lowest.items():
        print(f"hash and import numpy, {name}: {floor:.3f} s; ratio {cost / floor:.2f} (limit {RATIO_LIMIT})")
    return cost <= RATIO_LIMIT * lowest[VERIFIER] and peak <= PEAK_LIMIT_BYTES


def fresh_run(folder: Path) -> tuple[Path, Path]:
    """A signed run of the packaged local deployment, and the public key that its owner keeps elsewhere."""
    tool = [sys.executable, "-m", "mint2m"]
    subprocess.run([*tool, "keys", "new", str(folder / "release")], check=True, stdout=subprocess.DEVNULL)
    key = ["--key", str(folder / "release.key")]
    subprocess.run([*tool, "run", "--deployment", "local", *key, "--output", str(folder / "run")], check=True)
    return folder / "run", folder / "release.pub"


def main(words: list[str]) -> int:
    if words:
        run, key = map(Path, words)
        return 0 if compare(run, key) else 1
    with tempfile.TemporaryDirectory() as place:
        kept = [compare(*PUBLISHED), compare(*fresh_run(Path(place)))]  # both are told of
    return 0 if all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
