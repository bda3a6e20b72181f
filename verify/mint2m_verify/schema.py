"""JSON Schema 2020-12: one schema per document type and major version, all bundled, none ever fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mint2m_verify.canonical import MAX_SAFE_INTEGER, JsonValue, parse
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.integer_lists import Integers, bounds
from mint2m_verify.times import parse_time

if TYPE_CHECKING:
    from jsonschema import FormatChecker
    from jsonschema.protocols import Validator
    from referencing import Registry, Resource

_ZERO_DIGEST = "0" * 64

#: Faults of one document, and of one list in it, that are told; a hostile list could have millions of them.
_MOST_FAULTS = 100

#: Lists that must not repeat an entry are short; comparing each entry with each other one would not end for long ones.
_MOST_UNIQUE = 4096

#: A schema of these words alone is a range of numbers.
_RANGE_WORDS = {"type", "minimum", "maximum"}

#: A schema of these words alone says what a text may be.
_TEXT_WORDS = {"type", "minLength", "maxLength", "pattern", "not", "description"}

#: Python types of JSON numbers; bool is a subclass of int and no number, so types are compared, not instances.
_NUMBER_KINDS: dict[str, set[type]] = {"integer": {int}, "number": {int, float}}


def schema_directory() -> Path:
    """Where the schemas lie: inside the installed package, or at the root of a source checkout."""
    here = Path(__file__).resolve().parent
    packaged = here / "schemas"
    return packaged if packaged.is_dir() else here.parents[1] / "schemas"


@cache
def names() -> tuple[str, ...]:
    """The document types this tool reads, e.g. `plan`, sorted."""
    found_names = sorted(path.name.removesuffix(".v1.json") for path in schema_directory().glob("*.v1.json"))
    return tuple(name for name in found_names if name != "common")


def schema_text(name: str) -> str:
    """The schema of document type `name`, as published; raises `FindingError` (`schema.unknown`)."""
    if name != "common" and name not in names():
        raise FindingError(found("schema.unknown", expected=", ".join(names()), actual=name))
    return (schema_directory() / f"{name}.v1.json").read_text(encoding="utf-8")


def check(value: JsonValue, name: str, *, file: str) -> tuple[Finding, ...]:
    """Where `value` breaks the schema `name`, in document order; empty where it holds.

    The member `schema` is looked at first: a document of another type yields that one finding only.
    """
    declared = value.get("schema") if isinstance(value, dict) else None
    if declared != f"mint2m.{name}/v1":
        shown = declared if isinstance(declared, str) else None
        return (found("schema.unknown", file=file, pointer="/schema", expected=f"mint2m.{name}/v1", actual=shown),)
    return tuple(_faults(value, name, file=file))


def check_file(path: Path) -> Report:
    """`mint2m schema check FILE`: hold one document against the schema that it names, and nothing more."""
    name, findings = str(path), tuple[Finding, ...]()
    if not path.exists():
        raise FindingError(found("input.missing", file=name))
    try:
        value = parse(read_once(path), file=name)
        declared = value.get("schema") if isinstance(value, dict) else None
        kind = str(declared).removeprefix("mint2m.").removesuffix("/v1")
        if kind not in names():
            shown = declared if isinstance(declared, str) else None
            findings = (
                found(
                    "schema.unknown",
                    file=name,
                    pointer="/schema",
                    expected="a type of `mint2m schema list`",
                    actual=shown,
                ),
            )
        else:
            findings = check(value, kind, file=name)
    except FindingError as fault:
        findings = (fault.finding,)
    row = Requirement(
        required="the document keeps to its schema",
        found=f"{len(findings)} faults" if findings else kind,
        standing=Standing.FAILED if findings else Standing.CHECKED,
    )
    return Report(
        subject=name,
        command="schema check",
        requirements=(row,),
        findings=findings,
        not_checked=("who wrote the document, and whether what it says is true",),
    )


def _faults(value: JsonValue, name: str, *, file: str) -> Iterator[Finding]:
    told = islice(_validator(name).iter_errors(value), _MOST_FAULTS)
    errors = sorted(told, key=lambda error: [str(part) for part in error.absolute_path])
    for error in errors:
        pointer = "".join(f"/{_escape(str(part))}" for part in error.absolute_path)
        if isinstance(error.instance, str) and error.instance.removeprefix("sha256:") == _ZERO_DIGEST:
            yield found("schema.placeholder", file=file, pointer=pointer, actual=error.instance)
        else:
            yield found("schema.invalid", file=file, pointer=pointer, actual=_shorten(error.message))


@cache
def _validator(name: str) -> Validator:
    kind, formats = _dialect()
    schema = _written_out(json.loads(schema_text(name)))
    validator: Validator = kind(schema, registry=_registry(), format_checker=formats)
    return validator


@cache
def _dialect() -> tuple[Any, FormatChecker]:
    """JSON Schema 2020-12 as it is meant, quick for long lists, with every format that our schemas name."""
    # Imported late: commands that check no document start faster.
    from jsonschema import Draft202012Validator, FormatChecker, ValidationError
    from jsonschema.validators import extend

    standard = Draft202012Validator.VALIDATORS
    properties, items, unique_items = (standard[word] for word in ("properties", "items", "uniqueItems"))

    # Neither two million token ids nor the members of ten thousand files must cost a generic validation each; anything
    # unusual takes the standard way.
    def numbers_first(validator: Validator, schema: Any, values: Any, parent: Any) -> Iterator[Any]:
        if not _plain_numbers(schema, values) and not (
            isinstance(values, list) and all(_plainly_keeps(schema, value) for value in values)
        ):
            yield from islice(items(validator, schema, values, parent), _MOST_FAULTS)

    def plain_members_first(validator: Validator, schemas: Any, value: Any, parent: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            left = {
                name: schema
                for name, schema in schemas.items()
                if name in value and not _plainly_keeps(schema, value[name])
            }
            yield from properties(validator, left, value, parent)

    def unique(validator: Validator, wanted: Any, values: Any, parent: Any) -> Iterator[Any]:
        if isinstance(values, list) and len(values) > _MOST_UNIQUE:
            yield ValidationError(f"{len(values)} entries are too many to be all different")
        else:
            yield from unique_items(validator, wanted, values, parent)

    def pattern(_validator: Validator, wanted: str, text: Any, _parent: Any) -> Iterator[Any]:
        if isinstance(text, str) and _ending_at_the_end(wanted).search(text) is None:
            yield ValidationError(f"{text[:100]!r} does not match {wanted!r}")

    formats = FormatChecker(formats=("ipv4", "ipv6"))

    @formats.checks("date-time")
    def is_time(text: object) -> bool:
        return not isinstance(text, str) or parse_time(text) is not None

    words = {"properties": plain_members_first, "items": numbers_first, "uniqueItems": unique, "pattern": pattern}
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
    return extend(Draft202012Validator, words, type_checker=types), formats  # type: ignore[no-untyped-call]  # its stubs


@cache
def _ending_at_the_end(pattern: str) -> re.Pattern[str]:
    """`$` of ECMA 262, which JSON Schema means, is the very end; Python's also stands before a last line feed."""
    return re.compile(re.sub(r"\$$", r"\\Z", pattern))


