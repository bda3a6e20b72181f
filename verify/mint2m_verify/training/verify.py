"""`mint2m verify training DIR`: every step of an online training, and that the steps are one training.

The rule: each step's run is judged as `verify run` judges any run, by the same anchor; then the steps against the plan
that was fixed before them and against each other; last the statement over all of them. Every check runs whatever came
before. A training that is not finished is told apart from one that is wrong: what is there may hold, and is not all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.anchor import (
    Anchor,
    ConsistencyOnly,
    KeyAnchor,
    NoAnchor,
    VerifyOptions,
    check_outside_of,
)
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain.vouching import Signers, read_signed
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.training import FinishedStep, Training
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, NamedDigest, Report, Standing, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.rewards import computable
from mint2m_verify.run import examine_run
from mint2m_verify.seal import counted, short
from mint2m_verify.statement import BUNDLE_LIMIT
from mint2m_verify.training import places, step_check
from mint2m_verify.training.exhibits import ShownStep, shown_step, training_exhibits
from mint2m_verify.training.origin import Origin, check_origin, judge_training, notes_of, trust_of
from mint2m_verify.training.reading import (
    Promised,
    ReadStep,
    StepRun,
    gradients_present,
    read_promised,
    read_step,
    step_run,
    steps_present,
    unexpected,
)
from mint2m_verify.training.statement import training_payload

_NOT_CHECKED = (
    "that the policy gives these log-probs and gradients (a replay of each run shows that)",
    "that the policy would have drawn these tokens (a replay of each step shows that)",
    "that the plan was written before the first step: order is by digests, and only the signer knows when",
    "when the steps took place: times are the operator's word",
    "that each rank ran once, on the hardware that it names (the operator's word)",
    f"what lies in {' and '.join(f'{name}/' for name in places.NO_EVIDENCE)}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verified:
    """A step that could be read; its documents, which may be long, are not kept.

    `finished` is how the training's own file must name it, `rows` how many it tried, `shown` what a report shows;
    `modes` are how its runs' seals are vouched for.
    """

    finished: FinishedStep
    moments_sha256: str
    accepted: bool
    modes: tuple[str, ...]
    rows: int
    shown: ShownStep


def _kept(step: ReadStep, runs: Sequence[StepRun], *, accepted: bool) -> _Verified | None:
    last = runs[-1]
    if last.adapter is None or last.moments_sha256 is None:
        return None  # it took no step, for which there is a finding
    return _Verified(
        finished=FinishedStep(
            step=FileRef(path=places.step_file(step.number), sha256=step.sha256, size=step.size),
            seal_sha256=last.seal_sha256,
            policy_sha256=last.adapter.root_sha256,
        ),
        moments_sha256=last.moments_sha256,
        accepted=accepted,
        modes=tuple(run.mode for run in runs),
        rows=len(step.document.attempts),
        shown=shown_step(step, runs),
    )


def verify_training(root: Path, anchor: Anchor, options: VerifyOptions) -> Report:
    """Everything that can be established offline about the training directory `root`.

    Args:
        anchor: a key or a policy answers for every run's seal and for the training's statement, a digest for that
            statement's payload.

    Raises:
        FindingError: `root` is no directory, or a directory in it cannot be looked at.
    """
    try:
        if not root.exists():
            raise FindingError(found("input.missing", file=str(root)))
        if not root.is_dir():
            raise FindingError(found("input.not-a-directory", file=str(root)))
        return _verify(root, anchor, options)
    except OSError as fault:  # files are read where faults are findings; only looking into directories is left
        name = str(root) if fault.filename is None else str(fault.filename)
        raise FindingError(found("file.unreadable", file=name, actual=fault.strerror)) from fault


def _verify(root: Path, anchor: Anchor, options: VerifyOptions) -> Report:
    log = Findings()
    log.add(check_outside_of(anchor, root))
    log.judge("nothing that has no place in a training", Standing.CHECKED, _all_known(root))
    promised, origin = _promised(log, root), Origin(signers=Signers())
    if promised is None:
        log.not_reached("every step as planned", (places.PLAN,))
        return _report(root, anchor, options, log, None, (), origin)
    verified = _steps(log, root, promised, anchor, options)
    _statement(log, root, promised, verified, anchor, origin)
    return _report(root, anchor, options, log, promised, verified, origin)


def _all_known(root: Path) -> Check:
    yield from unexpected(root)
    return "nothing else is there"


def _promised(log: Findings, root: Path) -> Promised | None:
    held: list[Promised] = []

    def read() -> Check:
        try:
            held.append(read_promised(root))
        except FindingError as fault:
            yield fault.finding
            return "unreadable"
        plan = held[0].plan
        return f"{plan.steps} steps over {plan.rows} rows, seed {plan.seed}, {plan.reward_rule}"

    log.judge("plan, profile and dataset", Standing.CHECKED, read())
    return held[0] if held else None


def _steps(
    log: Findings, root: Path, promised: Promised, anchor: Anchor, options: VerifyOptions
) -> tuple[_Verified | None, ...]:
    present = _begun_and_sealed(root)
    last = max(present, default=-1)
    verified: list[_Verified | None] = []
    before: step_check.Before | None = step_check.Before(
        parent=None, policy_sha256=promised.plan.policy_sha256, moments_sha256=None, row=0
    )
    for number in range(max(promised.plan.steps, last + 1)):
        if number not in present:
            gap = number < last or (root / places.TRAINING).exists()
            log.judge(f"step {number}", Standing.CHECKED, _absent(number, gap=gap))
            verified.append(None)
            before = None
            continue
        if number >= promised.plan.steps:
            log.judge(f"step {number}", Standing.CHECKED, _unplanned(number, promised.plan.steps))
        looked_at = replace(options, checkpoint_may_be_gone=promised.plan.lets_go(number, last=last))
        one = _step(log, root, number, promised, before, anchor, looked_at)
        verified.append(one)
        before = None if one is None else _after(one, before, promised)
    return tuple(verified)


def _begun_and_sealed(root: Path) -> tuple[int, ...]:
    """Steps to judge: all that are there, but a last one without a seal where nobody says that the training is over.

    Such a step was begun and is no step yet. To take a seal away gains nothing: the training is then unfinished.
    """
    present = steps_present(root)
    sealed = bool(present) and (root / places.run_folder(present[-1]) / layout.SEAL).exists()
    return present if sealed or (root / places.TRAINING).exists() else present[:-1]


def _after(one: _Verified, before: step_check.Before | None, promised: Promised) -> step_check.Before | None:
    if before is None:
        return None
    return step_check.Before(
        parent=one.finished.seal_sha256,
        policy_sha256=one.finished.policy_sha256,
        moments_sha256=one.moments_sha256,
        row=(before.row + one.rows) % promised.plan.rows,
    )


def _step(
    log: Findings,
    root: Path,
    number: int,
    promised: Promised,
    before: step_check.Before | None,
    anchor: Anchor,
    options: VerifyOptions,
) -> _Verified | None:
    """One step; None where its files cannot be read, for which there is a finding."""
    examined = _runs(log, root, number, promised, anchor, options)
    runs = [run for run, _ in examined if run is not None]
    name, file = f"step {number}", places.step_file(number)
    try:
        step = read_step(root, number)
    except FindingError as fault:
        log.unreadable(file, (fault.finding,))
        log.not_reached(f"{name}: as planned", (file,))
        return None
    log.judge(f"{name}: seeds, ends and log-probs", Standing.CHECKED, step_check.check_draws(promised, step))
    standing = Standing.DERIVED if computable(promised.plan.reward_rule) else Standing.ATTESTED_ONLY
    log.judge(f"{name}: rewards from the text", standing, step_check.check_rewards(promised, step))
    if before is not None:
        log.judge(f"{name}: rows in order", Standing.CHECKED, step_check.check_search(promised, step, before))
    else:
        log.not_reached(f"{name}: rows in order", (file,))
    if len(runs) < len(examined):
        log.not_reached(f"{name}: its run is its own", (places.run_folder(number),))
        return None
    if before is not None:
        check = step_check.check_links(promised, step, runs, before)
        log.judge(f"{name}: goes on from the one before", Standing.CHECKED, check)
    else:
        log.not_reached(f"{name}: goes on from the one before", (file,))
    check = step_check.check_accumulation(promised, step, runs)
    log.judge(f"{name}: one run a prompt, each on top of the one before", Standing.CHECKED, check)
    for index, run in enumerate(runs):
        which = _named(number, index, promised)
        group = step_check.check_group(promised, step, index, run)
        log.judge(f"{which}: trained on what was drawn", Standing.CHECKED, group)
        policy = step_check.check_policy(promised, step, index, run)
        log.judge(f"{which}: drawn by the policy that trained", Standing.ATTESTED_ONLY, policy)
    return _kept(step, runs, accepted=all(accepted for _, accepted in examined))


def _named(number: int, index: int, promised: Promised) -> str:
    """A run of a step in the rows of a report."""
    return f"step {number}" if promised.plan.prompts == 1 else f"step {number}, prompt {index}"


def _runs(
    log: Findings, root: Path, number: int, promised: Promised, anchor: Anchor, options: VerifyOptions
) -> list[tuple[StepRun | None, bool]]:
    """The run of each prompt of the step; there may be no other."""
    prompts = promised.plan.prompts
    extra = [index for index in gradients_present(root, number) if index >= prompts - 1]
    if extra:
        log.judge(f"step {number}: no run but its prompts'", Standing.CHECKED, _unasked(number, extra))
    examined: list[tuple[StepRun | None, bool]] = []
    for index in range(prompts):
        folder, name = places.prompt_folder(number, index, prompts), _named(number, index, promised)
        if not (root / folder).is_dir():
            id = "training.accumulation-mismatch" if index < prompts - 1 else "training.step-missing"
            log.judge(f"{name}: run", Standing.CHECKED, _no_run(folder, id))
            examined.append((None, False))
        else:
            examined.append(_run(log, root, folder, name, anchor, options))
    return examined


def _no_run(folder: str, id: str) -> Check:
    yield found(id, file=folder, expected="the run of a prompt", actual="no directory")
    return "absent"


def _unasked(number: int, extra: Sequence[int]) -> Check:
    for index in extra:
        # Not the last of that many prompts, or it would be the step's run itself.
        yield found("tree.file-unexpected", file=places.prompt_folder(number, index, index + 2))
    return "others"


def _run(
    log: Findings, root: Path, folder: str, name: str, anchor: Anchor, options: VerifyOptions
) -> tuple[StepRun | None, bool]:
    """A step's run as `verify run` sees it, its findings under its own path; and whether it found nothing."""
    # A digest names the statement, which names every seal; who sealed a run is then nobody's question.
    mine = anchor if isinstance(anchor, KeyAnchor | PolicyAnchor) else ConsistencyOnly()
    try:
        its = VerifyOptions(progress=options.progress, checkpoint_may_be_gone=options.checkpoint_may_be_gone)
        examined = examine_run(root / folder, mine, its)
    except FindingError as fault:
        log.judge(f"{name}: run", Standing.CHECKED, _only(_placed(fault.finding, folder)))
        return None, False
    report = examined.report
    accepted = log.judge(f"{name}: run", Standing.DERIVED, _judged(report, folder))
    seal = next((digest.sha256 for digest in report.trust.digests if digest.name == "seal"), None)
    return step_run(examined, seal), accepted


