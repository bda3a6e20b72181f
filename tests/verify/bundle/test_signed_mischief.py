"""What somebody who holds the release key could sign: it is refused all the same where it is no release.

Each case is the valid release with one change, and everything that binds it made again: sizes, digests, statement and
signature. So nothing is wrong but the change itself.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m_verify.anchor import VerifyOptions
from mint2m_verify.bundle import BundleQuestion, verify_bundle
from mint2m_verify.canonical import canonical, parse, sha256_hex
from mint2m_verify.finding import Report, Verdict
from mint2m_verify.release.archive import Bundle, Part, assemble, write_archive
from mint2m_verify.release.statement import release_statement
from mint2m_verify.statement import Subject

#: (kit, members by name) -> the members that are signed.
Change = Callable[[ModuleType, dict[str, Any]], None]

CASES: dict[str, tuple[str, Change]] = {}

COMMIT_TIME = "2026-01-31T12:00:00Z"


def case(name: str, id: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        CASES[name] = (id, change)
        return change

    return register


def added(title: str, id: str, *names: str) -> None:
    def change(kit: ModuleType, members: dict[str, Any]) -> None:
        for name in names:
            members[name] = kit.Entry(name=name, content=b"x")

    CASES[title] = (id, change)


def removed(title: str, name: str) -> None:
    CASES[title] = ("release.part-missing", lambda kit, members: members.pop(name))


added("absolute", "bundle.path-absolute", "/etc/cron.d/x")
added("above", "bundle.path-outside", "source/../../x")
added("not-composed", "bundle.path-invalid", "source/e\u0301")
added("git-directory", "bundle.path-invalid", "source/.git/config")
added("case-collision", "bundle.path-collision-case", "source/a.md", "source/A.md")
added("case-collision-after-folding", "bundle.path-collision-case", "source/strasse", "source/stra\u00dfe")
added("directory-collision", "bundle.path-collision-case", "receipts/one/a", "receipts/One/b")
added("file-and-directory", "bundle.path-conflict", "receipts/one", "receipts/one/a")
added("a-signature-as-a-member", "bundle.member-duplicate", "release.2.sigstore.json")
added("a-place-that-is-none", "release.member-unexpected", "extra/file")
added("a-second-wheel", "release.member-unexpected", "wheel/mint2m-9.9.9-py3-none-any.whl")
added("a-stray-file", "release.member-unexpected", "NOTES")
removed("no-wheel", "wheel/mint2m-1.2.3-py3-none-any.whl")
removed("no-sbom", "sbom.spdx.json")
removed("no-provenance", "provenance.intoto.json")
removed("no-pyproject", "source/pyproject.toml")
removed("no-lock", "source/constraints.txt")


def edited(title: str, id: str, name: str, old: bytes, new: bytes) -> None:
    def change(kit: ModuleType, members: dict[str, Any]) -> None:
        content = members[name].content
        assert old in content
        members[name] = kit.Entry(name=name, content=content.replace(old, new))

    CASES[title] = (id, change)


PYPROJECT, LOCK, SBOM, PROVENANCE = (
    "source/pyproject.toml",
    "source/constraints.txt",
    "sbom.spdx.json",
    "provenance.intoto.json",
)
edited("source-of-another-version", "release.version-mismatch", PYPROJECT, b'"1.2.3"', b'"1.2.4"')
edited("source-of-another-project", "release.source-invalid", PYPROJECT, b'"mint2m"', b'"other"')
edited("project-that-is-no-toml", "release.source-invalid", PYPROJECT, b"[project]", b"[project")
edited("lock-without-a-version", "release.source-invalid", LOCK, b"numpy==2.4.6", b"numpy>=2")
edited("lock-of-another-version", "release.sbom-invalid", LOCK, b"numpy==2.4.6", b"numpy==2.4.5")
edited("sbom-of-another-package", "release.sbom-invalid", SBOM, b'"name":"torch"', b'"name":"torches"')
edited("sbom-of-another-format", "release.sbom-invalid", SBOM, b"SPDX-2.3", b"SPDX-2.2")
edited("sbom-of-another-version", "release.version-mismatch", SBOM, b'"versionInfo":"1.2.3"', b'"versionInfo":"1.2.4"')
edited("sbom-that-is-no-json", "json.malformed", SBOM, b"{", b"[")
edited("provenance-of-another-source", "release.provenance-invalid", PROVENANCE, b'"gitTree":"', b'"gitTree":"0')
edited("provenance-of-another-commit", "release.provenance-invalid", PROVENANCE, b'"gitCommit":"', b'"gitCommit":"0')
edited("provenance-of-another-type", "release.provenance-invalid", PROVENANCE, b"provenance/v1", b"provenance/v2")
edited("source-changed-after-the-build", "release.wheel-differs", "source/mint2m/__init__.py", b"line", b"lime")
edited("changed-source-that-no-wheel-has", "release.provenance-invalid", "source/README.md", b"A", b"B")


def wheel(title: str, change: Callable[[dict[str, bytes]], None]) -> None:
    def forge(kit: ModuleType, members: dict[str, Any]) -> None:
        with zipfile.ZipFile(io.BytesIO(members[kit.WHEEL].content)) as old:
            files = {info.filename: old.read(info) for info in old.infolist()}
        change(files)
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
            for name, content in files.items():
                new.writestr(name, content)
        replace_wheel(kit, members, made.getvalue())

    CASES[title] = ("release.wheel-differs", forge)


def replace_wheel(kit: ModuleType, members: dict[str, Any], raw: bytes) -> None:
    """Another wheel, and SBOM and provenance made to name it."""
    old, new = sha256_hex(members[kit.WHEEL].content).encode(), sha256_hex(raw).encode()
    members[kit.WHEEL] = kit.Entry(name=kit.WHEEL, content=raw)
    for name in (SBOM, PROVENANCE):
        assert old in members[name].content
        members[name] = kit.Entry(name=name, content=members[name].content.replace(old, new))


wheel("module-that-only-the-wheel-has", lambda files: files.update({"mint2m/extra.py": b"import os\n"}))
wheel("path-file-in-the-wheel", lambda files: files.update({"evil.pth": b"import os\n"}))
wheel("script-in-the-wheel", lambda files: files.update({"mint2m-1.2.3.data/scripts/x": b"#!/bin/sh\n"}))
wheel("another-distribution-in-the-wheel", lambda files: files.update({"other-1.dist-info/METADATA": b""}))
wheel("module-changed-in-the-wheel", lambda files: files.update({"mint2m/__init__.py": b"import os\n"}))
wheel("module-missing-in-the-wheel", lambda files: files.pop("mint2m_verify/empty.py"))
wheel("schema-missing-in-the-wheel", lambda files: files.pop("mint2m_verify/schemas/thing.v1.json"))
wheel("licence-missing-in-the-wheel", lambda files: files.pop("mint2m-1.2.3.dist-info/licenses/LICENSE"))


@case("wheel-that-is-none", "release.wheel-differs")
def _(kit: ModuleType, members: dict[str, Any]) -> None:
    replace_wheel(kit, members, b"PK\x03\x04 no zip")


@case("wheel-with-a-name-twice", "release.wheel-differs")
@pytest.mark.filterwarnings("ignore:Duplicate name")
def _(kit: ModuleType, members: dict[str, Any]) -> None:
    made = io.BytesIO(members[kit.WHEEL].content)
    with zipfile.ZipFile(made, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("mint2m/__init__.py", b"import os\n")
    replace_wheel(kit, members, made.getvalue())


@case("wheel-that-unfolds", "release.wheel-differs")
def _(kit: ModuleType, members: dict[str, Any]) -> None:
    made = io.BytesIO(members[kit.WHEEL].content)
    with zipfile.ZipFile(io.BytesIO(members[kit.WHEEL].content)) as old:
        files = {info.filename: old.read(info) for info in old.infolist()}
    files["mint2m/__init__.py"] = bytes(32 << 20)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in files.items():
            new.writestr(name, content)
    replace_wheel(kit, members, made.getvalue())


def sealed(kit: ModuleType, release: Any, members: dict[str, Any]) -> Bundle:
    parts = [
        Part(
            path=entry.name,
            executable=entry.executable,
            size=len(entry.content),
            sha256=sha256_hex(entry.content),
            content=entry.content,
        )
        for entry in members.values()
    ]
    return assemble(kit.VERSION, parts, commit=commit_of(kit, release), committed_at=COMMIT_TIME)


def commit_of(kit: ModuleType, release: Any) -> str:
    return str(kit.git(release.source, "rev-parse", "HEAD"))


def members_of(kit: ModuleType, release: Any) -> dict[str, Any]:
    return {entry.name: entry for entry in kit.entries_of(release.archive)[2:]}


def verified(bundle: Bundle, release: Any, kit: ModuleType, tmp_path: Path, *, version: str | None = None) -> Report:
    """The report on a bundle signed by the release's own key; asserts that a refused one left nothing."""
    made = io.BytesIO()
    write_archive(bundle, (release.signer.sign_statement(bundle.statement.payload),), made.write)
    archive = tmp_path / kit.NAME.replace(kit.VERSION, version or kit.VERSION)
    archive.write_bytes(made.getvalue())
    question = BundleQuestion(archive=archive, verified_output=tmp_path / "out")
    report = verify_bundle(question, release.anchor, VerifyOptions())
    assert (tmp_path / "out").exists() == (report.verdict == 0)
    assert len(list(tmp_path.iterdir())) == 1 + (report.verdict == 0)
    return report


