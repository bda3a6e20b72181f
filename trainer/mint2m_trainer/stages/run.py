"""`mint2m stage NAME` and `mint2m stage all`: refuse, work, judge, seal, verify.

The rule: a stage is over when the chain through it verifies with the operator's own public key. Whatever stops it
before leaves the evidence directory as it was, apart from files without a seal, which count for nothing. A long stage
keeps its progress beside the evidence until then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mint2m_trainer.cluster.interrupt import terminated_like_interrupted
from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.cluster.progress import Silent, Watcher
from mint2m_trainer.resume.folder import remove_progress
from mint2m_trainer.run import ChosenSigner
from mint2m_trainer.stages import doctor_stage, kernel_stage, labels, scale_stage
from mint2m_trainer.stages.leftovers import clear_abandoned, discard_work, working_in
from mint2m_trainer.stages.observing import look
from mint2m_trainer.stages.ray_stage import RankWork, environment_settings, run_ranks
from mint2m_trainer.stages.setting import Inputs, Setting, Signing, check_start, read_inputs
from mint2m_trainer.stages.writing import Bundled, Done, begin, bundle, commit
from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.places import ORDER, PLACES
from mint2m_verify.chain.verify import verify_chain
from mint2m_verify.doctor.machine import backend_fault
from mint2m_verify.documents import Rollout, RunProfile
from mint2m_verify.documents.validation import StageName
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.seal import short
from mint2m_verify.sealing import own_anchor
from mint2m_verify.signing import create_file

#: The hint of an interrupted stage.
_GOES_ON = "nothing of it is left; the same command takes the stage again, a long one from what was kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """What the operator asked for."""

    validation_plan: Path
    run_id: str
    evidence: Path
    signer: ChosenSigner
    plan_key: Path | None = None


def run_stage(stage: StageName, request: StageRequest, watcher: Watcher | None = None) -> Report:
    """One stage, from its parent's bundle to its own; the report is that of the chain through it.

    Raises:
        FindingError: why it did not start (exit 2), or what stopped it.
    """
    watcher = watcher or Silent()
    inputs, signing = read_inputs(request.validation_plan), _signing(request)
    with terminated_like_interrupted():
        return _run(stage, request, inputs, signing, watcher)


def run_all(request: StageRequest, watcher: Watcher | None = None) -> Report:
    """Every stage that the plan requires and that has no seal yet, in order; the report is that of the whole chain."""
    watcher = watcher or Silent()
    inputs, signing = read_inputs(request.validation_plan), _signing(request)
    report: Report | None = None
    with terminated_like_interrupted():
        for stage in inputs.plan.required_stages:
            if (request.evidence / PLACES[stage].seal).exists():
                watcher.stage(stage, "sealed already")
                continue
            report = _run(stage, request, inputs, signing, watcher)
            if report.findings:
                return report
    return report or verify_chain(
        request.evidence, own_anchor(signing.signer, signing.path), ChainOptions(plan_anchor=signing.plan_anchor)
    )


def _signing(request: StageRequest) -> Signing:
    return Signing(
        signer=request.signer.signer,
        path=request.signer.source,
        plan_anchor=None if request.plan_key is None else read_key(request.plan_key),
    )


def _run(stage: StageName, request: StageRequest, inputs: Inputs, signing: Signing, watcher: Watcher) -> Report:
    unavailable = backend_fault()
    if unavailable is not None:
        raise FindingError(unavailable)
    before = look(inputs.plan.image_digest)
    planned = check_start(stage, inputs, request.evidence, request.run_id, signing, before)
    execution_id = secrets.token_hex(32)
    evidence = request.evidence.resolve()
    work = evidence.with_name(f"{evidence.name}.work-{stage}-{execution_id[:16]}")
    setting = Setting(
        stage=stage,
        planned=planned,
        inputs=inputs,
        evidence=evidence,
        work=work,
        run_id=request.run_id,
        execution_id=execution_id,
        before=before,
        signing=signing,
    )
    clear_abandoned(evidence, inputs.deployment.ray_address)
    if stage == ORDER[0]:
        begin(inputs, evidence)
    with working_in(work):
        try:
            done = _WORK[stage](setting, watcher)
            if done.after != before:
                raise FindingError(
                    found("stage.changed-while-running", stage=stage, expected=str(before), actual=str(done.after))
                )
            made = bundle(setting, done)
        except FindingError as stop:
            if discard_work(work) and stop.finding.id == "run.interrupted":
                # With the directory went the journal that a run's own hint names.
                raise FindingError(replace(stop.finding, hint=_GOES_ON)) from stop
            raise
        except BaseException:
            discard_work(work)
            raise
        if made.findings:
            return _refused(setting, made)
        digest, seal = commit(setting)
    # Nobody shall hold a seal over a stage that its own signer refuses, or has not judged.
    place = PLACES[stage].seal
    report = verify_chain(
        evidence,
        own_anchor(signing.signer, signing.path),
        ChainOptions(verify=VerifyOptions(proposed={place: seal}), through=stage, plan_anchor=signing.plan_anchor),
    )
    if not report.findings:
        create_file(evidence / place, seal)
        watcher.stage("seal", f"{evidence / place}  payload {short(digest)}")
        remove_progress(setting.progress)
    watcher.stage(stage, report.verdict.word)
    return report


def _refused(setting: Setting, made: Bundled) -> Report:
    # Kept beside the evidence for whoever wants to know why; the chain itself stays as it was.
    kept = setting.work.with_name(setting.work.name.replace(".work-", ".refused-"))
    setting.work.rename(kept)
    rows = tuple(
        Requirement(
            required=f"{number.name}",
            found="no value" if number.value is None else f"{number.value:.9g}",
            standing=Standing(number.standing) if number.holds else Standing.FAILED,
        )
        for number in made.judged.judged
        if number.at_least is not None or number.at_most is not None
    )
    findings: tuple[Finding, ...] = made.findings
    return Report(
        subject=str(kept),
        command=f"stage {setting.stage}",
        requirements=rows,
        findings=findings,
        not_checked=("anything of the stages after it: they may not run",),
        summary=f"{setting.stage} did not pass; its artifacts stay in {kept}",
    )


def _doctor(setting: Setting, _watcher: Watcher) -> Done:
    return doctor_stage.work(setting)


def _kernel(setting: Setting, _watcher: Watcher) -> Done:
    return kernel_stage.work(setting)


def _on_ranks(worker: str, labels: tuple[str, ...]) -> Callable[[Setting, Watcher], Done]:
    """A stage whose work is done by Ray ranks alone."""

    def work(setting: Setting, watcher: Watcher) -> Done:
        started_at = utc_now()
        fixture, folder = setting.planned.fixture, setting.inputs.directory
        profile = rollout = None
        if fixture is not None:
            path = fixture.profile.path
            profile = RunProfile.parse(read_once(folder / path), file=path, canonical_form=False)
            rollout = Rollout.parse(read_once(folder / fixture.rollout.path), file=fixture.rollout.path)
        ranks = run_ranks(setting, RankWork(worker=worker, labels=labels, profile=profile, rollout=rollout), watcher)
        return Done(
            started_at=started_at,
            ended_at=utc_now(),
            after=look(setting.plan.image_digest),
            ranks=ranks,
            settings=environment_settings(),
        )

    return work


_PACKAGE = "mint2m_trainer.stages"
_PARITY = _on_ranks(f"{_PACKAGE}.parity_worker:ParityWorker", labels.PARITY)

_WORK: Mapping[StageName, Callable[[Setting, Watcher], Done]] = {
    "doctor": _doctor,
    "kernel": _kernel,
    "nccl": _on_ranks(f"{_PACKAGE}.collective_worker:CollectiveWorker", labels.COLLECTIVES),
    "actor": _on_ranks(f"{_PACKAGE}.actor_worker:ActorWorker", labels.ACTOR),
    "parity-32k": _PARITY,
    "parity-64k": _PARITY,
    "scale-2m": scale_stage.work,
}