def _judged(report: Report, folder: str) -> Check:
    for fault in report.findings:
        yield _placed(fault, folder)
    return f"{len(report.requirements)} requirements, as verify run"


def _placed(fault: Finding, folder: str) -> Finding:
    """A run's finding where the run lies; what is about no file of it stays as it is."""
    cause = None if fault.cause is None else _placed(fault.cause, folder)
    inside = fault.file is not None and not fault.file.startswith("/")
    return replace(fault, file=f"{folder}/{fault.file}" if inside else fault.file, cause=cause)


def _absent(number: int, *, gap: bool) -> Check:
    id = "training.step-missing" if gap else "training.unfinished"
    yield found(id, file=places.step_folder(number), expected=f"step {number}, which the plan promises")
    return "absent"


def _unplanned(number: int, steps: int) -> Check:
    yield found(
        "training.order-mismatch", file=places.step_folder(number), expected=f"{steps} steps", actual=f"step {number}"
    )
    return "not planned"


def _only(fault: Finding) -> Check:
    yield fault
    return fault.id


def _statement(
    log: Findings,
    root: Path,
    promised: Promised,
    verified: Sequence[_Verified | None],
    anchor: Anchor,
    origin: Origin,
) -> None:
    """The training's own file and the statement over it."""
    required = "one statement over all steps"
    if not (root / places.TRAINING).exists() and any(one is None for one in verified):
        log.judge(required, Standing.CHECKED, _only(found("training.unfinished", file=places.TRAINING)))
    else:
        standing = Standing.UNVERIFIABLE if isinstance(anchor, ConsistencyOnly) else Standing.CHECKED
        log.judge(required, standing, _signed(root, promised, verified, anchor, origin))
        runs = bool(verified) and all(one is not None and one.accepted for one in verified)
        judge_training(log, anchor, origin, promised.plan, runs=runs)
    if isinstance(anchor, NoAnchor):
        log.add([found("trust.no-anchor")])


