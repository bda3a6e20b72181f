"""Times as documents write them: RFC 3339 in UTC, with `Z`.

The rule: one form, so that two spellings of a moment cannot be told apart or sorted wrongly. Leap seconds are refused:
no clock here counts them.
"""

from __future__ import annotations

import re
from datetime import datetime

_FORM = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")


def parse_time(text: str) -> datetime | None:
    """The moment that `text` names, aware and in UTC; None where it is not of the form, or no day of the calendar."""
    if _FORM.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
