"""Every leaf of a release's documents, changed in every way and signed again: refused, or a claim that nothing binds.

The signature is the release's own each time, so what refuses a mutant is what the documents say, not that they were
changed. Without the key no byte can change at all: tests/verify/bundle/test_every_byte.py.
"""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m_verify.anchor import VerifyOptions
from mint2m_verify.bundle import BundleQuestion, verify_bundle
from mint2m_verify.canonical import canonical, sha256_hex
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.release.archive import Bundle, Part, assemble, write_archive
from mint2m_verify.release.project import Pin
from mint2m_verify.release.provenance import check_provenance
from mint2m_verify.release.sbom import check_sbom
from mint2m_verify.release.statement import release_statement
from mint2m_verify.statement import Subject

#: What a signer may say and nothing in the bundle contradicts, by document. A pointer that ends in `+` is a list with
#: its last entry once more, in `-` one without it, in `more` an object with an unknown member.
CLAIMS = {
    "release.json": {"/committed_at"},
    "provenance.intoto.json": {
        "/predicate/buildDefinition/buildType",
        "/predicate/buildDefinition/externalParameters/project",
        "/predicate/buildDefinition/internalParameters",
        "/predicate/buildDefinition/resolvedDependencies/1",
        "/predicate/buildDefinition/resolvedDependencies/+",
        "/predicate/buildDefinition/resolvedDependencies/-",
        "/predicate/runDetails",
    },
    # Of the SBOM only the packages, their versions and the wheel's digest are held against the source.
    "sbom.spdx.json": {"/SPDXID", "/creationInfo", "/dataLicense", "/documentNamespace", "/name", "/relationships"},
}

#: Members of a package in the SBOM that are somebody's word about it.
PACKAGE_CLAIMS = {
    "SPDXID",
    "copyrightText",
    "downloadLocation",
    "externalRefs",
    "filesAnalyzed",
    "licenseConcluded",
    "licenseDeclared",
    "packageFileName",
    "primaryPackagePurpose",
}


def mutants(document: Any) -> Iterator[tuple[str, Any]]:
    """(pointer, document with that place deleted, nulled, retyped, flipped, cut or extended)."""
    for pointer, path in places(document, "", ()):
        value = at(document, path)
        for suffix, change in changes(value):
            changed = copy.deepcopy(document)
            parent = at(changed, path[:-1])
            if change is DELETED:
                del parent[path[-1]]
            else:
                parent[path[-1]] = change
            yield pointer + suffix, changed


DELETED = object()


def places(value: Any, pointer: str, path: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if path:
        yield pointer, path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, f"{pointer}/{name}", (*path, name))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        document = document[name]
    return document


def changes(value: Any) -> Iterator[tuple[str, Any]]:
    """What else could stand in a place, and what is added to its pointer."""
    yield "", DELETED
    yield "", None if value is not None else False
    yield "", [value]
    match value:
        case bool():
            yield "", not value
        case int():
            yield from (("", other) for other in (value + 1, -1, str(value), value + 0.5, 2**53 - 1))
        case str() if value:
            flipped = chr(ord(value[0]) ^ 1) + value[1:]
            yield from (("", other) for other in (flipped, value[:-1], value + "x", "", 1))
        case list():
            yield from (("", []), ("/+", [*value, *value[-1:]]), ("/-", value[:-1]))
        case dict():
            yield from (("", {}), ("/more", {**value, "more": True}))


def claimed(name: str, pointer: str) -> bool:
    if any(pointer == claim or pointer.startswith(f"{claim}/") for claim in CLAIMS[name]):
        return True
    parts = pointer.split("/")
    if parts[-1] == "more":
        return name != "release.json"  # formats of others, which may grow
    return name == "sbom.spdx.json" and parts[1] == "packages" and len(parts) > 3 and parts[3] in PACKAGE_CLAIMS


def signed(bundle: Bundle, release: Any) -> bytes:
    made = io.BytesIO()
    write_archive(bundle, (release.signer.sign_statement(bundle.statement.payload),), made.write)
    return made.getvalue()


def parts_of(kit: ModuleType, release: Any) -> list[Part]:
    return [
        Part(
            path=entry.name,
            executable=entry.executable,
            size=len(entry.content),
            sha256=sha256_hex(entry.content),
            content=entry.content,
        )
        for entry in kit.entries_of(release.archive)[2:]
        if entry.name != "source/large.bin"  # nothing depends on it but the time that this takes
    ]


