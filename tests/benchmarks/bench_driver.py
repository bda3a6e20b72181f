"""What the driver adds to an update, from 2 to 32 ranks; and the share of a real run that its evidence takes.

    python tests/benchmarks/bench_driver.py [--ranks 2 4 8 16 32] [--phase-ms 50]
    python tests/benchmarks/bench_driver.py --real local

First form: the real driver, a local Ray, and ranks that only wait (`timed_backend.py`). A row is what the driver takes
for a phase beyond the slowest rank's own time: asking, hashing of what was written, answers, comparison. Ranks and
driver share one machine's clock. Below are the things done once a run. `ms/rank` is the slope of the least squares
line, `power` that of time over ranks in log-log: up to 1 where each rank costs the same, 2 where a rank costs more the
more there are. Exits 1 where a phase's power is past 1.3, or where all that grows comes to 30 s, 5% of a run of ten
minutes. The run that comes of it is refused by the verifier; so its self-verification is less than a true one's.

Second form: a packaged run by the real update, some functions timed (`clocked_update.py`), from the doctor to its own
verification. Evidence that grows with phases is what ranks digest and record inside them, counted for the slowest
rank. Evidence once a run is what the driver waits for after the slowest rank's backend has returned, journal, drift,
sessions, receipt, seal and self-verification. Exits 1 where it takes a run past ten minutes for both to be under 5%.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from stopwatch import FOLDER, Stopwatch
from timed_backend import PHASE_SECONDS

from mint2m_trainer import run as whole
from mint2m_trainer.cluster import driver
from mint2m_trainer.cluster.directory import hash_written
from mint2m_trainer.cluster.driver import Trained
from mint2m_trainer.cluster.journal import Journal, read
from mint2m_trainer.cluster.narration import stage_name
from mint2m_trainer.deployments import Packaged, build, packaged_profile
from mint2m_trainer.run import RunRequest
from mint2m_verify import layout
from mint2m_verify.anchor import ConsistencyOnly, VerifyOptions
from mint2m_verify.doctor import examine_run
from mint2m_verify.plan import build_plan
from mint2m_verify.run import verify_run
from mint2m_verify.sealing import statement_of
from mint2m_verify.signers.choose import ephemeral_signer

HERE = Path(__file__).parent

#: Past this a row grows faster than the ranks; a straight line is 1 or, with a constant part, less.
POWER_LIMIT = 1.3
#: Rows that never take this long are left out of that: they are the scheduler's noise.
NOISE_S = 0.05

#: A run worth its evidence, and what part of it that may take.
RUN_S, SHARE_LIMIT = 600.0, 0.05

#: As small as a model for 32 ranks can be: one expert a rank. The ranks never load it; the doctor does look at it.
MODEL = Packaged(
    name="waiting",
    world_size=2,
    prompt_tokens=4096,
    chunk_tokens=1024,
    model_config={"n_routed_experts": 32, "num_hidden_layers": 2, "indexer_types": ["full", "shared"]},
)

#: Rows that are no phase of the update.
START, TAKE_DOWN, JOURNAL = "start", "take down", "journal"
DRIFT, SESSIONS, RECEIPT, HASH = "drift", "rank sessions", "receipt", "hash, one rank"
SEAL, VERIFY = "statement and signature", "verify"

#: Not the driver's to answer for: processes that start and end, as many as ranks, on the cores of one machine.
PROCESSES = (START, TAKE_DOWN)
#: Counted inside other rows already.
WITHIN = (JOURNAL, HASH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When the driver began and ended something, in seconds since the epoch."""

    begun: float
    ended: float


