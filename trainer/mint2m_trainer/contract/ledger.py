"""A long document that the project writes itself: a ledger of dated entries, made from a seed.

The rule: the document is exactly as many bytes as asked, the two entries that its question needs stand far apart
inside it, and every other entry looks like them. Without that a prompt of the right length would not need to be
read, or a length would be reached by cutting the question off. Entries are drawn one after another and can be drawn
again, so the document is written piece by piece and never has to be held.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

ACCOUNTS = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Hawthorn", "Juniper", "Larch", "Maple")
GOODS = ("barrels of tar", "bolts of linen", "casks of oil", "crates of slate", "reams of paper", "sacks of rye")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")

#: What the question is about; no other entry mentions it.
ASKED = "brass lanterns"

#: Ways to make the sum, and the sum.
SPLITS = ((1, 3), (3, 1), (2, 2))
TOTAL = 4

_HEADER = (
    "THE LEDGER OF THE HARBOUR STORE\n"
    "Every entry names its day, its account, what was put on the shelves and how many.\n\n"
)
_FILL = "Carried over "


class LedgerError(ValueError):
    """A ledger of this length cannot hold its two entries and its question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The document with its question at the end, the answer, and two responses, the wrong one first."""

    text: str
    ground_truth: str
    responses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPieces:
    """The same, the text in pieces of a line or less each; they are made while they are iterated, once."""

    text: Iterator[str]
    ground_truth: str
    responses: tuple[str, ...]


class _Draws:
    """Numbers from SHA-256 of a counter: the same on every machine, for ever."""

    def __init__(self, seed: int) -> None:
        self._seed, self._count = seed, 0

    def below(self, bound: int) -> int:
        digest = hashlib.sha256(f"mint2m.ledger/v1\n{self._seed}\n{self._count}".encode()).digest()
        self._count += 1
        return int.from_bytes(digest[:8], "big") % bound


def ledger(seed: int, *, tokens: int) -> Ledger:
    """A ledger of exactly `tokens` ASCII bytes, so as many byte tokens.

    The first of the two asked entries stands in the second quarter of the entries, the other in the last quarter.

    Raises:
        LedgerError: too short to hold them; the message says how long it must be.
    """
    made = ledger_pieces(seed, tokens=tokens)
    return Ledger(text="".join(made.text), ground_truth=made.ground_truth, responses=made.responses)


def ledger_pieces(seed: int, *, tokens: int) -> LedgerPieces:
    """`ledger` without holding its text; a length that is too short is refused here, before the first piece."""
    draws = _Draws(seed)
    first = draws.below(len(ACCOUNTS))
    second = (first + 1 + draws.below(len(ACCOUNTS) - 1)) % len(ACCOUNTS)
    amounts = SPLITS[draws.below(len(SPLITS))]
    asked = [
        _entry(draws, ACCOUNTS[account], f"{ASKED}, {amount}")
        for account, amount in zip((first, second), amounts, strict=True)
    ]
    question = (
        f"\nQuestion: how many {ASKED} were put on the shelves for the accounts of {ACCOUNTS[first]} and "
        f"{ACCOUNTS[second]} together?\nReply with one line, `Answer:` and the number.\n"
    )
    again = copy.copy(draws)  # where the entries begin
    room, count = tokens - len(_HEADER) - len(question) - sum(map(len, asked)), 0
    while True:
        entry = _entry_of_anyone(draws)
        # The closing line needs its words and a line feed; what is left becomes its dots.
        if room < len(entry) + len(_FILL) + 1:
            break
        room, count = room - len(entry), count + 1
    if count < 4:
        raise LedgerError(f"a ledger needs about {len(_HEADER) + len(question) + 500} tokens, got {tokens}")
    quarter = count // 4
    late = 3 * quarter + draws.below(count - 3 * quarter)
    early = quarter + draws.below(quarter)

    def text() -> Iterator[str]:
        yield _HEADER
        for index in range(count):
            if index == early:
                yield asked[0]
            if index == late:
                yield asked[1]
            yield _entry_of_anyone(again)
        yield _FILL + "." * (room - len(_FILL) - 1) + "\n"
        yield question

    return LedgerPieces(text=text(), ground_truth=str(TOTAL), responses=("Answer: 2", f"Answer: {TOTAL}"))


def _entry_of_anyone(draws: _Draws) -> str:
    return _entry(draws, ACCOUNTS[draws.below(len(ACCOUNTS))], _goods(draws))


def _entry(draws: _Draws, account: str, what: str) -> str:
    day, month = 1 + draws.below(28), MONTHS[draws.below(len(MONTHS))]
    return f"{day} {month}, account of {account}: {what}; folio {1 + draws.below(400)}.\n"


def _goods(draws: _Draws) -> str:
    return f"{GOODS[draws.below(len(GOODS))]}, {5 + draws.below(90)}"