def _signed(
    root: Path,
    promised: Promised,
    verified: Sequence[_Verified | None],
    anchor: Anchor,
    origin: Origin,
) -> Check:
    file = places.TRAINING
    try:
        raw = read_once(root / file, name=file)
        training = Training.parse(raw, file=file)
        bundle = read_once(root / places.STATEMENT, name=places.STATEMENT, limit=BUNDLE_LIMIT)
        signed = read_signed(bundle, file=places.STATEMENT, anchor=anchor)
    except FindingError as fault:
        yield fault.finding
        return "unreadable"
    origin.payload = sha256_hex(signed.payload)
    yield from _lists(training, promised, verified)
    want = training_payload(raw, promised.plan, promised.sha256)
    if signed.payload != want:
        yield found(
            "training.statement-mismatch",
            file=places.STATEMENT,
            pointer="/dsseEnvelope/payload",
            expected=f"training/v1 over {file} {sha256_hex(raw)}",
            actual=f"payload {origin.payload}",
        )
    yield from check_origin(signed, anchor, origin)
    return f"{len(training.steps)} steps, payload {short(origin.payload)}"


def _lists(training: Training, promised: Promised, verified: Sequence[_Verified | None]) -> Iterator[Finding]:
    """The file names exactly the steps that were verified, and this plan."""
    file = places.TRAINING
    if (training.plan.path, training.plan.sha256) != (places.PLAN, promised.sha256):
        yield found(
            "training.plan-mismatch", file=file, pointer="/plan", expected=promised.sha256, actual=training.plan.sha256
        )
    if len(training.steps) != promised.plan.steps:
        expected = f"{promised.plan.steps} steps"
        actual = str(len(training.steps))
        yield found("training.order-mismatch", file=file, pointer="/steps", expected=expected, actual=actual)
    for number, (named, one) in enumerate(zip(training.steps, verified, strict=False)):
        if one is not None and named != one.finished:
            right = one.finished
            yield found(
                "training.step-mismatch",
                file=file,
                pointer=f"/steps/{number}",
                expected=f"step {right.step.sha256}, seal {right.seal_sha256}",
                actual=f"step {named.step.sha256}, seal {named.seal_sha256}",
            )


