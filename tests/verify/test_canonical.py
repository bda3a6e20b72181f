"""Two readers of one document must read the same thing: strict in, RFC 8785 out."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from mint2m_verify.canonical import JsonValue, Limits, canonical, parse, sha256_hex
from mint2m_verify.finding import FindingError


def test_the_worked_example_of_rfc_8785_section_3_2_2_comes_out_as_printed_there() -> None:
    value = parse(
        b'{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],'
        b'"string":"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/","literals":[null,true,false]}',
        file="example",
    )
    expected = bytes.fromhex(
        "7b226c69746572616c73223a5b6e756c6c2c747275652c66616c73655d2c226e756d62657273223a5b3333333333333333332e33333333"
        "3333332c31652b33302c342e352c302e3030322c31652d32375d2c22737472696e67223a22e282ac245c75303030665c6e4127425c225c"
        "5c5c5c5c222f227d"
    )
    assert canonical(value) == expected


def test_keys_are_ordered_by_utf_16_code_units_as_in_rfc_8785_section_3_2_3() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    written = canonical(dict.fromkeys(keys, 0)).decode()
    order = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    positions = [written.index('"\\r"' if key == "\r" else f'"{key}"') for key in order]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b'{"a":1,"a":2}', "json.duplicate-key"),
        (b'{"a":{"b":1,"b":1}}', "json.duplicate-key"),
        (b"[NaN]", "json.not-finite"),
        (b"[-Infinity]", "json.not-finite"),
        (b"[1e400]", "json.not-finite"),
        (b"[9007199254740992]", "json.integer-too-large"),
        (b"-9007199254740992", "json.integer-too-large"),
        (b'{"a":[[9007199254740992]]}', "json.integer-too-large"),
        (b'[1,"x",9007199254740992]', "json.integer-too-large"),
        (b"[" + b"9" * 5000 + b"]", "json.integer-too-large"),
        (b'["\\ud800"]', "json.lone-surrogate"),
        (b'{"\\udc00":1}', "json.lone-surrogate"),
        (b"\xef\xbb\xbf{}", "json.malformed"),
        (b'["\xff"]', "json.not-utf8"),
        (b"{}{}", "json.malformed"),
        (b"", "json.malformed"),
        (b"[1,]", "json.malformed"),
        (b"[" * 40 + b"]" * 40, "json.too-deep"),
        (b"[" * 200_000, "json.too-deep"),
    ],
)
def test_what_parsers_disagree_on_is_refused_by_name(raw: bytes, fault: str) -> None:
    with pytest.raises(FindingError) as caught:
        parse(raw, file="evidence.json")
    assert (caught.value.finding.id, caught.value.finding.file) == (fault, "evidence.json")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(VALUES | st.lists(st.integers(-(2**53) + 1, 2**53 - 1)))
def test_the_quick_writer_writes_what_the_library_writes(value: JsonValue) -> None:
    assert canonical(value) == rfc8785.dumps(value)


def test_every_character_is_escaped_as_the_library_escapes_it() -> None:
    text = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)
    assert canonical(text) == rfc8785.dumps(text)
    assert canonical({text: 1}) == rfc8785.dumps({text: 1})


@pytest.mark.parametrize("value", [[2**53], [1, -(2**53)], {"a": 2**53}, [float("nan")], ["\ud800"], {"\ud800": 1}])
def test_what_has_no_canonical_form_is_refused(value: JsonValue) -> None:
    with pytest.raises(FindingError) as caught:
        canonical(value)
    assert caught.value.finding.id == "json.not-canonical"


def test_brackets_inside_strings_do_not_count_as_depth() -> None:
    assert parse(b'["' + b"[" * 100 + b'\\"{"]', file="x") == ["[" * 100 + '"{']


def test_limits_on_size_and_members_hold() -> None:
    for limits, fault in ((Limits(size_bytes=4), "json.too-large"), (Limits(members=3), "json.too-many-members")):
        with pytest.raises(FindingError) as caught:
            parse(b"[1,2,3,4]", file="x", limits=limits)
        assert caught.value.finding.id == fault


#: Reads a document of 16 MB, which a recipe makes, in a process that may have 700 MB of addresses beyond its start.
READ = """
import resource, sys
from pathlib import Path
import numpy
from mint2m_verify.canonical import parse
from mint2m_verify.finding import FindingError
raw = eval(sys.argv[1])
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 700 * 10**6,) * 2)
try:
    parse(raw, file="x", canonical_form=True)
    print("read")
except FindingError as fault:
    print(fault.finding.id)
"""


@pytest.mark.parametrize(
    ("recipe", "ending"),
    [
        (r"""b'{"a":"' + b'[' * 33 + b'\\n' * 8_000_000 + b'"}'""", "read"),
        (r"""b'"' + b'\\"' * 8_000_000 + b'[' * 40""", "json.malformed"),
        ("""b'"' * 16_000_000 + b'[' * 40""", "json.too-deep"),
        ("""b'[' * 16_000_000""", "json.too-deep"),
        ("""b'["",' + b'"",' * 5_000_000 + b'[]]'""", "read"),
        ("""b'[' + b'1,' * 8_000_000 + b'1]'""", "json.too-many-members"),
        ("""b'{"a":[' + b'1,' * 8_000_000 + b'1]}'""", "json.too-many-members"),
        ("""b'{"a":[' + b'1,' * 7_000_000 + b'1]}'""", "read"),
    ],
)
def test_no_document_takes_many_times_its_size(recipe: str, ending: str) -> None:
    told = subprocess.run([sys.executable, "-c", READ, recipe], capture_output=True, text=True, check=False)
    assert told.stdout == f"{ending}\n", told.stderr[-500:]


@pytest.mark.parametrize("raw", [b'{"b":1,"a":2}', b'{"a": 1}', b"[1.0]", b"[1]\n", b'["\\u0041"]'])
def test_machine_made_json_in_any_other_spelling_is_refused(raw: bytes) -> None:
    with pytest.raises(FindingError) as caught:
        parse(raw, file="x", canonical_form=True)
    assert caught.value.finding.id == "json.not-canonical"


def test_digests_are_those_of_hashlib_in_lower_case() -> None:
    assert sha256_hex(b"abc") == hashlib.sha256(b"abc").hexdigest() == "ba7816bf" + sha256_hex(b"abc")[8:]
