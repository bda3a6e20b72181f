"""Small differences between two files, as pieces of text to put in place of pieces of the base."""

from __future__ import annotations

import difflib
import itertools
import re

#: What is compared where lengths differ: the members of a JSON text, each to its comma.
_WORD = re.compile(rb"[^,]*,|[^,]+")

#: Equal bytes between two differences that are not worth a piece of their own.
_GAP = 12

#: First byte, how many bytes go, what comes: text where it is printable ASCII, else hexadecimal after `hex:`.
Piece = list[int | str]


def pieces(base: bytes, wanted: bytes) -> list[Piece] | None:
    """What turns `base` into `wanted`, offsets those of the base, in order; None where neither length nor text fits."""
    if len(base) == len(wanted):
        return [[first, last - first, _shown(wanted[first:last])] for first, last in _differing(base, wanted)]
    if not base.isascii() or not wanted.isascii():
        return None
    old, new = _WORD.findall(base), _WORD.findall(wanted)
    at_old, at_new = _offsets(old), _offsets(new)
    steps = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        [at_old[i], at_old[j] - at_old[i], _shown(wanted[at_new[k] : at_new[m]])]
        for kind, i, j, k, m in steps
        if kind != "equal"
    ]


def apply(base: bytes, changes: list[Piece]) -> bytes:
    """`base` with its pieces put in place, from the last to the first."""
    raw = bytearray(base)
    for first, count, text in reversed(changes):
        assert isinstance(first, int) and isinstance(count, int) and isinstance(text, str)
        new = bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode("ascii")
        raw[first : first + count] = new
    return bytes(raw)


def _differing(base: bytes, wanted: bytes) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for offset in (index for index, (a, b) in enumerate(zip(base, wanted, strict=True)) if a != b):
        if spans and offset - spans[-1][1] < _GAP:
            spans[-1] = (spans[-1][0], offset + 1)
        else:
            spans.append((offset, offset + 1))
    return spans


def _offsets(words: list[bytes]) -> list[int]:
    return [0, *itertools.accumulate(map(len, words))]


def _shown(raw: bytes) -> str:
    text = raw.decode("ascii", "replace")
    return text if text.isascii() and text.isprintable() and not text.startswith("hex:") else f"hex:{raw.hex()}"
