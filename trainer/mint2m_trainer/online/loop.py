"""`mint2m online`: a plan, then step after step, each sampled, trained, sealed and verified, then one statement.

The rule: a step exists when its run is sealed, and not before. Its draws are written down first and its run names
them, so whoever was stopped goes on from the last seal: draws that were written are trained on, draws that were not
are drawn again from the same seeds, and a run without a seal is set aside. Everything that enters a step follows from
the plan and the step before, so a training that was stopped anywhere ends with the weights of one that never was.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.cluster.cleanup import cleanup
from mint2m_trainer.cluster.interrupt import terminated_like_interrupted
from mint2m_trainer.cluster.progress import Silent, Watcher
from mint2m_trainer.online.search import Search, SearchRow, search
from mint2m_trainer.online.setting import Setting, read_setting
from mint2m_trainer.online.step_inputs import Earlier, Start, write_inputs
from mint2m_trainer.online.watch import Watch, head
from mint2m_trainer.run import RunRequest, run
from mint2m_verify import layout
from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.doctor.machine import backend_fault
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.manifests import FileManifest
from mint2m_verify.documents.training import FinishedStep, Training, TrainingPlan, TrainingStep
from mint2m_verify.draws import response_seed
from mint2m_verify.files import read_once, sync_directory, write_atomic
from mint2m_verify.finding import FindingError, Report, Verdict, found
from mint2m_verify.run import verify_run
from mint2m_verify.signing import create_file
from mint2m_verify.statement import BUNDLE_LIMIT, parse_bundle
from mint2m_verify.training import places
from mint2m_verify.training.rules import rows_to_try, run_nonce
from mint2m_verify.training.statement import training_payload
from mint2m_verify.training.verify import verify_training

_ABANDONED = places.NO_EVIDENCE[0]

#: How a checkpoint is called there while it is removed.
_LET_GO = "-checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRequest:
    """What the operator asked for; `resume` goes on with the training in `directory`."""

    deployment: Path
    steps: int
    directory: Path
    resume: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """Where the next step begins; `adapter` None is a fresh one, `moments` None zero state."""

    number: int
    parent: str | None
    policy_sha256: str | None
    adapter: Path | None
    moments: Path | None
    row: int


def online(request: OnlineRequest, watcher: Watcher | None = None) -> Report:
    """Do all of it; the report is `verify training`'s, with the key that signed.

    Raises:
        FindingError: what stopped it; finished steps stay, and `--resume` goes on from them.
    """
    watcher = watcher or Silent()
    unavailable = backend_fault()
    if unavailable is not None:
        raise FindingError(unavailable)
    setting = read_setting(request.deployment, steps=request.steps)
    root = request.directory
    _open(root, setting, resume=request.resume)
    with _held(root), terminated_like_interrupted():
        _tidy(root)
        watch = Watch(root, setting.plan)
        watcher.stage("", head())
        state = _first(setting)
        finished: list[FinishedStep] = []
        for number in range(request.steps):
            made_before = (root / places.run_folder(number) / layout.SEAL).exists()
            state, done = _step(root, setting, state, watcher)
            finished.append(done)
            _let_go(root, setting.plan, number)
            watcher.stage(f"step {number}", watch.add(number))
            if not made_before or number == request.steps - 1:
                watch.publish()
        _sign(root, setting, finished, watcher)
    return verify_training(root, read_key(setting.public_key), VerifyOptions(progress=watcher.advance))


def _open(root: Path, setting: Setting, *, resume: bool) -> None:
    """A new directory with its plan, or one that began with this very plan."""
    raw = setting.plan.encode()
    if resume:
        was = TrainingPlan.parse(read_once(root / places.PLAN, name=places.PLAN), file=places.PLAN)
        for member in TrainingPlan.__dataclass_fields__:
            want, have = getattr(was, member), getattr(setting.plan, member)
            if want != have:
                pointer = f"/{member}"
                raise FindingError(
                    found(
                        "online.plan-differs", file=places.PLAN, pointer=pointer, expected=str(want), actual=str(have)
                    )
                )
        return
    if root.is_symlink() or (root.exists() and (not root.is_dir() or any(root.iterdir()))):
        raise FindingError(found("output.not-empty", file=str(root)))
    try:
        (root / "inputs").mkdir(parents=True)
    except OSError as fault:
        raise FindingError(found("file.unwritable", file=str(root), actual=fault.strerror)) from fault
    write_atomic(root / places.PROFILE, setting.profile_raw)
    write_atomic(root / places.DATASET, setting.dataset_raw)
    write_atomic(root / places.PLAN, raw)  # last: with it the training has begun


@contextlib.contextmanager
def _held(root: Path) -> Iterator[None]:
    """One process at a time; the lock is the directory's, so it leaves no file and ends with the process."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise FindingError(found("online.in-use", file=str(root))) from fault
        yield
    finally:
        os.close(descriptor)


