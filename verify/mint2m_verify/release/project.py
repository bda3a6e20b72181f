"""What a source tree says of itself: pyproject.toml and constraints.txt, as far as a release depends on them.

The rule: both are read from bytes that the caller holds, the builder's from the commit and the verifier's from the
verified archive, by the same code. So SBOM and wheel are judged by what was signed as source.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mint2m_verify.finding import FindingError, found

#: The one distribution that releases are of.
PROJECT = "mint2m"

PYPROJECT = "pyproject.toml"
CONSTRAINTS = "constraints.txt"

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Pin:
    """A package of the lock, its name in the normal form of PEP 503."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """A directory or file of the source, and where it lies in the wheel."""

    source: str
    wheel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The project's description; requirements by their normal names, of `optional` those that only an extra needs."""

    version: str
    licence: str | None
    licence_files: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    build: tuple[str, ...]
    shipped: tuple[Shipped, ...]


def read_project(raw: bytes, *, file: str) -> Project:
    """pyproject.toml; raises `FindingError` (`release.project-invalid`)."""
    try:
        document = tomllib.loads(raw.decode("utf-8"))
        project = document["project"]
        version, required = project["version"], _names(project.get("dependencies", []))
        extras = [name for extra in project.get("optional-dependencies", {}).values() for name in _names(extra)]
        build = _names(document["build-system"]["requires"])
        if not isinstance(version, str) or normal_name(project["name"]) != PROJECT:
            raise FindingError(
                found("release.project-invalid", file=file, expected=f"project {PROJECT} with a version")
            )
        licence, files = project.get("license"), project.get("license-files", [])
        return Project(
            version=version,
            licence=licence if isinstance(licence, str) and licence else None,
            licence_files=tuple(map(str, files)),
            required=required,
            optional=tuple(sorted(set(extras) - set(required) - {PROJECT})),
            build=build,
            shipped=tuple(_shipped(document)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        actual = f"{type(fault).__name__}: {fault}"[:200]
        raise FindingError(found("release.project-invalid", file=file, actual=actual)) from fault


def read_pins(raw: bytes, *, file: str) -> tuple[Pin, ...]:
    """constraints.txt, sorted; `release.project-invalid` (`FindingError`) for a line that is not NAME==VERSION."""
    pins: set[Pin] = set()
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError as fault:
        raise FindingError(found("release.project-invalid", file=file, actual=str(fault))) from fault
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].strip()
        match = _PIN.fullmatch(words)
        if words and match is None:
            raise FindingError(
                found(
                    "release.project-invalid", file=file, expected=f"NAME==VERSION in line {number}", actual=words[:200]
                )
            )
        if match is not None:
            pins.add(Pin(name=normal_name(match[1]), version=match[2]))
    if len({pin.name for pin in pins}) != len(pins):
        raise FindingError(found("release.project-invalid", file=file, expected="one version for each name"))
    return tuple(sorted(pins))


def normal_name(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: list[str]) -> tuple[str, ...]:
    matches = (_REQUIREMENT.match(requirement) for requirement in requirements)
    return tuple(sorted({normal_name(match[1]) for match in matches if match is not None}))


def _shipped(document: Mapping[str, Any]) -> Iterator[Shipped]:
    """What hatchling puts into a wheel: each package under its last name, and what is included by force."""
    wheel = document.get("tool", {}).get("hatch", {}).get("build", {}).get("targets", {}).get("wheel", {})
    for package in wheel.get("packages", []):
        yield Shipped(source=package, wheel=package.rsplit("/", 1)[-1])
    for source, target in wheel.get("force-include", {}).items():
        yield Shipped(source=source, wheel=target)
