"""`mint2m train`: a plan made earlier, checked again against its deployment and run into the journal's directory."""

from __future__ import annotations

from pathlib import Path

from mint2m_trainer.cluster.driver import BACKEND, Trained, train
from mint2m_trainer.cluster.progress import Watcher
from mint2m_trainer.resume.folder import Progress
from mint2m_verify import layout
from mint2m_verify.doctor import examine_run
from mint2m_verify.doctor.machine import backend_fault
from mint2m_verify.finding import FindingError, found
from mint2m_verify.planning import read_plan


def train_planned(
    plan_path: Path,
    ownership: Path,
    deployment: Path,
    *,
    profile: Path | None,
    watcher: Watcher | None = None,
    backend: str = BACKEND,
    progress: Path | None = None,
) -> Trained:
    """Refuse or run.

    Args:
        plan_path: the plan; a copy of it becomes `plan.json` beside the journal.
        ownership: the journal to write, named `ownership.jsonl`; its directory is the run directory.
        progress: a folder where capture and reverse keep their work; None keeps nothing.

    Raises:
        FindingError: `backend.unavailable`, `plan.*`, `ownership.*`, `progress.*`, the doctor's first
            blocker, `ray.*`, `rank.*`.
    """
    unavailable = backend_fault()
    if unavailable is not None:
        raise FindingError(unavailable)
    if ownership.name != layout.OWNERSHIP:
        raise FindingError(
            found("usage.invalid", expected=f"--ownership DIR/{layout.OWNERSHIP}", actual=str(ownership))
        )
    plan = read_plan(plan_path)
    if ownership.exists() or ownership.is_symlink():
        raise FindingError(found("ownership.exists", file=str(ownership)))
    examination = examine_run(deployment, profile=profile, output=ownership.parent)
    if examination.blocked:
        raise FindingError(examination.findings[0])
    kept = None if progress is None else Progress(folder=progress)
    return train(ownership.parent, plan, examination, watcher=watcher, backend=backend, progress=kept)