def test_the_release_taken_apart_and_put_together_is_the_release(kit: ModuleType, release: Any, tmp_path: Path) -> None:
    bundle = sealed(kit, release, members_of(kit, release))
    assert verified(bundle, release, kit, tmp_path).verdict is Verdict.ACCEPTED
    assert (tmp_path / kit.NAME).read_bytes() == release.archive


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_release_is_refused_though_its_key_signed_it(
    name: str, kit: ModuleType, release: Any, tmp_path: Path
) -> None:
    id, change = CASES[name]
    members = members_of(kit, release)
    change(kit, members)
    report = verified(sealed(kit, release, members), release, kit, tmp_path)
    assert report.roots[0].id == id, [(fault.id, fault.file, fault.actual) for fault in report.findings]
    assert report.verdict is Verdict.FAILED


def test_another_version_in_the_statement_does_not_fit_its_parts(kit: ModuleType, release: Any, tmp_path: Path) -> None:
    bundle = sealed(kit, release, members_of(kit, release))
    other = release_statement("1.2.4", bundle.statement.subjects)
    changed = Bundle(parts=bundle.parts, manifest=bundle.manifest, statement=other)
    report = verified(changed, release, kit, tmp_path, version="1.2.4")
    assert {fault.id for fault in report.findings} == {"release.member-unexpected", "release.part-missing"}


