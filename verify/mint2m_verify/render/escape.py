"""Strings from evidence, made harmless for a terminal.

The rule: a file name or value chosen by whoever made the evidence may not move the cursor, colour a word, end a line
or reverse the reading direction, because any of these can make a refusal look like an acceptance. What is not plainly
printable is shown as its escape.
"""

from __future__ import annotations

import unicodedata

#: Controls, formats (bidi overrides, joiners), surrogates, private use, unassigned, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escape(text: str, limit: int = 512) -> str:
    """`text` on one line, with every character visible; longer texts are cut and say so."""
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text)} characters)"
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if char == "\\":
        return "\\\\"  # or an evidence string could spell an escape that it does not hold
    # A combining mark at will could pile onto what the tool itself prints; a few accents are not worth that.
    if unicodedata.category(char) in _HIDDEN or (unicodedata.combining(char) and not char.isalnum()):
        code = ord(char)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return char
