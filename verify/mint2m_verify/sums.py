"""Sums of numbers that somebody else wrote.

The rule: a sum is exact where there is one. Where `math.fsum` gives up, it is infinite or NaN as IEEE addition has it,
which no comparison accepts; an exception would be no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def total(values: Iterable[float]) -> float:
    """The sum, rounded once."""
    numbers = tuple(values)
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # beyond the largest number, or two infinities of different sign
        return sum(numbers)
