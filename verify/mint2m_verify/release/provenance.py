"""Where a wheel came from: an in-toto Statement v1 with a SLSA provenance v1 predicate.

The rule: its subjects can be computed again from the bundle, the wheel by its SHA-256 and the source by its git tree;
the rest is the builder's word, which the release's signature binds. Format: slsa.dev/spec/v1.0/provenance.
"""

from __future__ import annotations

from collections.abc import Iterator

from mint2m_verify.canonical import JsonValue, canonical, parse
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.release import layout
from mint2m_verify.release.project import PROJECT
from mint2m_verify.statement import STATEMENT_TYPE

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"

#: What `release build` does: hatchling's wheel of the commit's files, SOURCE_DATE_EPOCH the commit's time.
BUILD_TYPE = "urn:mint2m:build:hatchling-wheel:v1"

#: A build on somebody's machine, without a service that would vouch for it.
BUILDER = "urn:mint2m:builder:local"


def make_provenance(*, version: str, wheel_sha256: str, commit: str, tree: str, hatchling: str) -> bytes:
    """The statement's bytes, RFC 8785; `commit` and `tree` are git's names, `hatchling` is a version."""
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": list(_subjects(version, wheel_sha256, tree)),
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {"project": PROJECT, "version": version},
                    "internalParameters": {},
                    "resolvedDependencies": [
                        {"name": layout.SOURCE, "digest": {"gitCommit": commit, "gitTree": tree}},
                        {"name": "hatchling", "uri": f"pkg:pypi/hatchling@{hatchling}"},
                    ],
                },
                "runDetails": {"builder": {"id": BUILDER}},
            },
        }
    )


def check_provenance(raw: bytes, *, version: str, wheel_sha256: str, commit: str, tree: str) -> Iterator[Finding]:
    """Where a provenance statement is not about this wheel, commit and source."""
    try:
        document = parse(raw, file=layout.PROVENANCE)
    except FindingError as fault:
        yield fault.finding
        return
    members = document if isinstance(document, dict) else {}
    for name, want in (
        ("_type", STATEMENT_TYPE),
        ("predicateType", PREDICATE_TYPE),
        ("subject", list(_subjects(version, wheel_sha256, tree))),
    ):
        if members.get(name) != want:
            yield _invalid(f"/{name}", str(want), str(members.get(name)))
    materials = _at(members, "predicate", "buildDefinition", "resolvedDependencies")
    source: JsonValue = {"name": layout.SOURCE, "digest": {"gitCommit": commit, "gitTree": tree}}
    if not isinstance(materials, list) or source not in materials:
        yield _invalid("/predicate/buildDefinition/resolvedDependencies", str(source), None)
    have = _at(members, "predicate", "buildDefinition", "externalParameters", "version")
    if have != version:
        yield found("release.version-mismatch", file=layout.PROVENANCE, expected=version, actual=repr(have))


def _subjects(version: str, wheel_sha256: str, tree: str) -> Iterator[JsonValue]:
    yield {"name": layout.SOURCE, "digest": {"gitTree": tree}}
    yield {"name": layout.wheel_name(version), "digest": {"sha256": wheel_sha256}}


def _at(value: JsonValue, *names: str) -> JsonValue:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _invalid(pointer: str, expected: str, actual: str | None) -> Finding:
    shown = None if actual is None else actual[:300]
    return found("release.provenance-invalid", file=layout.PROVENANCE, pointer=pointer, expected=expected, actual=shown)