def _tidy(root: Path) -> None:
    """Remove what a process that was killed had half written under a temporary name."""
    steps = sorted((root / places.STEPS).glob("*"))
    seals = [run / layout.ATTESTATIONS for step in steps for run in sorted(step.glob("*"))]
    for folder in (root, root / "inputs", root / "attestations", *steps, *seals):
        for path in folder.glob(".*.partial"):
            path.unlink()
    for path in (root / _ABANDONED).glob(f"*{_LET_GO}"):
        shutil.rmtree(path)


def _let_go(root: Path, plan: TrainingPlan, last: int) -> None:
    """Remove the checkpoints that the plan lets go: each is first moved out of the evidence, so whole or not at all."""
    for step in range(last):
        checkpoint = root / places.run_folder(step) / "checkpoint"
        if plan.lets_go(step, last=last) and checkpoint.exists():
            (root / _ABANDONED).mkdir(exist_ok=True)
            gone = root / _ABANDONED / f"{step:04d}{_LET_GO}"
            checkpoint.rename(gone)
            sync_directory(checkpoint.parent)
            shutil.rmtree(gone)


def _first(setting: Setting) -> _State:
    plan = setting.plan
    return _State(number=0, parent=None, policy_sha256=plan.policy_sha256, adapter=setting.adapter, moments=None, row=0)


def _step(root: Path, setting: Setting, state: _State, watcher: Watcher) -> tuple[_State, FinishedStep]:
    """The step, unless it is finished already; and where the next one begins."""
    run_root = root / places.run_folder(state.number)
    if not (run_root / layout.SEAL).exists():
        _set_aside(root, state.number, setting.plan.prompts)
        step = _drawn(root, setting, state, watcher)
        _train(root, setting, state, step, watcher)
    elif not (root / places.step_file(state.number + 1)).exists():
        # The last that was finished: what was made before the next one began was looked at then.
        for index in range(setting.plan.prompts):
            _check(root, setting, places.prompt_folder(state.number, index, setting.plan.prompts))
    step = _read_step(root, state.number)
    finished = _finished(root, state.number)
    following = _State(
        number=state.number + 1,
        parent=finished.seal_sha256,
        policy_sha256=finished.policy_sha256,
        adapter=run_root / "adapter",
        moments=run_root / layout.OPTIMIZER_AFTER if setting.plan.moments == "carried" else None,
        row=(state.row + len(step.attempts)) % len(setting.rows),
    )
    return following, finished


def _drawn(root: Path, setting: Setting, state: _State, watcher: Watcher) -> TrainingStep:
    """What the step drew: as it was written down, or drawn now and written down."""
    path = root / places.step_file(state.number)
    if not path.exists():
        watcher.advance(f"step {state.number}", 0, 2)
        path.parent.mkdir(parents=True, exist_ok=True)
        attempts = search(_search(setting, state))
        step = TrainingStep(
            step=state.number,
            plan_sha256=setting.plan.sha256,
            parent=state.parent,
            policy_sha256=state.policy_sha256,
            attempts=attempts,
        )
        write_atomic(path, step.encode())
    step = _read_step(root, state.number)
    if (step.parent, step.plan_sha256) != (state.parent, setting.plan.sha256):
        expected, actual = f"parent {state.parent}", f"parent {step.parent}"
        raise FindingError(found("online.step-broken", file=str(path), expected=expected, actual=actual))
    if not step.attempts[-1].signal:
        rows = ", ".join(str(attempt.row) for attempt in step.searches[-1])
        raise FindingError(found("online.search-exhausted", file=str(path), actual=f"rows {rows}"))
    if len(step.groups) != setting.plan.prompts:
        expected, actual = f"{setting.plan.prompts} groups with signal", str(len(step.groups))
        raise FindingError(found("online.step-broken", file=str(path), expected=expected, actual=actual))
    return step


def _search(setting: Setting, state: _State) -> Search:
    plan = setting.plan
    rows = []
    due = rows_to_try(state.row, plan.prompts * plan.rows_per_step, plan.rows)
    tokens = {row: tuple(setting.rows[row].text.encode("utf-8")) for row in set(due)}  # rows come round again
    for attempt, row in enumerate(due):
        seeds = (
            response_seed(plan.seed, step=state.number, attempt=attempt, response=response)
            for response in range(setting.profile.group_size)
        )
        rows.append(
            SearchRow(
                row=row,
                prompt_tokens=tokens[row],
                ground_truth=setting.rows[row].ground_truth,
                seeds=tuple(seeds),
            )
        )
    return Search(
        profile=setting.profile,
        snapshot=setting.snapshot,
        adapter=state.adapter,
        rows=tuple(rows),
        parameters=plan.sampling,
        reward_rule=plan.reward_rule,
        prompts=plan.prompts,
        rows_each=plan.rows_per_step,
    )


