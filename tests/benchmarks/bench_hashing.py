"""How fast a tree is re-hashed, against what the processors can do and against model_signing, in one run.

    python tests/benchmarks/bench_hashing.py [--folder DIR] [--large GIB] [--files N] [--file MIB] [--rounds N]

Each round measures in turn, so that other work on the machine slows all alike: `openssl speed -multi N sha256`, on the
processors' own cache; the verification of many files and of one large file against a manifest; and model_signing's
hashing of the same two trees. The bounds are 0.95 of openssl, and twice model_signing or 0.95 of as often as openssl
itself goes into it: many files are hashed by all processors there too, and nobody is faster than those.

Each is told by the clock and by processor time; on a machine with other work only the second says anything, of what a
byte costs, and nothing of how well the threads share the processors. The bounds are held by the clock, and meant for
--large 4 --files 64 --file 64 on a quiet machine. Everything is read once before each measurement; --folder should be
on a disk, since a file in memory has no cache to look at. Processor time and peak are with those of the processes that
were started for it. Exits 1 where a ratio, or the peak, is past its bound; small sizes say little, since starting
threads then counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

OF_OPENSSL, OF_MODEL_SIGNING, PEAK_BYTES = 0.95, 2.0, 100 * 10**6
_BLOCK = 1 << 20

#: Prints the seconds, the processor time, and the peak of the process with those of all that it started, which are
#: looked at four times a second: what the system tells of ended ones counts the memory of whoever started them.
TELL = """
import json, os, resource, time
from pathlib import Path
from threading import Thread
peaks = {}
def look():
    while True:
        time.sleep(0.25)
        for listed in Path("/proc/self/task").glob("*/children"):
            for process in listed.read_text().split():
                lines = Path("/proc", process, "status").read_text().splitlines()
                peaks.update((process, int(line.split()[1]) * 1024) for line in lines if line.startswith("VmHWM"))
Thread(target=look, daemon=True).start()
def busy():
    return sum(os.times()[:4])
def tell(seconds, busy):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + sum(peaks.values())
    print(json.dumps({"seconds": seconds, "busy": busy, "peak": peak}))
"""

#: Imports are another benchmark's.
OURS = (
    TELL
    + """
import sys
from pathlib import Path
from mint2m_verify.anchor import DigestAnchor, options
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.verify_tree import verify_manifest
tree, manifest = Path(sys.argv[1]), Path(sys.argv[2])
verify_manifest(Path(sys.argv[4]), Path(sys.argv[5]), None, DigestAnchor(sha256="1" * 64), options())  # loads modules
anchor = DigestAnchor(sha256=sha256_hex(manifest.read_bytes()))
start, before = time.perf_counter(), busy()
report = verify_manifest(manifest, tree, None, anchor, options(whole_digests=sys.argv[3] == "whole"))
seconds, worked = time.perf_counter() - start, busy() - before
assert int(report.verdict) == 0, report.findings
tell(seconds, worked)
"""
)

THEIRS = (
    TELL
    + """
import sys
from model_signing import hashing
hashing.Config().hash(sys.argv[2])  # loads modules
start, before = time.perf_counter(), busy()
hashing.Config().hash(sys.argv[1])
tell(time.perf_counter() - start, busy() - before)
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    name: str
    folder: Path
    manifest: Path
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    rate: float  # bytes a second by the clock
    busy: float  # bytes a second if all processors had worked for it all the time
    peak: int


def processors() -> int:
    return len(os.sched_getaffinity(0))


