"""A long log that names one code more often than any other: a task read off the whole prompt, made from a seed.

The rule: no single entry gives the answer away. Half of the entries name a code; most of those name the day's code and
the others one of nine wrong ones, so that only what the entries say together tells which it is. The day's code is drawn
evenly from ten, so whoever does not read the log is right once in ten times.

`excerpt` gives a few entries of such a log at the places where they stand in it, for training on short texts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

CODES = "ABCDEFGHIJ"
PLACES = ("mill", "quay", "gate", "mast", "dock", "barn")
NOTES = ("calm", "fog", "rain", "tide", "lamp", "boat")

#: Of ten entries that name a code, how many name the day's.
RIGHT_OF_TEN = 7

#: What is asked at the end; a training row adds the empty line before and the line feed behind.
QUESTION = "Which code?"

_FILL = "end "


class WatchLogError(ValueError):
    """A log of this length cannot hold its entries and its question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLog:
    """The log without its question: entries, each with its line feed, the closing line, and the day's code."""

    entries: tuple[str, ...]
    closing: str
    code: str

    @property
    def text(self) -> str:
        """The log as a prompt, without the line feeds that a training row adds."""
        return "".join((*self.entries, self.closing))

    @property
    def asked(self) -> str:
        """What stands behind the log when it is asked about."""
        return f"\n\n{QUESTION}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Some entries of a log and its question: byte tokens, and the position that each has in the log."""

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    code: str


class Draws:
    """Numbers from SHA-256 of a counter: the same on every machine, for ever."""

    def __init__(self, purpose: str, seed: int) -> None:
        self._stem, self._count = f"mint2m.watch-log/v1\n{purpose}\n{seed}\n", 0

    def below(self, bound: int) -> int:
        """One of `bound` numbers from 0 on."""
        digest = hashlib.sha256(f"{self._stem}{self._count}".encode()).digest()
        self._count += 1
        return int.from_bytes(digest[:8], "big") % bound


def watch_log(seed: int, *, tokens: int) -> WatchLog:
    """A log that is exactly `tokens` ASCII bytes long with its question, so as many byte tokens.

    Raises:
        WatchLogError: too short to hold ten entries.
    """
    draws = Draws("log", seed)
    code = CODES[draws.below(len(CODES))]
    entries: list[str] = []
    room = tokens - len(f"\n\n{QUESTION}\n")
    while True:
        entry = _entry(draws, code)
        # The closing line needs its word; what is left becomes its dots.
        if room < len(entry) + len(_FILL):
            break
        entries.append(entry)
        room -= len(entry)
    if len(entries) < 10:
        raise WatchLogError(f"a log needs about 128 tokens, got {tokens}")
    return WatchLog(entries=tuple(entries), closing=_FILL + "." * (room - len(_FILL)), code=code)


def excerpt(log: WatchLog, draws: Draws, *, tokens: int) -> Excerpt:
    """Entries of the log drawn at random, in their order, with its question: at most `tokens` tokens."""
    starts, place = [], 0
    for entry in log.entries:
        starts.append(place)
        place += len(entry)
    place += len(log.closing)
    room, kept = tokens - len(log.asked), set[int]()
    while len(kept) < len(log.entries):  # a log that fits whole is taken whole
        index = draws.below(len(log.entries))
        if len(log.entries[index]) > room:
            break
        if index not in kept:
            kept.add(index)
            room -= len(log.entries[index])
    pieces = [(starts[index], log.entries[index]) for index in sorted(kept)] + [(place, log.asked)]
    return Excerpt(
        tokens=tuple(byte for _, piece in pieces for byte in piece.encode("ascii")),
        positions=tuple(start + step for start, piece in pieces for step in range(len(piece))),
        code=log.code,
    )


def named(token_before: int, token: int) -> bool:
    """Whether a token is a code that an entry names: a capital behind a blank."""
    return token_before == ord(" ") and chr(token) in CODES


def _entry(draws: Draws, code: str) -> str:
    place = PLACES[draws.below(len(PLACES))]
    if draws.below(2):
        return f"{place} {NOTES[draws.below(len(NOTES))]}\n"
    if draws.below(10) >= RIGHT_OF_TEN:
        others = CODES.replace(code, "")
        code = others[draws.below(len(others))]
    return f"{place} {code}\n"
