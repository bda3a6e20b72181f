"""Work that each rank does for itself, and that counts only when every rank has done it.

The rule: a rank that fails tells the others before anyone goes on. Every rank then raises the same error, which names
the ranks that failed. Without it a full disk or a NaN on one rank would leave the others waiting in the next
collective, or worse, going on with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeVar

import torch.distributed as dist

from mint2m_trainer.faults import Cause, CausedError, cause_of, words_of

T = TypeVar("T")


class RanksFailedError(CausedError):
    """Some ranks could not do their part; the same on every rank."""

    def __init__(self, text: str, cause: Cause) -> None:
        super().__init__(text)
        self.cause = cause

    def __reduce__(self) -> tuple[type[RanksFailedError], tuple[str, Cause]]:
        return type(self), (str(self), self.cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    cause: Cause
    text: str


class _Told:
    """Scope whose exception is kept, to be told to the other ranks; what ends the process itself passes through."""

    def __init__(self) -> None:
        self.fault: _Fault | None = None

    def __enter__(self) -> _Told:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> Literal[True] | None:
        if fault is None or not isinstance(fault, Exception):
            return None
        self.fault = _Fault(cause=cause_of(fault), text=f"{type(fault).__name__}: {words_of(fault)}")
        return True


def together(act: Callable[[], T] | None, *, group: dist.ProcessGroup | None = None) -> T | None:
    """Run this rank's part of the work, then hear of everyone's.

    Args:
        act: holds no collective: a rank that fails in it would leave the others there. None: nothing to do here.
        group: the ranks; None for all.

    Raises:
        RanksFailedError: on every rank, if any failed, with the worst of the causes.
    """
    value: T | None = None
    with _Told() as told:
        if act is not None:
            value = act()
    faults: list[_Fault | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(faults, told.fault, group=group)
    failed = {rank: fault for rank, fault in enumerate(faults) if fault is not None}
    if failed:
        causes = {fault.cause for fault in failed.values()}
        text = "; ".join(f"rank {rank}: {fault.text}" for rank, fault in failed.items())
        raise RanksFailedError(text, next(cause for cause in Cause if cause in causes))
    return value