@pytest.mark.parametrize("kind", ["more", "fewer", "another-order"])
def test_manifest_and_statement_name_the_same_members(kind: str, kit: ModuleType, release: Any, tmp_path: Path) -> None:
    bundle = sealed(kit, release, members_of(kit, release))
    document = json.loads(bundle.manifest)
    if kind == "more":
        document["members"].append({"path": "source/zz", "size": 1, "executable": False})
    elif kind == "fewer":
        document["members"].pop()
    else:
        document["members"].reverse()
    manifest = canonical(document)
    subjects = [subject for subject in bundle.statement.subjects if subject.name != "release.json"]
    statement = release_statement(kit.VERSION, [*subjects, Subject(name="release.json", sha256=sha256_hex(manifest))])
    changed = Bundle(parts=bundle.parts, manifest=manifest, statement=statement)
    assert verified(changed, release, kit, tmp_path).roots[0].id == "release.members-differ"


STATEMENTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another-predicate-type": lambda s: s.update(predicateType="urn:mint2m:predicate:seal:v1"),
    "another-statement-type": lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
    "another-kind": lambda s: s["predicate"].update(kind="training"),
    "a-stage": lambda s: s["predicate"].update(stage="run"),
    "no-stage": lambda s: s["predicate"].pop("stage"),
    "more-in-the-predicate": lambda s: s["predicate"].update(passed=True),
    "more-beside-it": lambda s: s.update(passed=True),
    "no-version": lambda s: s["predicate"].pop("version"),
    "version-that-is-none": lambda s: s["predicate"].update(version="1.2"),
    "version-with-a-path": lambda s: s["predicate"].update(version="../1.2.3"),
    "version-that-is-a-number": lambda s: s["predicate"].update(version=1),
    "no-subject": lambda s: s.update(subject=[]),
    "subjects-that-are-no-list": lambda s: s.update(subject={"name": "x"}),
    "no-manifest": lambda s: s.update(subject=[x for x in s["subject"] if x["name"] != "release.json"]),
    "subject-twice": lambda s: s["subject"].insert(1, s["subject"][0]),
    "subjects-in-another-order": lambda s: s["subject"].reverse(),
    "digest-of-zeros": lambda s: s["subject"][0]["digest"].update(sha256="0" * 64),
    "digest-in-capitals": lambda s: s["subject"][0]["digest"].update(sha256="A" * 64),
    "a-second-digest": lambda s: s["subject"][0]["digest"].update(sha512="0" * 128),
    "subject-without-a-name": lambda s: s["subject"][0].pop("name"),
    "subject-that-is-a-text": lambda s: s["subject"].insert(0, "x"),
    "predicate-that-is-a-list": lambda s: s.update(predicate=[]),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_that_is_not_exactly_a_release_is_refused(
    name: str, kit: ModuleType, release: Any, tmp_path: Path
) -> None:
    bundle = sealed(kit, release, members_of(kit, release))
    document = parse(bundle.statement.payload, file="x")
    assert isinstance(document, dict)
    STATEMENTS[name](document)
    payload = canonical(document)
    made = io.BytesIO()
    write_archive(bundle, (release.signer.sign_statement(payload),), made.write)
    archive = tmp_path / kit.NAME
    archive.write_bytes(made.getvalue())
    report = verify_bundle(BundleQuestion(archive=archive), release.anchor, VerifyOptions())
    # What is no in-toto statement at all, the reader of signatures refuses already.
    reasons = {"release.statement-invalid", "sigstore.statement-invalid", "sigstore.statement-type"}
    assert report.roots[0].id in reasons
    assert report.verdict is Verdict.FAILED
    assert report.trust.signers == ()


def test_a_statement_in_another_spelling_is_refused(kit: ModuleType, release: Any, tmp_path: Path) -> None:
    bundle = sealed(kit, release, members_of(kit, release))
    spaced = json.dumps(json.loads(bundle.statement.payload), indent=1).encode()
    made = io.BytesIO()
    write_archive(bundle, (release.signer.sign_statement(spaced),), made.write)
    (tmp_path / kit.NAME).write_bytes(made.getvalue())
    report = verify_bundle(BundleQuestion(archive=tmp_path / kit.NAME), release.anchor, VerifyOptions())
    assert report.roots[0].id == "json.not-canonical"