def _report(
    root: Path,
    anchor: Anchor,
    options: VerifyOptions,
    log: Findings,
    promised: Promised | None,
    verified: Sequence[_Verified | None],
    origin: Origin,
) -> Report:
    stuck = [*log.unreached, *(row.required for row in log.requirements if row.standing is Standing.FAILED)]
    if stuck and not log.findings:
        log.add([found("verify.not-reached", actual=", ".join(stuck))])
    findings = log.findings
    anchored = origin.payload is not None and not any(
        fault.id.startswith(("trust.", "signature.", "seal.", "policy.")) or fault.id == "training.statement-mismatch"
        for fault in findings
    )
    digests = [] if origin.payload is None else [NamedDigest(name="training", sha256=origin.payload)]
    notes = [*_NOT_CHECKED, *notes_of(anchor, origin)]
    if promised is not None:
        digests.append(NamedDigest(name="plan", sha256=promised.sha256))
        if not computable(promised.plan.reward_rule):
            notes.append(f"the rewards: {promised.plan.reward_rule} is not installed here")
        if promised.plan.checkpoints_kept is not None:
            kept = counted(promised.plan.checkpoints_kept, "step")
            notes.append(f"checkpoints older than the last {kept}: of those removed, only the manifests are here")
    good = sum(one is not None for one in verified)
    modes = [mode for one in verified if one is not None for mode in one.modes]
    return Report(
        subject=str(root),
        command="verify training",
        requirements=log.requirements,
        findings=findings,
        not_checked=tuple(notes),
        trust=trust_of(anchor, origin, digests, anchored=anchored, runs=modes),
        evaluated_at=anchor.evaluated_at if isinstance(anchor, PolicyAnchor) else options.at,
        summary=f"{good} steps, one training" if not findings else "",
        exhibits=training_exhibits([one.shown for one in verified if one is not None], log.requirements),
    )