@pytest.fixture(scope="module")
def small(kit: ModuleType, release: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kit's release without its large file."""
    from dataclasses import replace

    from mint2m_verify.release.build import BuildRequest, build_release

    place = tmp_path_factory.mktemp("small")
    files = {name: raw for name, raw in kit.small_files().items() if name != "large.bin"}
    source = kit.small_source(place / "source", files)
    assert build_release(BuildRequest(source=source, output=place), (release.signer,)).verdict == 0
    return replace(release, archive=(place / kit.NAME).read_bytes(), source=source)


def verdict(raw: bytes, release: Any, place: Path) -> tuple[Verdict, list[str]]:
    place.write_bytes(raw)
    report = verify_bundle(BundleQuestion(archive=place), release.anchor, VerifyOptions())
    return report.verdict, [fault.id for fault in report.findings]


def test_a_changed_leaf_of_a_part_is_refused_or_a_documented_claim(kit: ModuleType, small: Any) -> None:
    contents = {entry.name: entry.content for entry in kit.entries_of(small.archive)}
    wheel = sha256_hex(contents[kit.WHEEL])
    pins = tuple(Pin(name=name, version=version) for name, version in sorted(kit.pins().items()))
    commit, tree = (kit.git(small.source, "rev-parse", name) for name in ("HEAD", "HEAD^{tree}"))
    checks = {
        "sbom.spdx.json": lambda raw: check_sbom(raw, pins, version=kit.VERSION, wheel_sha256=wheel),
        "provenance.intoto.json": lambda raw: check_provenance(
            raw, version=kit.VERSION, wheel_sha256=wheel, commit=commit, tree=tree
        ),
    }
    for name, check in checks.items():
        assert list(check(contents[name])) == []
        mutated = [
            (pointer, list(check(canonical(document)))) for pointer, document in mutants(json.loads(contents[name]))
        ]
        assert len(mutated) > 150
        assert all(fault.verdict is Verdict.FAILED for _, faults in mutated for fault in faults)
        accepted = {pointer for pointer, faults in mutated if not faults}
        assert sorted(pointer for pointer in accepted if not claimed(name, pointer)) == []
        assert accepted  # the lists above are about something


def test_a_changed_leaf_of_the_manifest_is_refused_or_a_documented_claim(
    kit: ModuleType, small: Any, tmp_path: Path
) -> None:
    manifest = json.loads(kit.entries_of(small.archive)[0].content)
    base = assemble(kit.VERSION, parts_of(kit, small), commit=manifest["commit"], committed_at=manifest["committed_at"])
    subjects = [subject for subject in base.statement.subjects if subject.name != "release.json"]
    accepted, count = set(), 0
    for pointer, changed in mutants(manifest):
        if re.match(r"/members/[3-9]", pointer):
            continue  # many of one kind
        try:
            raw = canonical(changed)
        except FindingError:
            continue  # a number that no document can hold
        statement = release_statement(kit.VERSION, [*subjects, Subject(name="release.json", sha256=sha256_hex(raw))])
        bundle = Bundle(parts=base.parts, manifest=raw, statement=statement)
        outcome, ids = verdict(signed(bundle, small), small, tmp_path / kit.NAME)
        assert outcome in (Verdict.ACCEPTED, Verdict.FAILED), (pointer, ids)
        count += 1
        if outcome is Verdict.ACCEPTED:
            accepted.add(pointer)
    assert count > 80
    assert accepted == CLAIMS["release.json"]


def test_a_changed_leaf_of_the_statement_is_refused(kit: ModuleType, small: Any, tmp_path: Path) -> None:
    manifest = json.loads(kit.entries_of(small.archive)[0].content)
    base = assemble(kit.VERSION, parts_of(kit, small), commit=manifest["commit"], committed_at=manifest["committed_at"])
    count = 0
    for pointer, changed in mutants(json.loads(base.statement.payload)):
        if re.match(r"/subject/[3-9]", pointer):
            continue  # many of one kind
        try:
            payload = canonical(changed)
        except FindingError:
            continue
        made = io.BytesIO()
        write_archive(base, (small.signer.sign_statement(payload),), made.write)
        outcome, ids = verdict(made.getvalue(), small, tmp_path / kit.NAME)
        assert outcome is Verdict.FAILED, (pointer, ids)
        count += 1
    assert count > 80
