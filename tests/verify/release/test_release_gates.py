"""`mint2m release check`: each gate is computed from the commit, and each one can fail."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m.__main__ import run as command_line
from mint2m_verify import schema
from mint2m_verify.finding import Standing, Verdict
from mint2m_verify.release.gates import check_release

#: (kit, files) -> nothing; the files of a project that is not ready.
Change = Callable[[dict[str, bytes]], object]


def replaced(path: str, old: bytes, new: bytes) -> Change:
    def change(files: dict[str, bytes]) -> None:
        assert old in files[path]
        files[path] = files[path].replace(old, new)

    return change


CASES: dict[str, tuple[str, Change]] = {
    "package-of-another-version": (
        "release.version-inconsistent",
        replaced("verify/mint2m_verify/__init__.py", b"1.2.3", b"1.2.2"),
    ),
    "package-without-a-version": (
        "release.version-inconsistent",
        replaced("verify/mint2m_verify/__init__.py", b"__version__", b"version"),
    ),
    "package-that-is-no-python": (
        "release.version-inconsistent",
        replaced("verify/mint2m_verify/__init__.py", b'Verification."""', b"Verification"),
    ),
    "newest-entry-of-another-version": (
        "release.version-inconsistent",
        replaced("docs/changelog.md", b"## 1.2.3", b"## 1.2.4\n\n- x\n\n## 1.2.3"),
    ),
    "version-of-another-form": ("release.version-inconsistent", replaced("pyproject.toml", b"1.2.3", b"1.2.3.dev1")),
    "no-changelog": ("release.version-inconsistent", lambda files: files.pop("docs/changelog.md")),
    "nothing-changed": ("release.changelog-empty", replaced("docs/changelog.md", b"- something", b"")),
    "dependency-without-a-pin": ("release.unpinned", replaced("constraints.txt", b"numpy==2.4.6\n", b"")),
    "extra-without-a-pin": ("release.unpinned", replaced("constraints.txt", b"\ntorch==2.13.0", b"")),
    "lock-with-a-range": ("release.project-invalid", replaced("constraints.txt", b"numpy==", b"numpy>=")),
    "lock-with-two-versions": (
        "release.project-invalid",
        replaced("constraints.txt", b"numpy==", b"NumPy==1\nnumpy=="),
    ),
    "no-lock": ("release.project-invalid", lambda files: files.pop("constraints.txt")),
    "no-project": ("release.project-invalid", lambda files: files.pop("pyproject.toml")),
    "project-that-is-no-toml": ("release.project-invalid", replaced("pyproject.toml", b"[project]", b"[project")),
    "project-of-many-levels": (
        "release.project-invalid",
        replaced("pyproject.toml", b"[project]", b"x = " + b"[" * 9999),
    ),
    "project-with-a-number-of-many-digits": (
        "release.project-invalid",
        replaced("pyproject.toml", b"[project]", b"x = " + b"9" * 9999),
    ),
    "schema-of-many-levels": ("release.schema-invalid", replaced("schemas/thing.v1.json", b"{", b"[" * 99999)),
    "project-of-another-name": ("release.project-invalid", replaced("pyproject.toml", b'"mint2m"\n', b'"x"\n')),
    "dependencies-that-are-numbers": ("release.project-invalid", replaced("pyproject.toml", b'["numpy>=1"]', b"[1]")),
    "licence-without-a-name": ("release.licence-missing", replaced("pyproject.toml", b'license = "Apache-2.0"', b"")),
    "licence-without-a-file": ("release.licence-missing", lambda files: files.pop("LICENSE")),
    "schema-under-another-name": ("release.schema-invalid", replaced("schemas/thing.v1.json", b":v1", b":v2")),
    "schema-that-is-none": ("release.schema-invalid", replaced("schemas/thing.v1.json", b'"object"', b'"thing"')),
    "schema-that-is-no-json": ("release.schema-invalid", replaced("schemas/thing.v1.json", b"{", b"[")),
    "no-schema": ("release.schema-invalid", lambda files: files.pop("schemas/thing.v1.json")),
    "no-vector": ("release.vectors-missing", lambda files: files.pop("tests/vectors/one/case.json")),
    "vector-without-a-reason": (
        "release.vectors-missing",
        replaced("tests/vectors/one/case.json", b"a reason", b" "),
    ),
    "vector-that-is-no-json": ("release.vectors-missing", replaced("tests/vectors/one/case.json", b"{", b"[")),
    "build-tool-of-another-version": (
        "release.build-tool",
        replaced("constraints.txt", b"hatchling==", b"hatchling==0."),
    ),
    "names-that-differ-in-case": ("release.file-unportable", lambda files: files.update({"readme.MD": b""})),
    "name-with-a-backslash": ("release.file-unportable", lambda files: files.update({"a\\b": b""})),
    "name-not-composed": ("release.file-unportable", lambda files: files.update({"e\u0301": b""})),
    "name-too-long": ("release.path-too-long", lambda files: files.update({"a" * 101: b""})),
}


def judged(kit: ModuleType, source: Path, **options: Any) -> tuple[Verdict, set[str]]:
    report = check_release(source, **options)
    assert schema.check(json.loads(json.dumps(report.document())), "report", file="report") == ()
    return report.verdict, {fault.id for fault in report.findings}


