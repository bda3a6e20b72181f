"""Writes DER (X.690) for the few structures that `cryptography` reads but does not build: RFC 3161 and Fulcio's claims.

The rule: a writer only. Nothing here reads bytes, so nothing here can be confused by them.
"""

from __future__ import annotations

from datetime import datetime

_CONTEXT_0 = 0xA0  # [0], constructed


def element(tag: int, *parts: bytes) -> bytes:
    """One element with the given tag byte around the concatenated `parts`."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def sequence(*parts: bytes) -> bytes:
    return element(0x30, *parts)


def set_of(*parts: bytes) -> bytes:
    """SET OF: DER orders the members by their encodings."""
    return element(0x31, *sorted(parts))


def tagged(*parts: bytes) -> bytes:
    """[0] EXPLICIT around one part."""
    return element(_CONTEXT_0, *parts)


def tagged_set(*parts: bytes) -> bytes:
    """[0] IMPLICIT SET OF."""
    return element(_CONTEXT_0, *sorted(parts))


def boolean(value: bool) -> bytes:
    return element(0x01, b"\xff" if value else b"\x00")


def integer(value: int) -> bytes:
    """A non-negative INTEGER; a leading zero keeps the sign bit clear."""
    return element(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def octets(raw: bytes) -> bytes:
    return element(0x04, raw)


def utf8(text: str) -> bytes:
    return element(0x0C, text.encode())


def generalized_time(time: datetime) -> bytes:
    """GeneralizedTime in UTC to the second, as RFC 3161 section 2.4.2 wants it; the caller gives UTC."""
    return element(0x18, time.strftime("%Y%m%d%H%M%SZ").encode())


def object_identifier(dotted: str) -> bytes:
    first, second, *rest = (int(arc) for arc in dotted.split("."))
    return element(0x06, *(_base_128(arc) for arc in (first * 40 + second, *rest)))


def _base_128(arc: int) -> bytes:
    digits = [arc & 0x7F]
    while arc := arc >> 7:
        digits.append(arc & 0x7F | 0x80)
    return bytes(reversed(digits))
