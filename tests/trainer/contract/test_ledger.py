"""The generated document: exact length, the answer inside, and only there."""

from __future__ import annotations

import hashlib
import re

import pytest

from mint2m_trainer.contract.ledger import LedgerError, ledger

ENTRY = re.compile(r"(\d+) (\w+), account of (\w+): ([a-z ]+), (\d+); folio (\d+)\.")


@pytest.mark.parametrize("tokens", [900, 901, 1000, 8192, 32768, 131072])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_exactly_as_long_as_asked_and_ascii(tokens: int, seed: int) -> None:
    text = ledger(seed, tokens=tokens).text
    assert len(text.encode("utf-8")) == len(text) == tokens


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_who_adds_the_two_entries_gets_the_answer(seed: int) -> None:
    made = ledger(seed, tokens=4096)
    question = made.text[made.text.index("Question:") :]
    asked = re.search(r"how many ([a-z ]+) were .* accounts of (\w+) and (\w+) together", question)
    assert asked is not None
    goods, *accounts = asked.groups()
    entries = [ENTRY.fullmatch(line) for line in made.text.splitlines()]
    found = [entry for entry in entries if entry is not None and entry[4] == goods]

    assert [entry[3] for entry in found] == accounts
    assert accounts[0] != accounts[1]
    assert str(sum(int(entry[5]) for entry in found)) == made.ground_truth == "4"


@pytest.mark.parametrize("seed", range(20))
def test_the_two_entries_stand_far_apart_and_before_the_question(seed: int) -> None:
    made = ledger(seed, tokens=32768)
    first, second = (match.start() for match in re.finditer("brass lanterns, ", made.text))
    assert 0.2 < first / len(made.text) < 0.55
    assert 0.7 < second / len(made.text) < 1
    assert second < made.text.index("Question:")
    assert made.text.endswith("Reply with one line, `Answer:` and the number.\n")


def test_responses_are_the_wrong_and_the_right_sum() -> None:
    assert ledger(0, tokens=2048).responses == ("Answer: 2", "Answer: 4")


def test_the_same_seed_gives_the_same_bytes_on_every_machine() -> None:
    digests = [hashlib.sha256(ledger(seed, tokens=2048).text.encode()).hexdigest() for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("tokens", [0, 64, 400])
def test_a_length_that_cannot_hold_the_question_is_refused(tokens: int) -> None:
    with pytest.raises(LedgerError):
        ledger(0, tokens=tokens)
