"""Time and memory of one update: this trainer's `exact`, its `conventional`, and Hugging Face with autograd.

    python tests/benchmarks/bench_update.py --prompt 1024 2048 4096 --group 8 --response 64 --output DIR

Every figure is a process of its own on one thread, methods in turn, medians over rounds. Memory is the high-water mark
minus what was resident after loading. A method that fails at a length, by memory or by time, is not tried at longer
ones, and the table says so. Before anything is timed, all methods run the shortest length and must agree in loss and
gradient norm, Hugging Face with ties broken by position; afterwards `exact` and `conventional` must agree at every
length: a fast wrong update is not a figure.

Writes `update.json`, `update.txt` (the table) and `update.svg` into DIR. Exits 1 where methods disagree.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from line_plot import Line, Panel, svg
from one_update import METHODS, Method, Request
from update_inputs import make_model, make_rollout

#: Float32 sums of thousands of terms in two orders.
LOSS_BOUND, NORM_BOUND = 1e-4, 1e-3

WORKER = Path(__file__).with_name("one_update.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A method at one prompt length and group size: medians, or why there is no figure."""

    method: Method
    prompt: int
    group: int
    response: int
    seconds: float | None
    cpu_seconds: float | None
    peak_bytes: int | None
    loss: float | None
    gradient_norm: float | None
    phases: tuple[tuple[str, float], ...]
    failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process may use."""

    memory_bytes: int
    seconds: float


class FailedError(Exception):
    """A process that ended without a figure; the words say by what."""


def measure(request: Request, limits: Limits, folder: Path) -> Mapping[str, Any]:
    """One process; raises `FailedError`."""
    given = folder / "request.json"
    given.write_text(json.dumps(asdict(request)), encoding="utf-8")
    errors = folder / "stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), str(given)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"},
            # Data alone: libraries that are mapped and never touched do not count.
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes)),
        )
        overdue = threading.Event()
        timer = threading.Timer(limits.seconds, lambda: (overdue.set(), process.kill()))
        timer.start()
        try:
            told, _ = process.communicate()
        finally:
            timer.cancel()
    if overdue.is_set():
        raise FailedError(f"longer than {limits.seconds:g} s")
    if process.returncode != 0:
        words = errors.read_text(encoding="utf-8", errors="replace")
        if process.returncode == -signal.SIGKILL or any(
            name in words for name in ("MemoryError", "not enough memory", "Cannot allocate memory", "bad_alloc")
        ):
            raise FailedError(f"memory: more than {limits.memory_bytes / 2**30:g} GiB")
        raise RuntimeError(f"{request.method} left with {process.returncode}:\n{words[-2000:]}")
    cost: Mapping[str, Any] = json.loads(told.splitlines()[-1])
    return cost


def agree(costs: Sequence[Mapping[str, Any]]) -> str | None:
    """The first disagreement of methods in loss or gradient norm, or None."""
    first = costs[0]
    for other in costs[1:]:
        for name, bound in (("loss", LOSS_BOUND), ("gradient_norm", NORM_BOUND)):
            if not abs(first[name] - other[name]) <= bound * max(abs(first[name]), 1e-3):
                return f"{name}: {first['method']} {first[name]!r}, {other['method']} {other[name]!r}"
    return None


def grid(options: argparse.Namespace, folder: Path) -> tuple[list[Row], list[str]]:
    """All rows, and the disagreements."""
    snapshot, adapter = make_model(folder, json.loads(options.config))
    limits = Limits(memory_bytes=int(options.limit_gib * 2**30), seconds=options.limit_seconds)
    rows: list[Row] = []
    failed: dict[tuple[str, int], str] = {}
    faults: list[str] = []

    def request(method: Method, rollout: Path) -> Request:
        return Request(
            method=method,
            snapshot=str(snapshot),
            adapter=str(adapter),
            rollout=str(rollout),
            chunk=options.chunk,
            tile=options.tile,
        )

    shortest = make_rollout(
        folder / "first.json", prompt=min(options.prompt), group=min(options.group), response=options.response
    )
    checks = [measure(replace(request(method, shortest), ties="position"), limits, folder) for method in options.method]
    if (fault := agree(checks)) is not None:
        faults.append(f"P={min(options.prompt)}, ties by position: {fault}")
    for group in sorted(options.group):
        for prompt in sorted(options.prompt):
            rollout = make_rollout(folder / "rollout.json", prompt=prompt, group=group, response=options.response)
            costs: dict[str, list[Mapping[str, Any]]] = {method: [] for method in options.method}
            for _ in range(options.rounds):
                for method in options.method:
                    if (method, group) in failed:
                        continue
                    try:
                        costs[method].append(measure(request(method, rollout), limits, folder))
                    except FailedError as fault_now:
                        failed[method, group] = f"{fault_now} at {prompt} tokens"
            for method in options.method:
                rows.append(row(method, prompt, group, options.response, costs[method], failed.get((method, group))))
                told(rows[-1])
            same = [costs[name][0] for name in ("exact", "conventional") if costs.get(name)]
            if len(same) == 2 and (fault := agree(same)) is not None:
                faults.append(f"P={prompt} G={group}: {fault}")
    return rows, faults


def row(
    method: Method, prompt: int, group: int, response: int, costs: Sequence[Mapping[str, Any]], failure: str | None
) -> Row:
    if not costs or failure is not None:
        blank: dict[str, Any] = dict.fromkeys(("seconds", "cpu_seconds", "peak_bytes", "loss", "gradient_norm"))
        return Row(
            method=method, prompt=prompt, group=group, response=response, phases=(), failure=failure or "no", **blank
        )
    middle = sorted(costs, key=lambda cost: cost["seconds"])[len(costs) // 2]
    return Row(
        method=method,
        prompt=prompt,
        group=group,
        response=response,
        seconds=statistics.median(cost["seconds"] for cost in costs),
        cpu_seconds=statistics.median(cost["cpu_seconds"] for cost in costs),
        peak_bytes=int(statistics.median(cost["peak_bytes"] for cost in costs)),
        loss=costs[0]["loss"],
        gradient_norm=costs[0]["gradient_norm"],
        phases=tuple((name, float(seconds)) for name, seconds in middle["phases"]),
        failure=None,
    )


def told(entry: Row) -> None:
    """One line as soon as it is known; a long benchmark is watched."""
    print(_words(entry), file=sys.stderr, flush=True)


def _words(entry: Row) -> str:
    head = f"{entry.group:>4} {entry.prompt:>8} {entry.method:<13}"
    if entry.seconds is None or entry.cpu_seconds is None or entry.peak_bytes is None:
        return f"{head} {entry.failure}"
    return f"{head} {entry.seconds:>10.2f} {entry.cpu_seconds:>10.2f} {entry.peak_bytes / 2**20:>10.0f}"


def table(rows: Sequence[Row], options: argparse.Namespace, faults: Sequence[str]) -> str:
    """The table, and what of the others each method costs against `exact`."""
    lines = [
        f"{platform.processor() or platform.machine()}, one thread; R={options.response}, chunk {options.chunk}, "
        f"{options.rounds} rounds; limits {options.limit_gib:g} GiB, {options.limit_seconds:g} s",
        f"model: init-tiny 7 with {options.config}",
        "",
        "   G        P method           seconds      CPU s   peak MiB  time/exact  peak/exact",
    ]
    exact = {(entry.group, entry.prompt): entry for entry in rows if entry.method == "exact"}
    for entry in rows:
        against, extra = exact.get((entry.group, entry.prompt)), ""
        if (
            against is not None
            and against.cpu_seconds
            and entry.cpu_seconds
            and against.peak_bytes
            and entry.peak_bytes
        ):
            ratios = entry.cpu_seconds / against.cpu_seconds, entry.peak_bytes / against.peak_bytes
            extra = f" {ratios[0]:>11.2f} {ratios[1]:>11.2f}"
        lines.append(_words(entry) + extra)
    lines += ["", "time/exact is of CPU seconds: wall time on a shared machine is not the method's."]
    for entry in rows:
        if entry.method == "exact" and entry.phases:
            parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in entry.phases if not name.startswith("grpo-"))
            replays = sum(seconds for name, seconds in entry.phases if name.startswith("grpo-"))
            lines.append(f"exact, G={entry.group} P={entry.prompt}, seconds: replays {replays:.2f}, {parts}")
    lines += [f"DISAGREE {fault}" for fault in faults]
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row]) -> str:
    """CPU time and peak over the prompt, for the largest group."""
    group = max(entry.group for entry in rows)
    chosen = [entry for entry in rows if entry.group == group]

    def lines(value: str, scale: float) -> tuple[Line, ...]:
        return tuple(
            Line(
                name=method,
                points=tuple(
                    (float(entry.prompt), getattr(entry, value) / scale)
                    for entry in chosen
                    if entry.method == method and getattr(entry, value)
                ),
            )
            for method in METHODS
            if any(entry.method == method for entry in chosen)
        )

    name = "prompt tokens"
    return svg(
        (
            Panel(title=f"One update, G={group}", x_label=name, y_label="CPU seconds", lines=lines("cpu_seconds", 1)),
            Panel(
                title="Memory over loading", x_label=name, y_label="peak, MiB", lines=lines("peak_bytes", float(2**20))
            ),
        )
    )


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--group", type=int, nargs="+", default=[8])
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--method", nargs="+", choices=METHODS, default=["exact", "conventional", "huggingface"])
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--tile", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--config", default="{}", help="JSON object: members of the tiny model's config to change.")
    parser.add_argument("--limit-gib", type=float, default=8.0)
    parser.add_argument("--limit-seconds", type=float, default=600.0)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    options = arguments(words)
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mint2m-benchmark-") as folder:
        rows, faults = grid(options, Path(folder))
    text = table(rows, options, faults)
    (options.output / "update.json").write_text(
        json.dumps({"rows": [asdict(entry) for entry in rows], "disagreements": faults}, indent=1) + "\n"
    )
    (options.output / "update.txt").write_text(text)
    (options.output / "update.svg").write_text(plot(rows))
    print(text, end="")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
