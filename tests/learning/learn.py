"""Learning shown: held-out reward by step of online trainings that start from a pretrained model, as table and curves.

    mint2m model pretrain --output MODEL
    python tests/learning/learn.py OUTPUT --model MODEL [--steps 20] [--seeds 1 2 3] [--bare] [--modes exact detached]

The prompts are watch logs of 4,096 byte tokens; the answer, one of ten letters, is what most of a log's entries name.
The model reads them and doubts; what the training adds is an answer without doubt, which no policy can give that does
not read. Held-out rows are logs that no training has.

Mode `exact` is `mint2m online` for every seed, its training directory verified, or with `--bare` the same steps without
Ray and seals; `detached` and `conventional` are bare, with the first seed. A training that was stopped goes on where it
stood. OUTPUT gets `learning.json`, `learning.md` and `learning.svg`. Exits 1 where a training does not verify, or
where the held-out mean of a run that made all steps rises by less than 0.4.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bare_loop import Bare, train
from curves import Curve, svg
from held_out import expected_rewards
from task import Mode, Task, write_site

from mint2m_trainer.online.loop import OnlineRequest, online
from mint2m_trainer.peft import read_adapter
from mint2m_verify.finding import Verdict
from mint2m_verify.training import places

#: By how much a held-out mean must rise, of rewards between -1 and 1.
CLEARLY = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """One run: held-out means and their standard errors after the steps of `after`; seconds of the training alone."""

    name: str
    after: tuple[int, ...]
    means: tuple[float, ...]
    errors: tuple[float, ...]
    seconds: float
    cpu_seconds: float
    verdict: str
    adapters: tuple[str, ...]

    @property
    def rise(self) -> float:
        """From before the first step to after the last."""
        return self.means[-1] - self.means[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one run is, and where it lies."""

    folder: Path
    task: Task
    model: Path
    seed: int
    mode: Mode
    bare: bool
    steps: int


def learn(wanted: Wanted, after: Sequence[int], held_out: int) -> Learned:
    """Train, or go on, and look at the adapters of some steps; what was learned already is read."""
    kept = wanted.folder / "learned.json"
    if kept.exists():
        return Learned(**json.loads(kept.read_text()))
    begun, used = time.monotonic(), _cpu_seconds()
    adapters, verdict = _bare(wanted) if wanted.bare else _online(wanted)
    seconds, cpu = time.monotonic() - begun, _cpu_seconds() - used
    chosen = [None if step == 0 else adapters[step - 1] for step in after]
    profile = wanted.task.profile(wanted.seed, "detached" if wanted.mode == "detached" else "exact")
    rewards = expected_rewards(profile, wanted.model, chosen, wanted.task.held_out(held_out))
    means = tuple(sum(row) / len(row) for row in rewards)
    errors = tuple(
        math.sqrt(sum((one - mean) ** 2 for one in row) / (len(row) - 1) / len(row))
        for row, mean in zip(rewards, means, strict=True)
    )
    learned = Learned(
        name=f"{wanted.mode}, seed {wanted.seed}",
        after=tuple(after),
        means=means,
        errors=errors,
        seconds=seconds,
        cpu_seconds=cpu,
        verdict=verdict,
        adapters=tuple(str(adapter) for adapter in adapters),
    )
    kept.write_text(json.dumps(asdict(learned)))
    return learned


def _online(wanted: Wanted) -> tuple[list[Path], str]:
    site, root = wanted.folder / "site", wanted.folder / "training"
    if wanted.mode == "conventional":
        raise ValueError("no profile asks for mode conventional")
    if not (site / "online.json").exists():
        write_site(site, wanted.task, wanted.model, wanted.seed, wanted.mode)
    request = OnlineRequest(
        deployment=site / "online.json", steps=wanted.steps, directory=root, resume=(root / places.PLAN).exists()
    )
    report = online(request)
    adapters = [root / places.run_folder(step) / "adapter" for step in range(wanted.steps)]
    return adapters, report.verdict.word if report.verdict is Verdict.ACCEPTED else report.findings[0].id


