"""What every document has in common: a schema, its bytes, and one way in and one way out.

Members of a dataclass and of its schema have the same names, so the code between them is generic: `Document.parse`
checks the schema first and then builds the dataclass from its annotations; `Document.encode` writes RFC 8785 bytes. A
test compares every dataclass with its schema, member by member.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from mint2m_verify import schema
from mint2m_verify.canonical import JsonValue, canonical, parse, sha256_hex
from mint2m_verify.finding import FindingError

T = TypeVar("T")

_SCALARS = (bool, int, float, str)

#: Annotations of each dataclass, resolved once.
_MEMBERS: dict[type, dict[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """A file by relative path, SHA-256 of all its bytes, and byte count."""

    path: str
    sha256: str
    size: int

    @classmethod
    def of(cls, path: str, raw: bytes) -> Self:
        """The reference to a file that holds `raw`."""
        return cls(path=path, sha256=sha256_hex(raw), size=len(raw))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Base of all documents; subclasses set `NAME` to their schema's name."""

    NAME: ClassVar[str]

    @classmethod
    def parse(cls, raw: bytes, *, file: str, canonical_form: bool = True) -> Self:
        """Read one document strictly.

        Args:
            raw: its bytes.
            file: the name that findings give it.
            canonical_form: machine-made documents must be their own RFC 8785 form; False for those that people write.

        Raises:
            FindingError: the first `json.*` or `schema.*` fault.
        """
        value = parse(raw, file=file, canonical_form=canonical_form)
        for fault in schema.check(value, cls.NAME, file=file):
            raise FindingError(fault)
        if not isinstance(value, dict):
            raise TypeError(f"schema {cls.NAME} accepted a value that is no object")
        return decode(cls, {name: member for name, member in value.items() if name != "schema"})

    def encode(self) -> bytes:
        """The document's RFC 8785 bytes, as they lie on disk."""
        return canonical(self.value())

    def value(self) -> dict[str, JsonValue]:
        """The document as a JSON object, `schema` included."""
        members = encode(self)
        if not isinstance(members, dict):
            raise TypeError(f"{type(self).__name__} did not become an object")
        return {"schema": f"mint2m.{self.NAME}/v1", **members}

    @property
    def sha256(self) -> str:
        """SHA-256 of the RFC 8785 bytes; equals the file's for a machine-made document."""
        return sha256_hex(self.encode())


def encode(value: object) -> JsonValue:
    """A dataclass, tuple or scalar as JSON; a member named in `OPTIONAL` is left out where it is None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        optional: frozenset[str] = getattr(value, "OPTIONAL", frozenset())
        return {
            member.name: encode(getattr(value, member.name))
            for member in dataclasses.fields(value)
            if not (member.name in optional and getattr(value, member.name) is None)
        }
    if isinstance(value, tuple):
        if value and type(value[0]) in _SCALARS:
            return list(value)
        return [encode(item) for item in value]
    if value is None or isinstance(value, _SCALARS):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def decode(cls: type[T], value: JsonValue) -> T:
    """Build dataclass `cls` from a JSON object that its schema has accepted."""
    if not isinstance(value, dict):
        raise TypeError(f"{cls.__name__} needs an object")
    members: dict[str, Any] = {}
    for name, annotation in _members(cls).items():
        members[name] = _convert(annotation, value.get(name))
    return cls(**members)


def _members(cls: type) -> dict[str, Any]:
    if cls not in _MEMBERS:
        hints = typing.get_type_hints(cls)
        _MEMBERS[cls] = {member.name: hints[member.name] for member in dataclasses.fields(cls)}
    return _MEMBERS[cls]


def _convert(annotation: Any, value: JsonValue) -> Any:
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = (part for part in typing.get_args(annotation) if part is not type(None))
        return _convert(inner, value)
    if origin is tuple and isinstance(value, list):
        item = typing.get_args(annotation)[0]
        if item in (int, str, bool):
            return tuple(value)
        return tuple(_convert(item, entry) for entry in value)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return decode(annotation, value)
    if annotation is float and isinstance(value, (int, float)):
        return float(value)
    if annotation is int and isinstance(value, float):
        return int(value)
    return value
