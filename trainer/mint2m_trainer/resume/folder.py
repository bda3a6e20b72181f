"""The progress folder as the driver has it: of one run's inputs, one driver's at a time, removed when it has served.

The rule: it is never silently reused and never silently deleted. A folder of other inputs is refused and the first
difference named; one that holds anything else is not touched. It lies outside the run directory, since nothing of it is
evidence: the run that goes on from it records what it took over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mint2m_trainer.resume.identity import IDENTITY, Identity, read_identity, work_members, write_identity
from mint2m_verify.deployment_files import PlannedInputs
from mint2m_verify.documents import Plan
from mint2m_verify.files import sync_directory
from mint2m_verify.finding import Finding, FindingError, found

_LOCK = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the operator asked for: the folder, and whether it goes when the receipt is written.

    A caller that still has to seal what was trained keeps it until then.
    """

    folder: Path
    removed_after: bool = True


def input_identity(plan: Plan, inputs: PlannedInputs) -> Identity:
    """What is known of a run before it starts; ranks add what they find in memory."""
    policy = inputs.fixture.fixture.policy_sha256
    members: list[tuple[str, str]] = [
        ("source_sha256", plan.source_sha256),
        ("runtime_identity_sha256", plan.inputs.runtime_identity.sha256),
        ("model_root_sha256", inputs.model_manifest.root_sha256),
        ("adapter_sha256", "none" if policy is None else policy),
        *work_members(inputs.fixture.rollout, inputs.profile, inputs.deployment.accumulation),
    ]
    return Identity(members=tuple(members))


class ProgressFolder:
    """A folder that this driver holds; leaving the scope gives up the lock and nothing else."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    @classmethod
    def hold(cls, path: Path, identity: Identity, *, run: Path) -> Self:
        """Make the folder or go on with it.

        Args:
            path: an absolute path, the same on every node.
            run: the run directory, which it must not overlap.

        Raises:
            FindingError: `progress.unusable`, `progress.in-use`, `progress.identity-mismatch`.
        """
        place = path.resolve()
        if place.is_relative_to(run.resolve()) or run.resolve().is_relative_to(place):
            raise FindingError(found("progress.unusable", file=str(path), expected="a folder beside the run directory"))
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not place.joinpath(IDENTITY).exists() and any(not _begun(entry) for entry in place.iterdir()):
                raise FindingError(found("progress.unusable", file=str(path), actual="it holds something else"))
            descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as fault:
            raise FindingError(found("progress.unusable", file=str(path), actual=fault.strerror)) from fault
        held = cls(place, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for fault in _check(place, identity):
                raise FindingError(fault)
        except BlockingIOError as fault:
            held.close()
            raise FindingError(found("progress.in-use", file=str(path))) from fault
        except BaseException:
            held.close()
            raise
        return held

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path

    def remove(self) -> None:
        """Remove everything that this driver's ranks kept; a folder that was closed is not touched."""
        if self._descriptor >= 0:
            shutil.rmtree(self._path)
            sync_directory(self._path.parent)
            self.close()

    def close(self) -> None:
        """Give up the lock; harmless twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_progress(path: Path) -> None:
    """Remove a folder that the caller's own run kept and that has served; one that is not there is no fault."""
    if (path / IDENTITY).exists():
        shutil.rmtree(path)
        sync_directory(path.parent)


def _begun(entry: Path) -> bool:
    """Whether it is what a driver leaves that was killed while it made the folder."""
    return entry.name == _LOCK or entry.name.startswith(f".{IDENTITY}.")


def _check(place: Path, identity: Identity) -> Iterator[Finding]:
    if not (place / IDENTITY).exists():
        write_identity(place, identity)
        return
    kept = read_identity(place / IDENTITY)
    if kept is None:
        yield found("progress.unusable", file=str(place / IDENTITY), actual="not an identity that this version writes")
        return
    differs = identity.difference(kept)
    if differs is not None:
        yield found(
            "progress.identity-mismatch",
            file=str(place / IDENTITY),
            pointer=f"/members/{differs.member}",
            expected=differs.now or "absent",
            actual=differs.kept or "absent",
        )
