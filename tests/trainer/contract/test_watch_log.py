"""The generated log: exact length, an answer that only the whole of it gives, excerpts that keep their places."""

from __future__ import annotations

from collections import Counter

import pytest

from mint2m_trainer.contract.watch_log import CODES, QUESTION, Draws, WatchLogError, excerpt, watch_log


@pytest.mark.parametrize("tokens", [256, 257, 1000, 4096, 32768])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_its_question_it_is_exactly_as_long_as_asked_and_ascii(tokens: int, seed: int) -> None:
    log = watch_log(seed, tokens=tokens)
    assert len(f"{log.text}\n\n{QUESTION}\n".encode("ascii")) == tokens


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_who_counts_the_codes_gets_the_answer_and_meets_wrong_ones_on_the_way(seed: int) -> None:
    log = watch_log(seed, tokens=4096)
    words = [line.split()[1] for line in log.text.splitlines()[:-1]]
    codes = Counter(word for word in words if word in CODES)
    (most, times), (_, second) = codes.most_common(2)
    assert most == log.code
    assert times > 3 * second
    assert 0.6 < times / codes.total() < 0.8
    assert 0.4 < codes.total() / len(words) < 0.6


def test_the_answers_are_even_over_the_codes() -> None:
    answers = Counter(watch_log(seed, tokens=256).code for seed in range(1000))
    assert sorted(answers) == list(CODES)
    assert max(abs(count - 100) for count in answers.values()) < 40  # four standard deviations


def test_the_same_seed_gives_the_same_log_for_ever() -> None:
    log = watch_log(3, tokens=4096)
    assert log.text.startswith("quay B\ndock rain\nbarn rain\ndock B\nmast E\n")
    assert log.code == "B"


@pytest.mark.parametrize("seed", range(10))
def test_an_excerpt_keeps_each_token_at_its_place_in_the_whole_and_ends_with_the_question(seed: int) -> None:
    log = watch_log(seed, tokens=4096)
    whole = f"{log.text}\n\n{QUESTION}\n".encode()
    part = excerpt(log, Draws("test", seed), tokens=128)
    assert 100 < len(part.tokens) <= 128
    assert bytes(whole[place] for place in part.positions) == bytes(part.tokens)
    assert list(part.positions) == sorted(set(part.positions))
    assert bytes(part.tokens).decode().endswith(f"\n\n{QUESTION}\n")
    assert part.positions[-1] == 4095
    assert part.code == log.code


def test_a_length_without_room_for_entries_is_refused() -> None:
    with pytest.raises(WatchLogError, match="128"):
        watch_log(0, tokens=60)