class Clock:
    """A watcher that notes when stages begin and end."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def stage(self, name: str, text: str) -> None:
        """The line is for people."""

    def advance(self, name: str, done: int, total: int) -> None:
        now = time.time()
        if done == 0:
            self._begun.setdefault(name, now)
        if done == total:
            self._ended[name] = now

    def span(self, name: str) -> Span:
        return Span(begun=self._begun[name], ended=self._ended[name])


def seconds(text: str) -> float:
    """A document's time as seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def prepare_environment(**more: str) -> None:
    """What rank actors need to find this folder's backends; the local Ray hands it on."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    os.environ.update(more)


def waiting_run(folder: Path, ranks: int) -> dict[str, float]:
    """Seconds by row of one run whose ranks only wait."""
    made = packaged_profile(replace(MODEL, world_size=ranks))
    profile = replace(made, timeouts_s=replace(made.timeouts_s, start=900, cleanup=120))
    deployment = build(folder, MODEL, profile=profile)
    examination = examine_run(deployment, profile=None, output=folder)
    if examination.gathered is None or examination.gathered.inputs is None:
        raise SystemExit(f"blocked: {examination.doctor.primary_failure}")
    plan = build_plan(examination.gathered.inputs, run_id=f"waiting-{ranks}", instance_nonce="waiting-ranks-nonce")
    clock, watch = Clock(), Stopwatch()
    own = (driver.drift, driver.rank_sessions, driver.write_receipt, Journal.write)
    watch.watch(driver, "rank_sessions", "write_receipt")
    driver.drift = watch.timed("drift", lambda of: tuple(own[0](of)))
    Journal.write = watch.timed("journal", own[3])  # type: ignore[method-assign]  # put back below
    try:
        trained = driver.train(folder, plan, examination, watcher=clock, backend="timed_backend:TimedUpdate")
    finally:
        driver.drift, driver.rank_sessions, driver.write_receipt, Journal.write = own  # type: ignore[method-assign]
    rows = {START: clock.span("ray").ended - clock.span("ray").begun} | beyond_ranks(trained, clock)
    last = clock.span(stage_name(plan.phases[-1])).ended
    closed = seconds(read(folder / layout.OWNERSHIP).events[-1].time)
    rows[DRIFT] = watch.seconds["drift"]
    rows[TAKE_DOWN] = closed - last - rows[DRIFT]
    rows[JOURNAL] = watch.seconds["journal"]
    rows[SESSIONS], rows[RECEIPT] = watch.seconds["rank_sessions"], watch.seconds["write_receipt"]
    return rows | after_the_run(folder, trained)


def beyond_ranks(trained: Trained, clock: Clock) -> dict[str, float]:
    """By phase, the driver's time beyond the slowest rank's own."""
    rows = {}
    for phase, replies in trained.replies.items():
        span = clock.span(stage_name(phase))
        slowest = max(seconds(reply.ended_at) - seconds(reply.started_at) for reply in replies)
        rows[phase] = span.ended - span.begun - slowest
    return rows


def after_the_run(folder: Path, trained: Trained) -> dict[str, float]:
    """What a rank hashes at most, and what a seal does; ends the benchmark where the run is taken for an update."""
    most = max((reply.files for phase in trained.replies.values() for reply in phase), key=len)
    marks = [time.perf_counter()]
    hash_written(folder, (file.path for file in most))
    marks.append(time.perf_counter())
    signer = ephemeral_signer()
    signer.sign_statement(statement_of(folder, signer=signer.kind).payload)
    marks.append(time.perf_counter())
    report = verify_run(folder, ConsistencyOnly(), VerifyOptions())
    marks.append(time.perf_counter())
    if not report.findings:
        raise SystemExit("a run that computed nothing was accepted")
    took = [after - before for before, after in itertools.pairwise(marks)]
    return dict(zip((HASH, SEAL, VERIFY), took, strict=True))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the least squares line."""
    return statistics.linear_regression(x, y).slope


def power(ranks: Sequence[int], row: Sequence[float]) -> float | None:
    """The exponent of a row's growth; None where there is nothing to see."""
    if len(ranks) < 3 or max(row) < NOISE_S or min(row) <= 0:
        return None
    return slope([math.log(n) for n in ranks], [math.log(t) for t in row])


