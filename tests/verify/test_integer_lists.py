"""Long lists of integers are read in one step, and say the same as when they are read one by one."""

from __future__ import annotations

import json
import random

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from mint2m_verify.canonical import JsonValue, canonical, parse
from mint2m_verify.finding import FindingError
from mint2m_verify.integer_lists import Integers

LENGTH = 70_000  # entries: well past what is read one by one


def _numbers(most: int = 151_551) -> list[int]:
    return random.Random(7).choices(range(most), k=LENGTH)


def _raw(numbers: list[int]) -> bytes:
    return rfc8785.dumps({"after": [1, 2], "prompt_tokens": numbers, "text": "a"})


@pytest.mark.parametrize("most", [2, 256, 151_552, 10**15])
def test_a_long_list_is_what_it_says_with_its_bounds(most: int) -> None:
    numbers = _numbers(most)
    value = parse(_raw(numbers), file="x", canonical_form=True)
    assert isinstance(value, dict)
    tokens = value["prompt_tokens"]
    assert isinstance(tokens, Integers)
    assert (tokens, tokens.least, tokens.most) == (numbers, min(numbers), max(numbers))
    assert {type(entry) for entry in tokens} == {int}
    assert canonical(value) == _raw(numbers)


def test_negative_integers_are_read_too() -> None:
    numbers = [entry - 5 for entry in _numbers()]
    value = parse(_raw(numbers), file="x", canonical_form=True)
    assert isinstance(value, dict) and isinstance(value["prompt_tokens"], Integers)
    assert (value["prompt_tokens"], value["prompt_tokens"].least) == (numbers, -5)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("", "json.malformed"),
        ("01", "json.malformed"),
        ("00", "json.malformed"),
        ("+1", "json.malformed"),
        ("1 2", "json.malformed"),
        ("\uff11", "json.malformed"),
        ("1_0", "json.malformed"),
        ("-0", "json.not-canonical"),
        (" 1", "json.not-canonical"),
        ("1.0", "json.not-canonical"),
        ("1e2", "json.not-canonical"),
        ("NaN", "json.not-finite"),
        ("9007199254740992", "json.integer-too-large"),
        ("99999999999999999999999", "json.integer-too-large"),
        ("9" * 5000, "json.integer-too-large"),
    ],
)
@pytest.mark.parametrize("place", [0, LENGTH // 2, LENGTH - 1])
def test_one_entry_that_is_wrong_is_seen_wherever_it_is(entry: str, fault: str, place: int) -> None:
    texts = [str(number) for number in _numbers()]
    texts[place] = entry
    raw = f'{{"prompt_tokens":[{",".join(texts)}]}}'.encode()
    with pytest.raises(FindingError) as caught:
        parse(raw, file="x", canonical_form=True)
    assert caught.value.finding.id == fault


@pytest.mark.parametrize(
    "entry", ["true", "null", '"1"', "[1]", "{}", "-1", "0", "9007199254740991", "123456789012345"]
)
@pytest.mark.parametrize("place", [0, LENGTH - 1])
def test_one_entry_that_is_unusual_is_read_as_what_it_is(entry: str, place: int) -> None:
    texts = [str(number) for number in _numbers()]
    texts[place] = entry
    raw = f'{{"prompt_tokens":[{",".join(texts)}]}}'.encode()
    value = parse(raw, file="x", canonical_form=True)
    assert isinstance(value, dict) and isinstance(value["prompt_tokens"], list)
    assert repr(value["prompt_tokens"]) == repr(json.loads(raw)["prompt_tokens"])  # True is not 1


def test_a_list_inside_a_text_is_text() -> None:
    inner = ",".join(str(number) for number in _numbers())
    value: JsonValue = {"text": f"[{inner}]", "tokens": _numbers()}
    assert parse(rfc8785.dumps(value), file="x", canonical_form=True) == value


@pytest.mark.parametrize(
    ("member", "fault"),
    [
        ('"after":1,"after":1', "json.duplicate-key"),
        ('"after":[NaN]', "json.not-finite"),
        ('"after":1e400', "json.not-finite"),
        ('"after":"\\ud800"', "json.lone-surrogate"),
        ('"after":9007199254740992', "json.integer-too-large"),
        ('"after":\uff11', "json.malformed"),
        ('"after":1\uff11', "json.malformed"),
    ],
)
def test_what_stands_beside_a_long_list_is_read_as_strictly_as_ever(member: str, fault: str) -> None:
    raw = f'{{{member},"prompt_tokens":{json.dumps(_numbers(), separators=(",", ":"))}}}'.encode()
    with pytest.raises(FindingError) as caught:
        parse(raw, file="x", canonical_form=True)
    assert caught.value.finding.id == fault


SOUND = _raw(_numbers(1000))


@settings(max_examples=300, deadline=None)
@given(
    place=st.integers(0, len(SOUND) - 1),
    put=st.sampled_from(
        [b"", b",", b"0", b"1", b"-", b"]", b"[", b" ", b".", b"e", b'"', b"\xef\xbc\x91", b"\\", b"}"]
    ),
    cut=st.integers(0, 3),
)
def test_a_changed_text_is_taken_only_where_the_standard_parser_and_the_standard_form_agree(
    place: int, put: bytes, cut: int
) -> None:
    changed = SOUND[:place] + put + SOUND[place + cut :]
    try:
        want = json.loads(changed)
        sound = rfc8785.dumps(want) == changed
    except ValueError:  # malformed, or an integer that has no form
        want, sound = None, False
    try:
        have = parse(changed, file="x", canonical_form=True)
    except FindingError:
        assert not sound
    else:
        assert sound and have == want