def test_a_ready_checkout_passes_every_gate(kit: ModuleType, tmp_path: Path) -> None:
    report = check_release(kit.small_source(tmp_path))
    promoting = [row for row in report.requirements if row.required.startswith("h20-4x8: ")]
    own = [row for row in report.requirements if row not in promoting]
    assert (report.verdict, len(own)) == (Verdict.ACCEPTED, 9)
    assert {row.standing for row in own} == {Standing.CHECKED}
    # Being released is not being runnable on the cluster class, which nothing here shows.
    assert (promoting[-1].found, promoting[-1].standing) == ("review_only_not_runnable", Standing.UNVERIFIABLE)
    assert judged(kit, tmp_path, version="1.2.3") == (Verdict.ACCEPTED, set())


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_ready_is_blocked_for_its_own_reason(name: str, kit: ModuleType, tmp_path: Path) -> None:
    id, change = CASES[name]
    files = kit.small_files()
    change(files)
    verdict, ids = judged(kit, kit.small_source(tmp_path, files))
    assert (verdict, id in ids) == (Verdict.BLOCKED, True), ids


def test_another_version_than_was_meant_is_blocked(kit: ModuleType, tmp_path: Path) -> None:
    source = kit.small_source(tmp_path)
    assert judged(kit, source, version="1.3.0") == (Verdict.BLOCKED, {"release.version-inconsistent"})


@pytest.mark.parametrize("kind", ["changed", "added", "removed", "staged", "mode"])
def test_a_change_that_is_not_committed_is_named(kind: str, kit: ModuleType, tmp_path: Path) -> None:
    source = kit.small_source(tmp_path)
    match kind:
        case "changed":
            (source / "README.md").write_bytes(b"another\n")
        case "added":
            (source / "new").mkdir()
            (source / "new/file").write_bytes(b"")
        case "removed":
            (source / "README.md").unlink()
        case "staged":
            (source / "README.md").write_bytes(b"another\n")
            kit.git(source, "add", "README.md")
        case "mode":
            (source / "README.md").chmod(0o755)
    report = check_release(source)
    assert [(fault.id, fault.file) for fault in report.findings] == [
        ("release.dirty", "new/file" if kind == "added" else "README.md")
    ]


def test_links_and_submodules_have_no_place_in_a_release(kit: ModuleType, tmp_path: Path) -> None:
    source = kit.small_source(tmp_path / "source")
    (source / "link").symlink_to("README.md")
    kit.git(source, "add", "link")
    head = kit.git(source, "rev-parse", "HEAD")
    kit.git(source, "update-index", "--add", "--cacheinfo", f"160000,{head},module")
    kit.commit(source)
    report = check_release(source)
    found = {fault.file: fault.actual for fault in report.findings if fault.id == "release.file-unportable"}
    assert found == {"link": "a link", "module": "a submodule"}


def test_a_name_that_is_no_text_has_no_place_in_a_release(kit: ModuleType, tmp_path: Path) -> None:
    source = kit.small_source(tmp_path / "source")
    Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9")).write_bytes(b"x")
    kit.git(source, "add", "-A")
    kit.commit(source)
    report = check_release(source)
    assert [(fault.id, fault.file, fault.actual) for fault in report.findings] == [
        ("release.file-unportable", "caf\\xe9", "not UTF-8")
    ]


@pytest.mark.parametrize("kind", ["no-repository", "below-the-top", "no-commit", "absent"])
def test_what_is_no_checkout_is_blocked(kind: str, kit: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "place"
    match kind:
        case "no-repository":
            place.mkdir()
        case "below-the-top":
            place = kit.small_source(place) / "docs"
        case "no-commit":
            place.mkdir()
            kit.git(place, "init", "-q")
    report = check_release(place)
    assert (report.verdict, [fault.id for fault in report.findings]) == (Verdict.BLOCKED, ["release.not-a-checkout"])
    assert all(row.standing is not Standing.CHECKED for row in report.requirements)


def test_without_git_nothing_can_be_released(kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kit.small_source(tmp_path / "source")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert judged(kit, source) == (Verdict.BLOCKED, {"release.not-a-checkout"})


def test_no_variable_points_git_at_another_repository(
    kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = kit.small_source(tmp_path / "source"), kit.small_source(tmp_path / "other", {"x": b""})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert judged(kit, source) == (Verdict.ACCEPTED, set())


def test_a_file_that_git_was_told_to_overlook_is_released_as_committed(
    kit: ModuleType, release: Any, tmp_path: Path
) -> None:
    """`assume-unchanged` hides a change from git status; what is released is the commit's all the same."""
    from mint2m_verify.release.git_source import read_commit

    source = kit.small_source(tmp_path)
    kit.git(source, "update-index", "--assume-unchanged", "README.md")
    (source / "README.md").write_bytes(b"hidden change\n")
    assert judged(kit, source) == (Verdict.ACCEPTED, set())
    ((_, content),) = read_commit(source).read(["README.md"])
    assert content == b"# A project\n"


def test_the_command_says_what_is_ready_and_what_is_not(kit: ModuleType, tmp_path: Path) -> None:
    source = kit.small_source(tmp_path / "source")
    ready = command_line(["release", "check", "--source", str(source)])
    assert (int(ready.verdict), ready.text.split()[0]) == (0, "ACCEPTED")
    shutil.rmtree(source / ".git")
    blocked = command_line(["release", "check", "--source", str(source), "--format", "json"])
    assert (int(blocked.verdict), json.loads(blocked.text)["findings"][0]["id"]) == (2, "release.not-a-checkout")