def _bare(wanted: Wanted) -> tuple[list[Path], str]:
    bare = Bare(
        folder=wanted.folder / "bare",
        task=wanted.task,
        model=wanted.model.resolve(),
        seed=wanted.seed,
        mode=wanted.mode,
        steps=wanted.steps,
    )
    train(bare)
    return [bare.adapter(step) for step in range(wanted.steps)], "not sealed"


def _cpu_seconds() -> float:
    """Of this process and of all that ended below it."""
    every = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in every)


def distance(left: Path, right: Path) -> float:
    """Relative L2 distance of two adapters."""
    a, b = read_adapter(left).tensors, read_adapter(right).tensors
    square = sum(float(((a[name].double() - b[name].double()) ** 2).sum()) for name in a)
    return math.sqrt(square / sum(float((tensor.double() ** 2).sum()) for tensor in b.values()))


def table(results: Sequence[Learned]) -> str:
    """A row a run."""
    steps = sorted({step for result in results for step in result.after})
    head = "| run | " + " | ".join(f"after {step}" for step in steps) + " | training, s | CPU s | verdict |"
    rows = []
    for result in results:
        by_step = dict(zip(result.after, zip(result.means, result.errors, strict=True), strict=True))
        cells = [f"{by_step[s][0]:+.3f} ± {by_step[s][1]:.3f}" if s in by_step else "" for s in steps]
        ends = f"{result.seconds:.0f} | {result.cpu_seconds:.0f} | {result.verdict}"
        rows.append(f"| {result.name} | {' | '.join(cells)} | {ends} |")
    return "\n".join([head, "|---" * (len(steps) + 4) + "|", *rows]) + "\n"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--modes", nargs="*", default=["exact", "conventional", "detached"])
    parser.add_argument("--look", type=int, default=5, help="Steps between two looks at the held-out rows.")
    parser.add_argument("--steps-conventional", type=int, default=5, help="Each runs the prompt once a response.")
    parser.add_argument("--held-out", type=int, default=32)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--lr", type=float, default=Task().lr)
    parser.add_argument("--tokens", type=int, default=Task().prompt_tokens)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    task = Task(prompt_tokens=options.tokens, lr=options.lr)
    results: list[Learned] = []
    for mode in options.modes:
        steps = options.steps_conventional if mode == "conventional" else options.steps
        after = sorted({*range(0, steps, options.look), steps})
        for seed in options.seeds if mode == "exact" else options.seeds[:1]:
            wanted = Wanted(
                folder=options.output / f"{mode}-{seed}",
                task=task,
                model=options.model,
                seed=seed,
                mode=mode,
                bare=options.bare or mode != "exact",
                steps=steps,
            )
            results.append(learn(wanted, after, options.held_out))
            _write(options.output, results)
            print(table(results), flush=True)
    verified = all(result.verdict in ("accepted", "not sealed") for result in results)
    whole = [result for result in results if result.after[-1] == options.steps]
    return 0 if verified and whole and all(result.rise >= CLEARLY for result in whole) else 1


def _write(output: Path, results: Sequence[Learned]) -> None:
    value = [
        {
            "run": result.name,
            "after": list(result.after),
            "held_out": list(result.means),
            "standard_error": list(result.errors),
            "seconds": round(result.seconds, 1),
            "cpu_seconds": round(result.cpu_seconds, 1),
            "verdict": result.verdict,
        }
        for result in results
    ]
    (output / "learning.json").write_text(json.dumps(value, indent=1) + "\n")
    (output / "learning.md").write_text(table(results) + "\n" + beside(results))
    lines = [Curve(name=r.name, points=tuple(zip(r.after, r.means, strict=True))) for r in results]
    (output / "learning.svg").write_text(svg("Held-out mean reward by step", lines))


def beside(results: Sequence[Learned]) -> str:
    """How far the other modes are from `exact` with the same seed: the adapters of each step."""
    words = []
    for result in results:
        mode, seed = result.name.split(", ")
        exact = next((one for one in results if one.name == f"exact, {seed}"), None)
        if mode != "exact" and exact is not None:
            both = zip(result.adapters, exact.adapters, strict=False)  # the other may have made fewer steps
            apart = [distance(Path(a), Path(b)) for a, b in both]
            words.append(f"{result.name}: relative L2 of its adapters to exact, by step: " + _numbers(apart))
    return "\n".join(words) + "\n"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1e}" for value in values)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
