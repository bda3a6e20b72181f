"""Digests that nobody computed: all zeros, or a few characters over and over, as templates have them.

The rule: such a value is refused wherever an operator names what runs, since it identifies nothing and looks as if it
did. No SHA-256 that anybody ever met repeats its first eight characters to the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mint2m_verify.canonical import JsonValue

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")

#: Lengths of a block that a template's digest repeats.
_BLOCKS = (1, 2, 4, 8)


def is_placeholder(digest: str) -> bool:
    """Whether a SHA-256, with or without its algorithm's name, is a template's."""
    match = _DIGEST.fullmatch(digest)
    return match is not None and any(match[1] == match[1][:size] * (64 // size) for size in _BLOCKS)


def placeholders(value: JsonValue, pointer: str = "") -> Iterator[tuple[str, str]]:
    """Pointer and text of every such digest in a document, in its order."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from placeholders(member, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from placeholders(item, f"{pointer}/{index}")
    elif isinstance(value, str) and is_placeholder(value):
        yield pointer, value


def without_placeholders(value: JsonValue) -> JsonValue:
    """The value with a stand-in for each all-zero digest, for the schema only.

    The schema refuses placeholders, and a template is full of them. Each has a check of its own, and with the rest
    of the document examined too the operator learns of everything at once.
    """
    if isinstance(value, dict):
        return {name: without_placeholders(member) for name, member in value.items()}
    if isinstance(value, list):
        return [without_placeholders(item) for item in value]
    if isinstance(value, str) and is_placeholder(value):
        return value.replace("0" * 64, "f" * 64)
    return value
