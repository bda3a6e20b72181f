"""Strict JSON in, RFC 8785 out, and the SHA-256 that addresses it.

Two readers that disagree about a document can be shown two different documents under one signature. So the
reader refuses everything that JSON parsers are known to disagree on: duplicate keys, NaN and infinities, integers
beyond 2^53-1, lone surrogates, a byte-order mark, and nesting or size without bound.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, NoReturn, TypeAlias

import rfc8785

from mint2m_verify.finding import FindingError, found
from mint2m_verify.integer_lists import LONG, Decoder, Integers, bounds

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

#: Integers beyond this lose digits in a double; RFC 8785 has no form for them.
MAX_SAFE_INTEGER = 2**53 - 1

#: A bracket, or a string of JSON, or the rest of the text where a string does not end. Possessive: nothing is kept of
#: millions of escapes.
_BRACKET_OR_STRING = re.compile(rb'[\[\]{}]|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a reader is willing to hold; a document past any of these is refused, not truncated."""

    size_bytes: int = 64 << 20
    depth: int = 32
    members: int = 8_000_000


DEFAULT_LIMITS = Limits()

#: What needs no look at each: integers are held against the limit together.
_PLAIN = {int, float, bool, type(None)}

#: Bytes from which a document may hold a list that is worth a decoder of its own.
_LARGE = 1 << 17


def sha256_hex(raw: bytes) -> str:
    """Lower-case hexadecimal SHA-256 of `raw`."""
    return hashlib.sha256(raw).hexdigest()


def canonical(value: JsonValue) -> bytes:
    """The RFC 8785 form of `value`; raises `FindingError` (`json.not-canonical`) for what has none."""
    return b"".join(_digits(part) if isinstance(part, Integers) else part for part in _written(value))


def _written(value: JsonValue) -> list[bytes | Integers]:
    """The RFC 8785 form in pieces, long lists of integers as they are; raises `FindingError` for what has none."""
    parts: list[bytes | Integers] = []
    try:
        _write(value, parts)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as fault:
        raise FindingError(found("json.not-canonical", actual=str(fault))) from fault
    return parts


def _write(value: JsonValue, parts: list[bytes | Integers]) -> None:
    """RFC 8785 containers and strings; numbers are the library's. Millions of token ids must not cost a call each."""
    if isinstance(value, str):
        parts.append(_quoted(value))
    elif isinstance(value, dict):
        opening = b"{"
        for name in sorted(value, key=_utf16):
            parts += (opening, _quoted(name), b":")
            _write(value[name], parts)
            opening = b","
        parts.append(b"}" if value else b"{}")
    elif isinstance(value, Integers):
        parts.append(value)
    elif isinstance(value, list | tuple):
        if set(map(type, value)) == {int} and not _beyond(value):
            parts.append(_digits(value))  # type: ignore[arg-type]  # all of them are integers
            return
        opening = b"["
        for item in value:
            parts.append(opening)
            _write(item, parts)
            opening = b","
        parts.append(b"]" if value else b"[]")
    else:
        parts.append(rfc8785.dumps(value))


def _quoted(text: str) -> bytes:
    """Python escapes what RFC 8785, section 3.2.2.2, escapes, and in the same way, unless told to keep to ASCII."""
    return encode_basestring(text).encode()


def _digits(numbers: Sequence[int]) -> bytes:
    return str(list(numbers)).replace(" ", "").encode()


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")  # RFC 8785, section 3.2.3: by UTF-16 code units


def _beyond(numbers: Sequence[Any]) -> bool:
    """Whether one of these integers loses digits in a double; False for none at all."""
    if not numbers:
        return False
    least, most = bounds(numbers)
    return bool(most > MAX_SAFE_INTEGER or least < -MAX_SAFE_INTEGER)


