"""The state after the step, by `dist_checkpointing`: LoRA parameters, Adam moments, step, identities.

The rule: a checkpoint appears under its name only when every rank has written its part and all of it is on
disk, and loading it gives back the same bits. A rank that fails tells the others before anyone renames or
raises. Without it a full disk on one rank would leave a directory that looks like a checkpoint, or ranks that
wait for each other for ever.

Every tensor is stored whole under its global name, experts one by one, so that a checkpoint written with the
experts on N ranks also loads with them on M.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import mint2m_trainer.compat  # noqa: F401  must come before torch._dynamo and megatron

# isort: split
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.validation import StrictHandling
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from mint2m_trainer.checkpoint_writer import HashingStrategy
from mint2m_trainer.comm.together import RanksFailedError, together
from mint2m_trainer.contract.directory import sync_directory
from mint2m_trainer.faults import Cause, CausedError
from mint2m_trainer.optimizer import AdamWStep
from mint2m_verify.elsewhere import HashedElsewhere

_VERSION = 1

MOMENTS = ("exp_avg", "exp_avg_sq")


class CheckpointError(CausedError):
    """A checkpoint that was not written or must not be loaded; names the ranks or the field."""

    def __init__(self, text: str, cause: Cause = Cause.REFUSED) -> None:
        super().__init__(text)
        self.cause = cause

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[str, Cause]]:
        return type(self), (str(self), self.cause)


class StorageError(CausedError):
    """The files of a checkpoint could not be written."""

    cause = Cause.RESOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that is on disk.

    Attributes:
        files: names of all its files, sorted; the same on every rank.
        hashed: those that this rank wrote, with what it hashed as it wrote them.
    """

    files: tuple[str, ...]
    hashed: tuple[HashedElsewhere, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What a loaded checkpoint says about itself."""

    steps: int
    identities: Mapping[str, str]


def save_checkpoint(
    directory: Path | str, optimizer: AdamWStep, identities: Mapping[str, str], *, execution: str
) -> Saved:
    """Writes `directory`, whole or not at all; a collective over all ranks.

    Args:
        directory: the same path on every rank; it must not exist, or be empty.
        optimizer: holds the parameters and their moments. Those with `allreduce` False are on one rank only.
        identities: what this state belongs to (digests by name); equal on every rank.
        execution: names the partial directory `<directory>.partial-<execution>`; equal on every rank.

    Raises:
        CheckpointError: on every rank, naming those that failed; nothing is left under either name.
    """
    final = Path(directory)
    partial = final.with_name(f"{final.name}.partial-{execution}")
    if not execution or Path(execution).name != execution:
        raise CheckpointError(f"execution {execution!r} cannot be part of a file name")
    first, parts = dist.get_rank() == 0, HashingStrategy()
    try:
        _together((lambda: _open(final, partial)) if first else None)
        state: dict[str, object] = {
            **_sharded(optimizer),
            "version": _VERSION,
            "steps": optimizer.steps_taken,
            "identities": dict(identities),
        }
        _together(lambda: _write(state, partial, parts))
        _together((lambda: _publish(partial, final)) if first else None)
    except CheckpointError:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return Saved(files=tuple(sorted(path.name for path in final.iterdir())), hashed=parts.hashed)


def load_checkpoint(directory: Path | str, optimizer: AdamWStep, *, expected: Mapping[str, str]) -> Resumed:
    """Puts parameters and moments back, bit for bit; a collective over all ranks.

    Args:
        directory: written by `save_checkpoint`, on this many ranks or another number.
        optimizer: over the same parameters; shapes and dtypes must be those stored.
        expected: identities that must be stored with these values.

    Raises:
        CheckpointError: another identity, or a tensor missing, extra or of another shape; nothing changed.
    """
    wanted = _sharded(optimizer)
    found: dict[str, object] = {}

    def read() -> None:
        # Strict both ways: a stored tensor that nobody asks for is as wrong as one that is not there.
        loaded = dist_checkpointing.load(dict(wanted), str(directory), strict=StrictHandling.RAISE_ALL)
        found.update(loaded)

    _together(read)
    if found.get("version") != _VERSION:
        raise CheckpointError(f"checkpoint version: expected {_VERSION}, got {found.get('version')!r}")
    identities, steps = found.get("identities"), found.get("steps")
    if not isinstance(identities, dict) or not isinstance(steps, int):
        raise CheckpointError("checkpoint has no identities or no step count")
    for name, value in expected.items():
        if identities.get(name) != value:
            raise CheckpointError(f"checkpoint {name}: expected {value}, got {identities.get(name)!r}")
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    moments = {f"{name}.{kind}": tensors[f"{kind}/{name}"] for name in optimizer.names for kind in MOMENTS}
    optimizer.load_state(moments, steps=steps)
    with torch.no_grad():
        for name, p in optimizer.params:
            p.copy_(tensors[f"param/{name}"])
    return Resumed(steps=steps, identities=dict(identities))


def _sharded(optimizer: AdamWStep) -> dict[str, ShardedTensor]:
    """What this rank stores or wants: `param/`, `exp_avg/` and `exp_avg_sq/` of each global name."""
    moments = optimizer.state_tensors()
    sharded: dict[str, ShardedTensor] = {}
    for name, p in optimizer.params:
        # Replicated parameters are written once, by rank 0; an expert exists on one rank, which writes it.
        replica = dist.get_rank() if getattr(p, "allreduce", True) else 0
        tensors = {f"param/{name}": p.detach().clone()}
        tensors |= {f"{kind}/{name}": moments[f"{name}.{kind}"] for kind in MOMENTS}
        for key, tensor in tensors.items():
            sharded[key] = ShardedTensor.from_rank_offsets(key, tensor, replica_id=replica)
    return sharded


def _together(act: Callable[[], object] | None) -> None:
    """Runs a part of the work on each rank; one rank's failure fails all of them, as a checkpoint's."""
    try:
        together(act)
    except RanksFailedError as fault:
        raise CheckpointError(str(fault), fault.cause) from fault


def _write(state: dict[str, object], partial: Path, parts: HashingStrategy) -> None:
    """The state is ours and valid: whatever the writer reports, and however, is of the storage."""
    try:
        dist_checkpointing.save(state, str(partial), parts)
    except (OSError, RuntimeError, CheckpointingException, CheckpointException) as fault:
        first = parts.fault or fault
        raise StorageError(f"{type(first).__name__}: {_first_line(first)}") from fault


def _first_line(fault: BaseException) -> str:
    return next(iter(str(fault).splitlines()), "")


def _open(final: Path, partial: Path) -> None:
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise FileExistsError(f"{final} exists and is not an empty directory")
    partial.mkdir(parents=True)


def _publish(partial: Path, final: Path) -> None:
    """Syncs every file and name, then renames: the last moment at which the checkpoint does not exist."""
    for folder, _, files in os.walk(partial):
        for file in files:
            with (Path(folder) / file).open("rb") as written:
                os.fsync(written.fileno())
        sync_directory(Path(folder))
    partial.rename(final)
    sync_directory(final.parent)
