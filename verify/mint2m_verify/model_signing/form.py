"""The statement of a model signature: a list of files with their digests, and what was left out of it.

The rule: the list is believed, and only the list. The statement's subject is a digest over the digests, without the
names, so two files that change places keep it; it is recomputed all the same, since a subject that its own list
contradicts is no statement. The list is sorted, so that the same tree has one statement.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NoReturn

from mint2m_verify.canonical import JsonValue, Limits, canonical, parse
from mint2m_verify.finding import FindingError, found
from mint2m_verify.statement import STATEMENT_TYPE, path_fault

PREDICATE_TYPE = "https://model_signing/signature/v1.0"

#: What model_signing leaves out unless it is told otherwise, and its verifier too.
DEFAULT_IGNORES = (".git", ".gitattributes", ".github", ".gitignore")

#: A line of a list is about two hundred bytes; at this size it could name a hundred thousand files.
STATEMENT_LIMIT = 32 << 20

_LIMITS = Limits(size_bytes=STATEMENT_LIMIT, depth=12, members=1_000_000)
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A file that is signed: its path in the directory and the SHA-256 of its bytes."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatement:
    """What the signer of a model says. `name` is the directory's, for people only; `ignored` are paths left out."""

    name: str
    resources: tuple[Resource, ...]
    ignored: tuple[str, ...]


def by_components(path: str) -> tuple[str, ...]:
    """The order of the list: `a/b` before `a.txt`, unlike the order of the bare strings."""
    return PurePosixPath(path).parts


def is_ignored(path: str, ignored: Iterable[str]) -> bool:
    """Whether `path` is one of `ignored` or lies below one."""
    return any(path == other or path.startswith(f"{other}/") for other in ignored)


def subject_digest(resources: Iterable[Resource]) -> str:
    """SHA-256 over the digests of the list, in its order."""
    return hashlib.sha256(b"".join(bytes.fromhex(resource.sha256) for resource in resources)).hexdigest()


def encode_statement(statement: ModelStatement) -> bytes:
    """The payload to sign, in RFC 8785 form."""
    resources: list[JsonValue] = [
        {"name": resource.path, "algorithm": "sha256", "digest": resource.sha256} for resource in statement.resources
    ]
    serialization: dict[str, JsonValue] = {
        "method": "files",
        "hash_type": "sha256",
        "allow_symlinks": False,
        "ignore_paths": list(statement.ignored),
    }
    digest = subject_digest(statement.resources)
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": statement.name, "digest": {"sha256": digest}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {"serialization": serialization, "resources": resources},
        }
    )


def parse_statement(payload: bytes, *, file: str) -> ModelStatement:
    """The statement in a payload that anybody may have written.

    Raises:
        FindingError: `json.*`; `model-signature.statement-invalid`, `.type-mismatch`, `.method-unsupported`,
            `.list-invalid` or `.subject-mismatch`.
    """
    reader = _Reader(file=file)
    statement = reader.members(parse(payload, file=file, limits=_LIMITS), "")
    for member, wanted in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if statement.get(member) != wanted:
            reader.refuse("type-mismatch", f"/{member}", expected=wanted, actual=repr(statement.get(member)))
    predicate = reader.members(statement.get("predicate"), "/predicate")
    ignored = _serialization(predicate.get("serialization"), reader)
    resources = _resources(predicate.get("resources"), reader)
    name = _subject(statement.get("subject"), resources, reader)
    return ModelStatement(name=name, resources=resources, ignored=ignored)


def _serialization(value: JsonValue, reader: _Reader) -> tuple[str, ...]:
    """The paths left out; the method must be the one of whole files by SHA-256."""
    where = "/predicate/serialization"
    members = reader.members(value, where)
    for member, wanted in (("method", "files"), ("hash_type", "sha256")):
        if members.get(member) != wanted:
            actual = repr(members.get(member))
            reader.refuse("method-unsupported", f"{where}/{member}", expected=wanted, actual=actual)
    # Links are refused whatever this says: nothing here ever follows one.
    if not isinstance(members.get("allow_symlinks", False), bool):
        reader.refuse("statement-invalid", f"{where}/allow_symlinks", expected="true or false")
    ignored = members.get("ignore_paths", [])
    if not isinstance(ignored, list):
        reader.refuse("statement-invalid", f"{where}/ignore_paths", expected="a list of paths")
    return tuple(reader.text(path, f"{where}/ignore_paths/{index}") for index, path in enumerate(ignored))


def _resources(value: JsonValue, reader: _Reader) -> tuple[Resource, ...]:
    where = "/predicate/resources"
    if not isinstance(value, list) or not value:
        reader.refuse("list-invalid", where, expected="at least one file")
    resources: list[Resource] = []
    for index, entry in enumerate(value):
        place = f"{where}/{index}"
        members = reader.members(entry, place)
        path = reader.text(members.get("name"), f"{place}/name")
        fault = path_fault(path)
        if fault is not None:
            reader.refuse("list-invalid", f"{place}/name", expected="a relative path", actual=fault)
        if resources and by_components(path) <= by_components(resources[-1].path):
            reader.refuse("list-invalid", f"{place}/name", expected=f"a path after {resources[-1].path}", actual=path)
        if members.get("algorithm") != "sha256":
            actual = repr(members.get("algorithm"))
            reader.refuse("method-unsupported", f"{place}/algorithm", expected="sha256", actual=actual)
        digest = reader.text(members.get("digest"), f"{place}/digest")
        if _HEX.fullmatch(digest) is None:
            reader.refuse("list-invalid", f"{place}/digest", expected="64 lower-case hexadecimal digits", actual=digest)
        resources.append(Resource(path=path, sha256=digest))
    return tuple(resources)


def _subject(value: JsonValue, resources: tuple[Resource, ...], reader: _Reader) -> str:
    """The directory's name; the one subject's digest must be that of the list."""
    if not isinstance(value, list) or len(value) != 1:
        reader.refuse("statement-invalid", "/subject", expected="one subject")
    members = reader.members(value[0], "/subject/0")
    digest = reader.members(members.get("digest"), "/subject/0/digest")
    wanted = subject_digest(resources)
    if digest != {"sha256": wanted}:
        reader.refuse("subject-mismatch", "/subject/0/digest", expected=f"sha256 {wanted}", actual=repr(digest))
    return reader.text(members.get("name"), "/subject/0/name")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Takes a payload apart; the first thing that does not fit ends the reading."""

    file: str

    def refuse(self, fault: str, pointer: str, *, expected: str, actual: str | None = None) -> NoReturn:
        shown = None if actual is None else actual[:200]
        raise FindingError(
            found(f"model-signature.{fault}", file=self.file, pointer=pointer, expected=expected, actual=shown)
        )

    def members(self, value: JsonValue, pointer: str) -> dict[str, JsonValue]:
        """An object's members. Unknown ones are allowed: v1.0 says that verifiers ignore them."""
        if not isinstance(value, dict):
            self.refuse("statement-invalid", pointer, expected="an object")
        return value

    def text(self, value: JsonValue, pointer: str) -> str:
        if not isinstance(value, str):
            self.refuse("statement-invalid", pointer, expected="a string")
        return value
