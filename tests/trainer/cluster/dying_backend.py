"""The real update, one rank of which is killed, has a bit of its pages flipped, or finds the disk full or read-only.

Loaded by rank actors by name; what happens comes through the environment, which the local Ray hands on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mint2m_trainer.update as real
from mint2m_trainer.update import PhaseOutcome, RankInputs, Update
from mint2m_verify import phases

PHASE, RANK, FILLER, LEFT = "DIES_IN_PHASE", "DIES_ON_RANK", "DISK_FILLER", "DISK_ADAPTERS_LEFT"
DISK = "DISK_MOUNTED_AT"

__all__ = ["DyingUpdate", "FillingUpdate", "FlippedUpdate", "RankInputs", "ReadOnlyUpdate", "StrayingUpdate"]


class DyingUpdate(Update):
    """An update one rank of which is killed where its peers count on it."""

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome:
        if phase == os.environ[PHASE] and self._inputs.rank == int(os.environ[RANK]):
            if phase == phases.CHECKPOINT:
                real.save_checkpoint = _die  # by then rank 0 has put the stepped adapter in its place
            elif phase == phases.FINALIZE:
                real.write_scores = _die  # the gradient is on disk by then, where this is rank 0
            elif phase == phases.MATERIALIZE:
                real.write_adapter_copy = _after(real.write_adapter_copy)
            if phase in (phases.CHECKPOINT, phases.FINALIZE, phases.MATERIALIZE) and self._inputs.rank == 0:
                return super().run(phase, progress)
            if phase == phases.CHECKPOINT:
                return super().run(phase, progress)
            _die()
        return super().run(phase, progress)


class FlippedUpdate(Update):
    """An update in whose resident pages a bit flips on rank 1, as memory does: nothing of the program wrote there.

    It flips in the last layer, from which no other row is made.
    """

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome:
        if phase == phases.PREFIX_BACKWARD and self._inputs.rank == 1:
            row = self._session._store._pages[0].rows[-1]  # type: ignore[union-attr]
            ctypes.c_uint8.from_address(row.data_ptr()).value ^= 1
        return super().run(phase, progress)


class StrayingUpdate(Update):
    """An update after whose step a rank's copy of what all ranks hold has one number that is another."""

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome:
        if phase == phases.CHECKPOINT and self._inputs.rank == 1:
            parameter = next(p for name, p in self.policy.trainable() if ".self_attn." in name)
            with torch.no_grad():
                parameter.view(-1)[0] += 1e-3
        return super().run(phase, progress)


class FillingUpdate(Update):
    """An update whose disk has room for only so many adapters when the checkpoint begins."""

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome:
        if phase == phases.CHECKPOINT and self._inputs.rank == 0:
            adapter = self._inputs.run_dir / "artifacts/adapter-before/adapter_model.safetensors"
            _fill(Path(os.environ[FILLER]), int(float(os.environ[LEFT]) * adapter.stat().st_size))
        return super().run(phase, progress)


class ReadOnlyUpdate(Update):
    """An update whose disk takes nothing more from one phase on."""

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome:
        if phase == os.environ[PHASE] and self._inputs.rank == 0:
            found = subprocess.run(
                ["findmnt", "-no", "SOURCE", os.environ[DISK]], check=True, capture_output=True, text=True
            )
            # As an error of the disk does; a remount would wait for whoever has a file open.
            Path("/sys/fs/ext4", Path(found.stdout.strip()).name, "trigger_fs_error").write_text("1")
        return super().run(phase, progress)


def _fill(filler: Path, left: int) -> None:
    free = os.statvfs(filler.parent)
    size = free.f_bavail * free.f_frsize - left
    with filler.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, size)


def _after(act: Callable[..., Any]) -> Callable[..., Any]:
    def then_die(*arguments: Any) -> None:
        act(*arguments)
        _die()

    return then_die


def _die(*_arguments: Any, **_named: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
