"""A long document that the project writes itself: a ledger of dated entries, made from a seed.

The rule: the document is exactly as many bytes as asked, the two entries that its question needs stand far apart
inside it, and every other entry looks like them. Without that a prompt of the right length would not need to be
read, or a length would be reached by cutting the question off.
"""

from __future__ import annotations

import hashlib
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
    room = tokens - len(_HEADER) - len(question) - sum(map(len, asked))
    entries: list[str] = []
    while True:
        entry = _entry(draws, ACCOUNTS[draws.below(len(ACCOUNTS))], _goods(draws))
        # The closing line needs its words and a line feed; what is left becomes its dots.
        if room < len(entry) + len(_FILL) + 1:
            break
        entries.append(entry)
        room -= len(entry)
    if len(entries) < 4:
        raise LedgerError(f"a ledger needs about {len(_HEADER) + len(question) + 500} tokens, got {tokens}")
    quarter = len(entries) // 4
    entries.insert(3 * quarter + draws.below(len(entries) - 3 * quarter), asked[1])
    entries.insert(quarter + draws.below(quarter), asked[0])
    text = _HEADER + "".join(entries) + _FILL + "." * (room - len(_FILL) - 1) + "\n" + question
    return Ledger(text=text, ground_truth=str(TOTAL), responses=("Answer: 2", f"Answer: {TOTAL}"))


def _entry(draws: _Draws, account: str, what: str) -> str:
    day, month = 1 + draws.below(28), MONTHS[draws.below(len(MONTHS))]
    return f"{day} {month}, account of {account}: {what}; folio {1 + draws.below(400)}.\n"


def _goods(draws: _Draws) -> str:
    return f"{GOODS[draws.below(len(GOODS))]}, {5 + draws.below(90)}"
