"""Long lists of integers, read and looked at once.

A prompt is one list of up to two million token ids. `json` makes an object of each, and every rule that follows (that
they are integers, that each has a double, that the schema allows them, that they are written in the one form) would
look at each again. Here such a list is read in one step, and its least and its greatest go with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from json import scanner
from typing import Any, Self

#: Entries from which a list is worth it.
LONG = 4096

#: Entries past which no document is read; where there are so many, nothing is spent on them here.
_MOST = 8_000_000

#: Digits that fit every reader's integers, and a double.
_MOST_DIGITS = 15

_LONG_LIST = re.compile(rf"([0-9,]{{{2 * LONG},}})\]")


class Integers(list[int]):
    """A long list of integers as it was read, with its least and its greatest.

    It is for reading; whoever changes an entry makes the bounds wrong.
    """

    __slots__ = ("least", "most")

    def __init__(self, numbers: list[int], *, least: int, most: int) -> None:
        super().__init__(numbers)
        self.least, self.most = least, most

    @classmethod
    def of(cls, numbers: list[int]) -> Self:
        """`numbers`, of which there must be one, looked at once."""
        return cls(numbers, least=min(numbers), most=max(numbers))


def bounds(numbers: Sequence[Any]) -> tuple[Any, Any]:
    """The least and the greatest of these numbers, of which there must be one."""
    if isinstance(numbers, Integers):
        return numbers.least, numbers.most
    return min(numbers), max(numbers)


class Decoder(json.JSONDecoder):
    """Python's decoder for documents in RFC 8785 form, which reads a member that is a long list in one step.

    Any other list is the ordinary decoder's, and so is one with a sign, a space or anything else unusual. Only for
    ASCII: the scanner of objects that Python has beside its quick one takes digits of all scripts.
    """

    def __init__(self, **hooks: Any) -> None:
        super().__init__(**hooks)
        self._ordinary = json.JSONDecoder(**hooks)
        self.parse_array = self._array
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # its stubs

    def _array(self, place: tuple[str, int], _scan: Callable[[str, int], Any]) -> tuple[Any, int]:
        text, start = place  # behind the bracket
        found = _LONG_LIST.match(text, start)
        numbers = None if found is None else _read(found[1])
        if found is None or numbers is None:
            return self._ordinary.raw_decode(text, start - 1)
        return numbers, found.end()


def _read(digits: str) -> Integers | None:
    """The integers of `digits`, a text of digits and commas; None for what JSON does not allow or has too many."""
    import numpy as np  # slow to load, and few documents need it

    if not _are_integers(digits):
        return None
    numbers = np.fromstring(digits, np.int64, sep=",")
    return Integers(numbers.tolist(), least=int(numbers.min()), most=int(numbers.max()))


def _are_integers(digits: str) -> bool:
    """Whether each comma has digits on both sides, not too many, and none of them a zero before others."""
    import numpy as np

    if digits.count(",") >= _MOST:
        return False
    octets = np.frombuffer(digits.encode(), np.uint8)
    commas = np.flatnonzero(octets == ord(","))
    lengths = np.diff(commas, prepend=-1, append=len(octets)) - 1
    if lengths.min() < 1 or lengths.max() > _MOST_DIGITS:
        return False
    longer = lengths > 1
    return not (longer[0] and digits[0] == "0") and not np.any(longer[1:] & (octets[commas + 1] == ord("0")))
