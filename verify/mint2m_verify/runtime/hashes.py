"""What pip says of the files that it would install: its report, or a requirements file with --hash.

The rule: a digest is taken from where pip computed or checked one, and a package without a digest keeps none. Anything
that could mean different packages on different machines (a marker, a range, a URL) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from mint2m_verify.canonical import JsonValue, parse
from mint2m_verify.documents.runtime import LockedWheel
from mint2m_verify.finding import FindingError, found
from mint2m_verify.release.project import normal_name

_PINNED = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)((?:\s+--hash=sha256:[0-9a-f]{64})*)"
)
_HASH = re.compile(r"[0-9a-f]{64}")

#: Options of a requirements file that say where pip looks and what it asks for, which decides nothing: the digest does.
_WHERE = frozenset(
    f"--{name}"
    for name in (
        "index-url",
        "extra-index-url",
        "find-links",
        "no-index",
        "trusted-host",
        "only-binary",
        "no-binary",
        "prefer-binary",
        "require-hashes",
    )
)


def read_hashes(raw: bytes, *, file: str) -> tuple[LockedWheel, ...]:
    """The packages that pip named, sorted; raises `FindingError` (`runtime-lock.hashes-invalid`)."""
    rows = _of_report(raw, file) if raw.lstrip().startswith(b"{") else _of_requirements(raw, file)
    return merged(rows, file=file)


def merged(rows: Iterable[LockedWheel], *, file: str) -> tuple[LockedWheel, ...]:
    """Each package once, with every digest that it was given; two versions of one are refused."""
    known: dict[str, LockedWheel] = {}
    for row in rows:
        other = known.get(row.name)
        if other is not None and other.version != row.version:
            raise _invalid(file, f"one version of {row.name}", f"{other.version} and {row.version}")
        digests = {*((other.sha256 or ()) if other is not None else ()), *(row.sha256 or ())}
        known[row.name] = LockedWheel(
            name=row.name, version=row.version, sha256=tuple(sorted(digests)) if digests else None
        )
    return tuple(known[name] for name in sorted(known))


def _of_requirements(raw: bytes, file: str) -> Iterator[LockedWheel]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise _invalid(file, "UTF-8", str(fault)) from fault
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in joined.splitlines():
        words = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not words or re.split(r"[\s=]", words)[0] in _WHERE:
            continue
        match = _PINNED.fullmatch(words)
        if match is None:
            raise _invalid(file, "NAME==VERSION --hash=sha256:…", words[:200])
        yield _wheel(match[1], match[2], _HASH.findall(match[3]))


def _of_report(raw: bytes, file: str) -> Iterator[LockedWheel]:
    document = parse(raw, file=file)
    items = document.get("install") if isinstance(document, dict) else None
    if not isinstance(items, list) or not items:
        raise _invalid(file, "a report of pip, with what it would install", "no `install`")
    for index, item in enumerate(items):
        name, version = (_at(item, "metadata", member) for member in ("name", "version"))
        if not isinstance(name, str) or not isinstance(version, str):
            raise _invalid(file, "name and version", f"/install/{index}/metadata")
        digest = _at(item, "download_info", "archive_info", "hashes", "sha256")
        yield _wheel(name, version, [digest] if isinstance(digest, str) and _HASH.fullmatch(digest) else [])


def _wheel(name: str, version: str, digests: list[str]) -> LockedWheel:
    return LockedWheel(name=normal_name(name), version=version, sha256=tuple(digests) or None)


def _at(value: JsonValue, *names: str) -> JsonValue:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _invalid(file: str, expected: str, actual: str) -> FindingError:
    return FindingError(found("runtime-lock.hashes-invalid", file=file, expected=expected, actual=actual))
