"""The files of a training directory outside its runs, each opened once; and the documents of one step's run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import RankSessions, Rollout, RunProfile, Scores, TrainingFixture, TrainingPayload
from mint2m_verify.documents.inputs import Accumulation, OptimizerStart
from mint2m_verify.documents.manifests import FileManifest
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.training import TrainingPlan, TrainingRow, TrainingStep
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.run import Examined
from mint2m_verify.training import places
from mint2m_verify.training.rows import DATASET_LIMIT, read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """The plan with what it binds."""

    plan: TrainingPlan
    sha256: str
    profile: RunProfile
    rows: tuple[TrainingRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStep:
    """A step's own file."""

    number: int
    document: TrainingStep
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """The documents of a step's run that the chain rests on, as `verify run` read them.

    `start` is what its optimizer went on from, `moments_sha256` the file of those that it left. Adapter and moments are
    None where the run took no step. `mode` is how its seal is vouched for.
    """

    plan: Plan
    profile: RunProfile
    fixture: TrainingFixture
    payload: TrainingPayload
    rollout: Rollout
    scores: Scores
    sessions: RankSessions
    adapter: FileManifest | None
    seal_sha256: str
    start: OptimizerStart | None
    moments_sha256: str | None
    accumulation: Accumulation | None
    gradient_sha256: str
    mode: str


def read_promised(root: Path) -> Promised:
    """The plan, and the profile and dataset that it names.

    Raises:
        FindingError: `file.*`, `json.*`, `schema.*`, `training.*`.
    """
    raw = read_once(root / places.PLAN, name=places.PLAN)
    plan = TrainingPlan.parse(raw, file=places.PLAN)
    parts = {
        "profile": (places.PROFILE, read_once(root / places.PROFILE, name=places.PROFILE)),
        "dataset": (places.DATASET, read_once(root / places.DATASET, name=places.DATASET, limit=DATASET_LIMIT)),
    }
    for member, (path, part) in parts.items():
        reference = getattr(plan, member)
        if (reference.path, reference.sha256, reference.size) != (path, sha256_hex(part), len(part)):
            expected = f"{reference.path}, {reference.size} bytes, {reference.sha256}"
            actual = f"{path}, {len(part)} bytes, {sha256_hex(part)}"
            raise FindingError(found("training.input-changed", file=path, expected=expected, actual=actual))
    rows = read_rows(parts["dataset"][1], file=places.DATASET)
    if len(rows) != plan.rows:
        raise FindingError(
            found(
                "training.input-changed",
                file=places.DATASET,
                expected=f"{plan.rows} rows, from the plan",
                actual=str(len(rows)),
            )
        )
    profile = RunProfile.parse(parts["profile"][1], file=places.PROFILE, canonical_form=False)
    if profile.rehearses is not None:
        # Its runs would each say so, and the statement over them would not.
        raise FindingError(found("training.rehearsal", file=places.PROFILE, pointer="/rehearses"))
    return Promised(plan=plan, sha256=sha256_hex(raw), profile=profile, rows=rows)


def read_step(root: Path, number: int) -> ReadStep:
    """A step's file; raises `FindingError` (`file.*`, `json.*`, `schema.*`)."""
    path = places.step_file(number)
    raw = read_once(root / path, name=path)
    return ReadStep(number=number, document=TrainingStep.parse(raw, file=path), sha256=sha256_hex(raw), size=len(raw))


def step_run(examined: Examined, seal_sha256: str | None) -> StepRun | None:
    """The run's documents; None where one could not be read, for which `verify run` has a finding."""
    documents = examined.documents
    adapter = documents.manifest(layout.ADAPTER_MANIFEST)
    moments, gradient = documents.ref(layout.OPTIMIZER_AFTER), documents.ref(layout.GRADIENT)
    if (
        documents.plan is None
        or documents.profile is None
        or documents.fixture is None
        or documents.payload is None
        or documents.rollout is None
        or documents.scores is None
        or documents.sessions is None
        or documents.deployment is None
        or gradient is None
        or seal_sha256 is None
    ):
        return None
    deployment = documents.deployment.document
    if (adapter is None or moments is None) and not deployment.ends_with_gradient:
        return None
    return StepRun(
        plan=documents.plan.document,
        profile=documents.profile.document,
        fixture=documents.fixture.document,
        payload=documents.payload.document,
        rollout=documents.rollout.document,
        scores=documents.scores.document,
        sessions=documents.sessions.document,
        adapter=None if adapter is None else adapter.document,
        seal_sha256=seal_sha256,
        start=deployment.optimizer,
        moments_sha256=None if moments is None else moments.sha256,
        accumulation=deployment.accumulation,
        gradient_sha256=gradient.sha256,
        mode=examined.report.trust.mode,
    )


def unexpected(root: Path) -> Iterator[Finding]:
    """Whatever lies in the directory outside its runs and has no place there."""
    known = {places.PLAN, places.TRAINING, places.PROFILE, places.DATASET, places.STATEMENT}
    folders = {"inputs", "attestations", places.STEPS}
    for path in _below(root, root, folders):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            yield found("tree.symlink", file=name)  # a step or run elsewhere would be read as if it were here
            continue
        if name in known or name in places.NO_EVIDENCE:
            continue
        parts = name.split("/")
        number = places.step_of(parts[1]) if parts[0] == places.STEPS and len(parts) > 1 else None
        if number is not None and name in (places.step_file(number), places.run_folder(number)):
            continue
        if number is not None and len(parts) == 3 and places.gradient_of(parts[2]) is not None:
            continue  # that the step has such a prompt is asked where the plan is known
        yield found("tree.file-unexpected", file=name)


def _below(root: Path, folder: Path, into: set[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        name = path.relative_to(root).as_posix()
        parent = path.parent.relative_to(root).as_posix()
        goes_in = name in into or (parent == places.STEPS and places.step_of(path.name) is not None)
        if goes_in and path.is_dir() and not path.is_symlink():
            yield from _below(root, path, into)
        else:
            yield path


def gradients_present(root: Path, number: int) -> tuple[int, ...]:
    """Prompts of a step that have a folder of their own for their gradient, ascending."""
    folder = root / places.step_folder(number)
    return tuple(sorted(index for path in folder.iterdir() if (index := places.gradient_of(path.name)) is not None))


def steps_present(root: Path) -> tuple[int, ...]:
    """Numbers of the step folders, ascending; what is called like one and is a file or a link is none."""
    folder = root / places.STEPS
    if not folder.is_dir():
        return ()
    named = ((places.step_of(path.name), path) for path in folder.iterdir())
    return tuple(sorted(n for n, path in named if n is not None and path.is_dir() and not path.is_symlink()))
