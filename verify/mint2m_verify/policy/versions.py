"""Versions of releases, compared by their numbers.

The rule: 1.10.0 is newer than 1.9.0, and 1.0.0rc1 older than 1.0.0. Anything that is not of this form has no place in
the order, so it is no version here.
"""

from __future__ import annotations

import re

#: A final release comes after every pre-release of the same numbers.
_STAGES = {"a": 0, "b": 1, "rc": 2}
_FINAL = (3, 0)
_FORM = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})(?:(a|b|rc)(0|[1-9][0-9]{0,8}))?")


def order_of(version: str) -> tuple[int, ...] | None:
    """What to compare versions by; None for text that is no version."""
    match = _FORM.fullmatch(version)
    if match is None:
        return None
    stage = _FINAL if match[4] is None else (_STAGES[match[4]], int(match[5]))
    return (int(match[1]), int(match[2]), int(match[3]), *stage)
