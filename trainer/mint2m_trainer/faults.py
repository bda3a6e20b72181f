"""Whose fault it is that an update cannot go on.

The rule: what the operator gave is told apart from what the update did, and both from a machine that gave out. A
snapshot without a tensor is mended by the operator and blocks; a full disk is no fault of any input; a page that
changed is neither.
"""

from __future__ import annotations

import enum

from mint2m_verify.finding import FindingError, Verdict


class InputError(Exception):
    """Model, adapter, rollout or profile cannot be trained on; nothing of the update was wrong."""


class Cause(enum.StrEnum):
    """What sort of thing stopped a rank; decides the exit code. From the worst to the mildest."""

    BUG = "bug"  # what only a programming error raises
    REFUSED = "refused"  # the update's own checks
    INPUT = "input"  # what the operator gave
    RESOURCE = "resource"  # memory, disk, a broken connection


class CausedError(RuntimeError):
    """An error that says itself what sort it is."""

    cause = Cause.REFUSED


#: Exceptions that no input should cause.
_BUGS = (NameError, TypeError, AttributeError, LookupError, AssertionError, NotImplementedError)


def cause_of(fault: BaseException) -> Cause:
    """The sort of an exception, by its type and never by its words."""
    if isinstance(fault, CausedError):
        return fault.cause
    if isinstance(fault, InputError):
        return Cause.INPUT
    if isinstance(fault, FindingError) and fault.finding.verdict is Verdict.IO_ERROR:
        return Cause.RESOURCE
    if isinstance(fault, OSError | MemoryError) or "OutOfMemory" in type(fault).__name__:
        return Cause.RESOURCE
    return Cause.BUG if isinstance(fault, _BUGS) else Cause.REFUSED


def words_of(fault: BaseException) -> str:
    """What an exception says, with the facts of a finding."""
    if not isinstance(fault, FindingError):
        return str(fault)
    finding = fault.finding
    facts = [finding.file, finding.pointer, finding.actual]
    return "; ".join([str(fault), *(fact for fact in facts if fact is not None)])