def scaling(ranks: Sequence[int], phase_s: float) -> int:
    """The first form."""
    prepare_environment(**{PHASE_SECONDS: str(phase_s)})
    runs: list[dict[str, float]] = []
    for n in ranks:
        with tempfile.TemporaryDirectory() as place:
            runs.append(waiting_run(Path(place, "run"), n))
    print(f"{'ms':24}" + "".join(f"{n:>9}" for n in ranks) + f"{'ms/rank':>10}{'power':>8}")
    within = True
    for name in runs[0]:
        row = [run[name] for run in runs]
        exponent = power(ranks, row)
        grows = "" if len(ranks) < 2 else f"{1e3 * slope(ranks, row):10.2f}"
        print(
            f"{name:24}"
            + "".join(f"{1e3 * t:9.1f}" for t in row)
            + grows
            + ("" if exponent is None else f"{exponent:8.2f}")
        )
        within = within and (exponent is None or exponent <= POWER_LIMIT)
    own = [sum(t for name, t in run.items() if name not in (*PROCESSES, *WITHIN)) for run in runs]
    limit = SHARE_LIMIT * RUN_S
    print(f"all but start, take down: {', '.join(f'{t:.2f}' for t in own)} s (limit {limit:.0f} s)")
    return 0 if within and max(own) <= limit else 1


def real_share(name: str) -> int:
    """The second form."""
    with tempfile.TemporaryDirectory() as place:
        prepare_environment(**{FOLDER: place})
        clock, watch = Clock(), Stopwatch()
        kept: list[Trained] = []
        own_train, own_drift = driver.train, driver.drift
        driver.drift = watch.timed("drift", lambda plan: tuple(own_drift(plan)))
        watch.watch(driver, "rank_sessions", "write_receipt", "prepare")
        watch.watch(Journal, "write")
        watch.watch(whole, "seal_run")

        def train(*arguments: object, **named: object) -> Trained:
            kept.append(own_train(*arguments, **named))  # type: ignore[arg-type]  # handed on as they came
            return kept[-1]

        whole.train = train
        begun = time.time()
        request = RunRequest(deployment=name, output=Path(place, "run"))
        result = whole.run(request, clock, backend="clocked_update:ClockedUpdate")
        total = time.time() - begun
        if result.report.findings:
            raise SystemExit(f"the run was not accepted: {result.report.findings[0].id}")
        inside = [json.loads(path.read_text()) for path in sorted(Path(place).glob("rank-*.json"))]
    return told_share(total, kept[0], clock, watch.seconds, inside)


def told_share(
    total: float, trained: Trained, clock: Clock, once: Mapping[str, float], inside: Sequence[Mapping[str, float]]
) -> int:
    """Print the parts of a run of `total` seconds; exit code."""
    waited, in_phases = 0.0, 0.0
    for phase, replies in trained.replies.items():
        backends_done = max(seconds(reply.ended_at) for reply in replies)
        waited += clock.span(stage_name(phase)).ended - backends_done
        in_phases += backends_done - clock.span(stage_name(phase)).begun
    # What ranks hash after the backend is in `waited` already.
    slowest = max(inside, key=lambda rank: sum(s for name, s in rank.items() if name != "hash_written"))
    print(f"run {total:.2f} s, its phases {in_phases:.2f} s")
    for where, parts in (("inside phases", slowest), ("once", {**once, "after the backends": waited})):
        for name, took in sorted(parts.items(), key=lambda item: -item[1]):
            print(f"  {where:14} {name:24}{1e3 * took:9.1f} ms")
    growing = sum(took for name, took in slowest.items() if name != "hash_written")
    fixed = waited + sum(once.values())
    share = growing / in_phases
    print(f"evidence: {growing:.2f} s inside phases ({share:.1%} of them), {fixed:.2f} s once")
    print(f"of this run {(growing + fixed) / total:.1%} (limit {SHARE_LIMIT:.0%} of a run of {RUN_S:.0f} s)")
    if share >= SHARE_LIMIT:
        return 1
    # fixed + share T = limit T, where all of T but little is phases.
    enough = fixed / (SHARE_LIMIT - share)
    print(f"under {SHARE_LIMIT:.0%} from {enough:.0f} s on")
    return 0 if enough <= RUN_S else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--phase-ms", type=float, default=50.0)
    parser.add_argument("--real", metavar="DEPLOYMENT", help="measure a packaged run instead")
    options = parser.parse_args()
    if options.real is not None:
        return real_share(options.real)
    return scaling(options.ranks, options.phase_ms / 1e3)


if __name__ == "__main__":
    raise SystemExit(main())