def openssl(*words: str) -> float:
    """Bytes a second of all processors together: by processor time, and with `-elapsed` by the clock."""
    multi = ["-multi", str(processors()), *words]
    command = ["openssl", "speed", *multi, "-seconds", "2", "-bytes", "16384", "sha256"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    last = next(line for line in reversed(printed.splitlines()) if line.startswith("sha256"))
    return float(last.split()[-1].removesuffix("k")) * 1000


def measure(script: str, tree: Tree, *words: str) -> Cost:
    for path in tree.folder.iterdir():
        with path.open("rb", buffering=0) as stream:
            while stream.read(_BLOCK):
                pass
    command = [sys.executable, "-c", script, str(tree.folder), *words]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    busy = tree.size / told["busy"] * processors()
    return Cost(rate=tree.size / told["seconds"], busy=busy, peak=told["peak"])


def make(place: Path, name: str, *, count: int, size: int) -> Tree:
    """`count` files of `size` random bytes, and their manifest beside the folder."""
    from mint2m_verify.tree import manifest

    folder = place / name
    folder.mkdir()
    for number in range(count):
        with (folder / f"{number:05}").open("wb") as stream:
            for start in range(0, size, _BLOCK):
                stream.write(os.urandom(min(_BLOCK, size - start)))
    os.sync()  # a dirty page is not dropped, and writing it back would take time from the measurement
    written = place / f"{name}.json"
    written.write_bytes(manifest("file", folder, name).encode())
    return Tree(name=name, folder=folder, manifest=written, size=count * size)


def main(place: Path, arguments: argparse.Namespace) -> int:
    trees = (
        make(place, "many", count=arguments.files, size=arguments.file << 20),
        make(place, "large", count=1, size=int(arguments.large * (1 << 30))),
    )
    tiny = make(place, "tiny", count=1, size=1)
    warm = (str(tiny.manifest), str(tiny.folder))
    limits: list[tuple[float, float]] = []
    rows: dict[str, list[dict[str, Cost]]] = {tree.name: [] for tree in trees}
    for _ in range(arguments.rounds):
        limits.append((openssl("-elapsed"), openssl()))
        for tree in trees:
            rows[tree.name].append(
                {
                    "verify": measure(OURS, tree, str(tree.manifest), "chunks", *warm),
                    "--whole-digests": measure(OURS, tree, str(tree.manifest), "whole", *warm),
                    "model_signing": measure(THEIRS, tree, str(tiny.folder)),
                }
            )
    clock, busy = (statistics.median(limit[kind] for limit in limits) / 1e9 for kind in (0, 1))
    print(f"openssl speed sha256, {processors()} processors: {clock:.2f} GB/s by the clock, {busy:.2f} by their time")
    kept = [told(tree, rows[tree.name], limits) for tree in trees]  # every tree is told of
    return 0 if all(kept) else 1


def told(tree: Tree, rounds: list[dict[str, Cost]], limits: list[tuple[float, float]]) -> bool:
    """Print the rows of a tree; whether it keeps the bounds."""
    print(f"{tree.name}: {tree.size / 1e9:.2f} GB")
    for name in rounds[0]:
        pairs = [(each[name], limit) for each, limit in zip(rounds, limits, strict=True)]
        clock = statistics.median(cost.rate / clock for cost, (clock, _) in pairs)
        busy = statistics.median(cost.busy / busy for cost, (_, busy) in pairs)
        rate = statistics.median(cost.rate for cost, _ in pairs)
        peak = max(cost.peak for cost, _ in pairs)
        print(
            f"  {name:<16}{rate / 1e9:6.2f} GB/s  of openssl {clock:.2f} by the clock, {busy:.2f} by "
            f"processor time  peak {peak / 1e6:.0f} MB"
        )
    ours = statistics.median(each["verify"].rate / clock for each, (clock, _) in zip(rounds, limits, strict=True))
    theirs = statistics.median(each["verify"].rate / each["model_signing"].rate for each in rounds)
    reachable = statistics.median(
        clock / each["model_signing"].rate for each, (clock, _) in zip(rounds, limits, strict=True)
    )
    wanted = min(OF_MODEL_SIGNING, OF_OPENSSL * reachable)
    print(f"  {ours:.2f} of openssl (bound {OF_OPENSSL})")
    print(f"  {theirs:.2f} times model_signing (bound {wanted:.2f}; openssl {reachable:.2f} times)")
    peak = max(each["verify"].peak for each in rounds)
    return ours >= OF_OPENSSL and theirs >= wanted and peak <= PEAK_BYTES


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--large", type=float, default=0.5, metavar="GIB")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--file", type=int, default=8, metavar="MIB")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as temporary:
        raise SystemExit(main(Path(temporary), chosen))