def parse(raw: bytes, *, file: str, limits: Limits = DEFAULT_LIMITS, canonical_form: bool = False) -> JsonValue:
    """One JSON text, read strictly.

    Args:
        raw: the bytes as they lie on disk.
        file: the name a finding gives them.
        canonical_form: also require that the bytes are the RFC 8785 form of their value (machine-made documents).

    Raises:
        FindingError: `json.*`; nothing is returned for a text that breaks any rule.
    """

    def refuse(fault: str, *, expected: str | None = None, actual: str | None = None) -> NoReturn:
        raise FindingError(found(fault, file=file, expected=expected, actual=actual))

    if len(raw) > limits.size_bytes:
        refuse("json.too-large", expected=f"at most {limits.size_bytes} bytes", actual=f"{len(raw)} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        refuse("json.not-utf8", actual=f"byte {raw[fault.start]:#04x} at offset {fault.start}")
    _check_depth(raw, limits.depth, file=file)

    def members(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        value = dict(pairs)
        if len(value) != len(pairs):
            refuse("json.duplicate-key", actual=_first_repeated([name for name, _ in pairs]))
        return value

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            refuse("json.not-finite", actual=text[:64])
        return value

    try:
        value: JsonValue = json.loads(
            text,
            cls=Decoder if canonical_form and len(raw) >= _LARGE and raw.isascii() else None,
            object_pairs_hook=members,
            parse_float=number,
            parse_constant=lambda name: refuse("json.not-finite", actual=name),
        )
    except json.JSONDecodeError as fault:
        refuse("json.malformed", actual=f"{fault.msg} at line {fault.lineno}, column {fault.colno}")
    except ValueError:
        # Python converts no integer of thousands of digits.
        refuse("json.integer-too-large", expected=f"at most {MAX_SAFE_INTEGER}")
    _check_content(value, limits.members, file=file)
    if canonical_form and (actual := _difference(value, raw)) is not None:
        refuse("json.not-canonical", expected="the RFC 8785 form", actual=actual)
    return value


def _first_repeated(names: list[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_depth(raw: bytes, limit: int, *, file: str) -> None:
    # Counted on the bytes, before the parser recurses; brackets inside strings do not count.
    if raw.count(b"[") + raw.count(b"{") <= limit:
        return
    depth = 0
    for match in _BRACKET_OR_STRING.finditer(raw):
        byte = raw[match.start()]
        if byte in b"[{":
            depth += 1
            if depth > limit:
                raise FindingError(found("json.too-deep", file=file, expected=f"at most {limit} levels"))
        elif byte in b"]}":
            depth -= 1


def _check_content(value: JsonValue, limit: int, *, file: str) -> None:
    """Refuse lone surrogates (they have no UTF-8 form), integers beyond a double's, more members than `limit`.

    Members that are long lists of integers become `Integers`.
    """
    count, stack = 0, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            _check_string(item, file=file)
        elif isinstance(item, int):
            _check_integers([item], file=file)
        elif isinstance(item, dict | list):
            count += len(item)
            if count > limit:
                raise FindingError(found("json.too-many-members", file=file, expected=f"at most {limit}"))
        if isinstance(item, dict):
            for name, member in item.items():
                _check_string(name, file=file)
                if type(member) is list and len(member) >= LONG and set(map(type, member)) == {int}:
                    item[name] = Integers.of(member)  # type: ignore[assignment, arg-type]  # all are integers
            stack.extend(item.values())
        elif isinstance(item, Integers):
            _check_integers(item, file=file)
        elif isinstance(item, list):
            # Long lists are token ids and log-probs: one look at all their types, a second only where there are others.
            kinds = set(map(type, item))
            if int in kinds:
                _check_integers([entry for entry in item if type(entry) is int] if len(kinds) > 1 else item, file=file)
            if not kinds <= _PLAIN:
                stack.extend(entry for entry in item if isinstance(entry, (str, list, dict)))


def _check_integers(numbers: Sequence[Any], *, file: str) -> None:
    if _beyond(numbers):
        worst = str(max(numbers, key=abs))[:64]
        raise FindingError(
            found("json.integer-too-large", file=file, expected=f"at most {MAX_SAFE_INTEGER}", actual=worst)
        )


def _check_string(text: str, *, file: str) -> None:
    if not text.isascii() and _SURROGATE.search(text) is not None:
        raise FindingError(found("json.lone-surrogate", file=file, actual=ascii(text)[:64]))


def _difference(value: JsonValue, raw: bytes) -> str | None:
    """Where `raw`, of which `value` was read, leaves the RFC 8785 form of it; None where it never does.

    Integers are not written out to be compared. Where all before them is as it should be, their list stands next in
    `raw`, and its brackets hold the very numbers that were read; so it has the one form unless it has a space or a
    minus zero: the reader takes no other spelling of an integer.
    """
    at = 0
    for part in _written(value):
        if isinstance(part, Integers):
            end = raw.find(b"]", at) + 1
            if raw[at:end].translate(None, b"-,0123456789") != b"[]" or raw.find(b"-0", at, end) >= 0:
                part = _digits(part)
            else:
                at = end
                continue
        if not raw.startswith(part, at):
            same = next((i for i, (a, b) in enumerate(zip(part, raw[at:], strict=False)) if a != b), None)
            return f"{len(raw)} bytes, too few" if same is None else f"differs at byte {at + same}"
        at += len(part)
    return None if at == len(raw) else f"{len(raw) - at} bytes after the end"
