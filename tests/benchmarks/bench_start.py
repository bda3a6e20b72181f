"""How long a command takes before it does anything, beside what it could have waited for.

    python tests/benchmarks/bench_start.py

Whole processes, measured in turn so that a busy machine slows all; the figures are ratios of medians. Our modules are
compiled before, as those of an installation are, whatever the environment says of keeping them so. `mint2m --help`
stays under 0.25 of `import sigstore.verify`, and `--help` and `explain` under twice `import typer`. Exits 1 otherwise.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

ROUNDS = 15

COMMANDS = {
    "--help": ["-m", "mint2m", "--help"],
    "explain": ["-m", "mint2m", "explain", "tree.file-changed"],
    "sigstore.verify": ["-c", "import sigstore.verify"],
    "typer": ["-c", "import typer"],
}

#: What is measured, what it is held against, and the largest ratio.
LIMITS = (("--help", "sigstore.verify", 0.25), ("--help", "typer", 2.0), ("explain", "typer", 2.0))


def measure(arguments: list[str]) -> float:
    """Wall time of one process, in seconds; raises where it fails."""
    start = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter() - start


def main() -> int:
    for arguments in COMMANDS.values():
        measure(arguments)  # warm caches on all sides
    rounds = [{name: measure(arguments) for name, arguments in COMMANDS.items()} for _ in range(ROUNDS)]
    median = {name: statistics.median(one[name] for one in rounds) for name in COMMANDS}
    within = True
    for name, floor, limit in LIMITS:
        ratio = median[name] / median[floor]
        within = within and ratio <= limit
        print(f"{name} {median[name]:.3f} s; {floor} {median[floor]:.3f} s; ratio {ratio:.2f} (limit {limit})")
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(main())