def _is_integer(_checker: Any, value: object) -> bool:
    """1.0 is an integer to JSON Schema; 1e300 would be one, too, and is past what our integers may be."""
    if isinstance(value, float):
        return value.is_integer() and abs(value) <= MAX_SAFE_INTEGER
    return isinstance(value, int) and not isinstance(value, bool)


def _written_out(schema: Any) -> Any:
    """`schema` with what it refers to in place of each reference that stands alone.

    Our references name whole documents or their definitions, none of which refers to itself. To look one up costs more
    than most checks, and a manifest has several for each file.
    """
    if isinstance(schema, list):
        return [_written_out(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.keys() == {"$ref"}:
        return _written_out(_registry().resolver().lookup(schema["$ref"]).contents)
    return {word: _written_out(part) for word, part in schema.items()}


def _plain_numbers(schema: Any, values: Any) -> bool:
    """Whether `schema` asks for numbers in a range and every one of `values` is one; False decides nothing."""
    if not isinstance(schema, dict) or not isinstance(values, list) or not schema.keys() <= _RANGE_WORDS:
        return False
    kinds: set[type] | None = _NUMBER_KINDS.get(schema.get("type", ""))
    if kinds is None or not values:
        return False
    if not isinstance(values, Integers) and not set(map(type, values)) <= kinds:
        return False
    least, most = bounds(values)
    return bool(schema.get("minimum", least) <= least and most <= schema.get("maximum", most))


def _plainly_keeps(schema: Any, value: Any) -> bool:
    """Whether `value` is the text, the whole number or the truth that `schema` asks for; False decides nothing."""
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if kind == "boolean":
        return type(value) is bool and len(schema) == 1
    if kind == "integer":
        return (
            type(value) is int
            and schema.keys() <= _RANGE_WORDS
            and bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
        )
    if kind != "string" or type(value) is not str or not schema.keys() <= _TEXT_WORDS:
        return False
    unwanted = schema.get("not")
    return (
        (unwanted is None or (unwanted.keys() == {"const"} and unwanted["const"] != value))
        and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        and ("pattern" not in schema or _ending_at_the_end(schema["pattern"]).search(value) is not None)
    )


@cache
def _registry() -> Registry[Any]:
    from referencing import Registry

    registry: Registry[Any] = Registry(retrieve=_bundled)  # type: ignore[call-arg]  # its stubs
    return registry


@cache
def _bundled(uri: str) -> Resource[Any]:
    """One of our schemas by its URN, read when it is first asked for; there is no other place to ask."""
    from referencing import Resource
    from referencing.exceptions import NoSuchResource

    name = uri.removeprefix("urn:mint2m:schema:").removesuffix(":v1")
    if uri != f"urn:mint2m:schema:{name}:v1" or name not in ("common", *names()):
        raise NoSuchResource(ref=uri)  # type: ignore[call-arg]  # its stubs
    return Resource.from_contents(json.loads(schema_text(name)))


def _escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def _shorten(message: str, limit: int = 200) -> str:
    return message if len(message) <= limit else message[: limit - 1] + "…"
