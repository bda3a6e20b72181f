"""`mint2m run`: doctor, plan, train, sign, self-verify, in that order, into one new directory.

The rule: each step is the same function that its own command calls, and the last one is the auditor's: the verdict of
a run is what `verify run` says of the directory, with the public key of whoever signed it, and nothing else.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mint2m_trainer.cluster.driver import BACKEND, train
from mint2m_trainer.cluster.interrupt import terminated_like_interrupted
from mint2m_trainer.cluster.narration import plan_text
from mint2m_trainer.cluster.progress import Silent, Watcher
from mint2m_trainer.deployments import PACKAGED, build
from mint2m_trainer.rehearsal import write_rehearsal
from mint2m_trainer.resume.folder import Progress
from mint2m_verify import layout
from mint2m_verify.deployment_files import PlannedInputs
from mint2m_verify.doctor import examine_run
from mint2m_verify.doctor.machine import backend_fault
from mint2m_verify.documents.inputs import Deployment, RunProfile
from mint2m_verify.documents.plan import Plan
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import FindingError, Report, found
from mint2m_verify.plan import build_plan, check_labels
from mint2m_verify.sealing import seal_run
from mint2m_verify.signers.choose import ephemeral_signer, key_file_signer
from mint2m_verify.signers.signer import Signer, SignerKind
from mint2m_verify.signing import key_id, public_key_pem


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSigner:
    """Who will sign, known before anything is started; `source` is the file that holds the private key, if one does."""

    signer: Signer
    source: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What the operator asked for; None leaves the choice to `run`, and no `progress` keeps none.

    `rehearse`: the same ranks over a short prompt, which counts as no run.
    """

    deployment: str
    profile: Path | None = None
    output: Path | None = None
    signer: ChosenSigner | None = None
    run_id: str | None = None
    instance_nonce: str | None = None
    progress: Path | None = None
    instruments: Path | None = None
    rehearse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The verdict, and where things are; what the run did not get to is None.

    `public_key` and `key_id` are also None where it was sealed by a certificate; `signed_by` is the signer in words.
    """

    report: Report
    directory: Path | None = None
    public_key: Path | None = None
    key_id: str | None = None
    signer: SignerKind | None = None
    signed_by: str | None = None
    plan: Plan | None = None


def run(request: RunRequest, watcher: Watcher | None = None, *, backend: str = BACKEND) -> RunResult:
    """Do all of it.

    Raises:
        FindingError: what stopped it; a directory that was begun stays for inspection, without receipt or seal.
    """
    watcher = watcher or Silent()
    unavailable = backend_fault()
    if unavailable is not None:
        raise FindingError(unavailable)
    run_id = _run_id(request.deployment) if request.run_id is None else request.run_id
    nonce = secrets.token_hex(16) if request.instance_nonce is None else request.instance_nonce
    check_labels(run_id=run_id, instance_nonce=nonce)
    # The driver takes the signals for itself while it owns anything; before and after, they raise.
    with terminated_like_interrupted():
        return _run(request, run_id, nonce, watcher, backend)


def _run(request: RunRequest, run_id: str, nonce: str, watcher: Watcher, backend: str) -> RunResult:
    deployment, directory = _locate(request, run_id)
    instruments = None if request.instruments is None else _instruments(request.instruments, directory)
    packaged = deployment != Path(request.deployment)
    examination = examine_run(
        deployment,
        profile=None if packaged else request.profile,
        output=directory,
        progress=watcher.advance,
    )
    if request.rehearse:
        real = None if examination.gathered is None else examination.gathered.inputs
        if examination.blocked or real is None:
            return RunResult(report=examination.report(request.deployment), directory=None)
        watcher.stage("doctor", f"of the run that is rehearsed: {len(examination.doctor.checks)} checks passed")
        deployment = write_rehearsal(directory, real, deployment.parent)
        # The grant is the real deployment's, which was just examined.
        examination = examine_run(deployment, profile=None, output=directory, progress=watcher.advance, of_a_stage=True)
    inputs = None if examination.gathered is None else examination.gathered.inputs
    if examination.blocked or inputs is None:
        return RunResult(report=examination.report(request.deployment), directory=None)
    watcher.stage("doctor", f"{len(examination.doctor.checks)} checks passed")
    signer = request.signer or _deployed_signer(inputs, deployment)
    plan = build_plan(inputs, run_id=run_id, instance_nonce=nonce)
    watcher.stage("plan", plan_text(plan))
    progress = None if request.progress is None else Progress(folder=request.progress)
    train(directory, plan, examination, watcher=watcher, backend=backend, progress=progress, instruments=instruments)
    _carry_grant(directory, deployment, inputs)
    return _sealed(directory, plan, signer, watcher)


def _carry_grant(directory: Path, deployment: Path, inputs: PlannedInputs) -> None:
    """The grant that the deployment names, for auditors; the seal leaves it out, since it is another's statement."""
    named = inputs.deployment.authorization_grant
    if named is not None:
        place = directory / layout.GRANT
        place.parent.mkdir(exist_ok=True)
        write_atomic(place, read_once((deployment.parent / named).resolve(), name=named))


