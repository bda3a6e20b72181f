"""Where exceptions of sigstore-python and its parsers end: calls into them return, or are a refusal.

The rule: whatever they raise means that they did not accept; a bug in one of them is no acceptance either. For bytes
of an attacker's choice sigstore-python leaks ValueError, TypeError, AttributeError, and the errors of pydantic, X.509
and DER parsers; rfc3161-client panics in Rust, which reaches Python as an exception that is no `Exception`. This is
the one catch of everything outside `main`; nothing but calls into those libraries and cryptography is passed to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The library said no, in its own words; they are for people, and no code reads them."""

    words: str


def guarded(call: Callable[[], T]) -> T | Refusal:
    """What `call` returns; for whatever the library raises, a refusal."""
    try:
        return call()
    except Exception as fault:  # noqa: BLE001 - the boundary that this module is
        return _refusal(fault)
    except BaseException as fault:
        if type(fault).__module__ != "pyo3_runtime":
            raise  # an interrupt, or the end of the process
        return _refusal(fault)


def _refusal(fault: BaseException) -> Refusal:
    return Refusal(words=f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:300])