def _train(root: Path, setting: Setting, state: _State, step: TrainingStep, watcher: Watcher) -> None:
    """The step's runs, one a prompt, each sealed before the next goes on from its gradient; the last takes the step."""
    prompts, earlier = setting.plan.prompts, None
    for index in range(prompts):
        watcher.advance(f"step {state.number}", 1 + index, 1 + prompts)
        place = places.prompt_folder(state.number, index, prompts)
        if (root / place / layout.SEAL).exists():
            _check(root, setting, place)  # of a process that was stopped after it
        else:
            start = Start(adapter=state.adapter, moments=state.moments, earlier=earlier)
            _train_on(root / place, setting, step, index, start)
        earlier = Earlier(directory=root / place, seal_sha256=_seal_sha256(root / place))
    watcher.advance(f"step {state.number}", 1 + prompts, 1 + prompts)


def _train_on(place: Path, setting: Setting, step: TrainingStep, index: int, start: Start) -> None:
    prompts = setting.plan.prompts
    name = f"{setting.plan.name}-{step.step:04d}"
    with tempfile.TemporaryDirectory(prefix="mint2m-step-") as folder:
        deployment = write_inputs(Path(folder), setting, step, index, start)
        result = run(
            RunRequest(
                deployment=str(deployment),
                output=place,
                signer=setting.signer,
                run_id=name if prompts == 1 else f"{name}-{index:04d}",
                instance_nonce=run_nonce(step.sha256, index, prompts),
            )
        )
    if result.report.verdict is not Verdict.ACCEPTED:
        raise FindingError(result.report.findings[0])


def _set_aside(root: Path, number: int, prompts: int) -> None:
    """A run that was begun and not sealed: what it owned is removed, what it wrote is kept out of the evidence."""
    runs = (root / places.prompt_folder(number, index, prompts) for index in range(prompts))
    started = next((run for run in runs if not (run / layout.SEAL).exists()), None)
    if started is None or not started.exists():
        return
    plan, journal = started / layout.PLAN, started / layout.OWNERSHIP
    if plan.exists() and journal.exists():
        report = cleanup(plan, journal)
        if report.verdict is not Verdict.ACCEPTED:
            raise FindingError(report.findings[0])
    place = root / _ABANDONED
    place.mkdir(exist_ok=True)
    taken = sum(path.name.startswith(f"{number:04d}-") for path in place.iterdir())
    started.rename(place / f"{number:04d}-{taken}")


def _check(root: Path, setting: Setting, run: str) -> None:
    """A finished run that the next is built on must verify with the key that will sign the next."""
    folder = root / run
    report = verify_run(folder, read_key(setting.public_key), VerifyOptions())
    if report.verdict is not Verdict.ACCEPTED:
        fault = report.roots[0]
        raise FindingError(found("online.step-broken", file=str(folder), actual=f"{fault.id} {fault.file or ''}"))


def _read_step(root: Path, number: int) -> TrainingStep:
    path = places.step_file(number)
    return TrainingStep.parse(read_once(root / path, name=path), file=path)


def _finished(root: Path, number: int) -> FinishedStep:
    """What a sealed step is called by whatever follows it."""
    folder = root / places.run_folder(number)
    manifest = folder / layout.ADAPTER_MANIFEST
    adapter = FileManifest.parse(read_once(manifest, name=layout.ADAPTER_MANIFEST), file=layout.ADAPTER_MANIFEST)
    path = places.step_file(number)
    return FinishedStep(
        step=FileRef.of(path, read_once(root / path, name=path)),
        seal_sha256=_seal_sha256(folder),
        policy_sha256=adapter.root_sha256,
    )


def _seal_sha256(run: Path) -> str:
    """The digest of the payload of a run's seal."""
    seal = parse_bundle(read_once(run / layout.SEAL, name=layout.SEAL, limit=BUNDLE_LIMIT), file=layout.SEAL)
    return sha256_hex(seal.payload)


def _sign(root: Path, setting: Setting, finished: list[FinishedStep], watcher: Watcher) -> None:
    """The file over all steps and the statement over it; a second time changes nothing."""
    plan_raw = setting.plan.encode()
    training = Training(plan=FileRef.of(places.PLAN, plan_raw), steps=tuple(finished))
    write_atomic(root / places.TRAINING, training.encode())
    place = root / places.STATEMENT
    if not place.exists():
        payload = training_payload(training.encode(), setting.plan, setting.plan.sha256)
        place.parent.mkdir(exist_ok=True)
        create_file(place, setting.signer.signer.sign_statement(payload))
    watcher.stage("training", f"{len(finished)} steps, signed by {setting.signer.signer.describe()}")