def _sealed(directory: Path, plan: Plan, signer: ChosenSigner, watcher: Watcher) -> RunResult:
    public_key = _public_half(directory, signer)
    report = seal_run(directory, signer.signer, key_file=public_key, progress=watcher.advance)
    watcher.stage("seal", f"{directory / layout.SEAL}  signed by {_words(signer, public_key)}")
    watcher.stage("verify", report.verdict.word)
    key = signer.signer.public_key
    return RunResult(
        report=report,
        directory=directory,
        public_key=public_key,
        key_id=None if key is None else key_id(key),
        signer=signer.signer.kind,
        signed_by=_short(signer),
        plan=plan,
    )


def _short(chosen: ChosenSigner) -> str:
    """A key by the ends of its digest, as every report shows it; an identity by its name."""
    key = chosen.signer.public_key
    return chosen.signer.describe() if key is None else f"{key_id(key)[:4]}…{key_id(key)[-4:]}"


def _words(signer: ChosenSigner, public_key: Path | None) -> str:
    words = signer.signer.describe()
    return words if signer.signer.kind != "ephemeral" else f"{words.removesuffix(')')}, public half in {public_key})"


def _locate(request: RunRequest, run_id: str) -> tuple[Path, Path]:
    """The deployment file and the run directory; a packaged deployment's inputs are made on the way."""
    path = Path(request.deployment)
    if path.is_file():
        directory = request.output or path.parent / _output_root(path) / run_id
        _check_new(directory)
        return path, directory
    item = PACKAGED.get(request.deployment)
    if request.rehearse:
        raise FindingError(found("usage.invalid", expected="a deployment file with --rehearse", actual=str(path)))
    if item is None:
        known = f"a file, or one of: {', '.join(PACKAGED)}"
        raise FindingError(found("run.deployment-unknown", expected=known, actual=request.deployment))
    directory = request.output or Path(f"mint2m-{run_id}")
    _check_new(directory)
    profile = None
    if request.profile is not None:
        raw = read_once(request.profile.resolve(), name=str(request.profile))
        profile = RunProfile.parse(raw, file=str(request.profile), canonical_form=False)
    return build(directory, item, profile=profile), directory


def _output_root(path: Path) -> str:
    # Read here only to know where to go; the doctor reads it again, and reports what is wrong with it.
    try:
        return Deployment.parse(
            read_once(path.resolve(), name=path.name), file=path.name, canonical_form=False
        ).output_root
    except FindingError:
        return "."


def _check_new(directory: Path) -> None:
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise FindingError(found("output.not-empty", file=str(directory)))
    beside = directory.with_name(f"{directory.name}.pub")
    if beside.exists():
        raise FindingError(found("output.not-empty", file=str(beside)))


def _instruments(wanted: Path, directory: Path) -> Path:
    """A new directory for what the instruments see; outside the run directory, whose every file is evidence."""
    place, root = wanted.resolve(), directory.resolve()
    if place == root or root in place.parents:
        raise FindingError(
            found("usage.invalid", expected="--instruments outside the run directory", actual=str(wanted))
        )
    if wanted.is_symlink() or (wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir()))):
        raise FindingError(found("output.not-empty", file=str(wanted)))
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise FindingError(found("file.unwritable", file=str(wanted), actual=fault.strerror)) from fault
    return place


def _run_id(deployment: str) -> str:
    stem = Path(deployment).name.split(".")[0] or "run"
    word = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in stem)[:32]
    return f"{word.strip('-_') or 'run'}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _deployed_signer(inputs: PlannedInputs, deployment: Path) -> ChosenSigner:
    wanted = inputs.deployment.signer
    if wanted.kind == "key" and wanted.path is not None:
        source = deployment.parent / wanted.path
        return ChosenSigner(signer=key_file_signer(source), source=source)
    return ChosenSigner(signer=ephemeral_signer())


def _public_half(directory: Path, chosen: ChosenSigner) -> Path | None:
    """The public key's file, always outside the run directory: a key inside the evidence is never an anchor."""
    if chosen.signer.public_key is None:
        return None
    pem = public_key_pem(chosen.signer.public_key)
    if chosen.source is not None:
        beside = chosen.source.with_suffix(".pub")
        if beside.is_file() and read_once(beside.resolve(), name=str(beside)) == pem:
            return beside
    place = directory.with_name(f"{directory.name}.pub")
    write_atomic(place, pem)
    return place
