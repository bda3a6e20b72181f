"""Findings of the strict JSON reader."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_WHY = (
    "Parsers disagree about such a text, so one signature could cover two meanings. The whole document is refused and\n"
    "nothing in it is believed. Whoever made the document must write it again; do not repair evidence by hand."
)


def _entry(fault: str, message: str, meaning: str) -> Entry:
    return Entry(id=f"json.{fault}", verdict=Verdict.FAILED, message=message, explanation=f"{meaning}\n{_WHY}")


ENTRIES = (
    _entry("malformed", "not a JSON text", "The bytes do not parse as one JSON value."),
    _entry("not-utf8", "not UTF-8", "JSON documents are UTF-8 without a byte-order mark."),
    _entry(
        "duplicate-key",
        "an object names a key twice",
        "One object has two members with the same name; readers differ on which counts.",
    ),
    _entry(
        "not-finite",
        "a number is not finite",
        "NaN, infinities and numbers that overflow a double are not JSON and never a valid measurement.",
    ),
    _entry(
        "integer-too-large",
        "an integer is beyond 2^53-1",
        "Such an integer loses digits in most readers; it must be written as a string.",
    ),
    _entry(
        "lone-surrogate",
        "a string holds a lone surrogate",
        "An escaped half of a surrogate pair has no UTF-8 form.",
    ),
    _entry("too-large", "the document is too large", "The document is longer than the reader's stated limit."),
    _entry(
        "too-deep",
        "the document is nested too deeply",
        "The nesting is deeper than the reader's stated limit.",
    ),
    _entry(
        "too-many-members",
        "the document has too many members",
        "The number of members is above the reader's stated limit.",
    ),
    _entry(
        "not-canonical",
        "the bytes are not the RFC 8785 form",
        "Documents made by machines are written in one form only, so that equal values have equal digests.",
    ),
)
