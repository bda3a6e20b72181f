"""`mint2m release check`: what stands between a checkout and a release. Every gate is computed from the commit.

The rule: a gate that could not be judged is not passed. What a later gate needs and an earlier one could not read is
told as not reached.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.bundle import ustar
from mint2m_verify.bundle.names import Names
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, Report, Standing, found
from mint2m_verify.findings import Check, Findings
from mint2m_verify.policy.versions import order_of
from mint2m_verify.promotion import Promoting, promotion
from mint2m_verify.release import layout
from mint2m_verify.release.git_source import Commit, check_clean, read_commit
from mint2m_verify.release.project import CONSTRAINTS, PYPROJECT, Pin, Project, read_pins, read_project
from mint2m_verify.runtime.lock import described, read_lock

CHANGELOG = "docs/changelog.md"
PACKAGE = "verify/mint2m_verify/__init__.py"
BUILD_TOOL = "hatchling"

_VECTOR = re.compile(r"tests/vectors/[^/]+/case\.json")
_SCHEMA = re.compile(r"schemas/[^/]+\.json")
_HEADING = re.compile(r"^## +(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A commit that can be released."""

    commit: Commit
    project: Project
    pins: tuple[Pin, ...]


def check_release(
    source: Path, version: str | None = None, promoting: Promoting | None = None, *, locks: tuple[Path, ...] = ()
) -> Report:
    """`mint2m release check`: all gates, one row each; then whether the release may be run on the cluster class.

    The latter stops no release: what may only be reviewed is released as that. `locks` are the runtime locks of
    images that are to go with it.
    """
    log = Findings()
    ready = check_gates(source, version, log)
    of_the_source = log.findings
    for lock in locks:
        log.judge(f"runtime lock {lock.name}", Standing.CHECKED, _locked(lock))
    chain = None if promoting is None else promoting.verified()
    gates = promotion(of_the_source, chain)
    return Report(
        subject=str(source),
        command="release check",
        requirements=(*log.requirements, *gates.requirements()),
        findings=log.findings,
        not_checked=("whether the tests pass: run them at this commit",),
        summary="" if ready is None else f"{ready.project.version} can be built from commit {ready.commit.name[:12]}",
    )


def check_gates(source: Path, version: str | None, log: Findings) -> Ready | None:
    """Judge all gates; what a build needs where all are passed, None where one is not.

    Args:
        source: the top of a git checkout.
        version: the version that the caller means to release; None takes the project's.
        log: takes the rows and findings.
    """
    try:
        commit = read_commit(source)
    except FindingError as fault:
        log.unreadable(PYPROJECT, (fault.finding,))
        log.not_reached("a clean git checkout", (str(source),))
        return None
    log.judge("a clean git checkout", Standing.CHECKED, _clean(commit))
    log.judge("files that a bundle can hold", Standing.CHECKED, _portable(commit))
    files = _read(commit)
    try:
        project = read_project(_present(files, PYPROJECT), file=PYPROJECT)
        pins = read_pins(_present(files, CONSTRAINTS), file=CONSTRAINTS)
    except FindingError as fault:
        log.unreadable(PYPROJECT, (fault.finding,))
        log.not_reached("one version, pinned dependencies, a licence", (PYPROJECT,))
        return None
    log.judge("one version everywhere", Standing.CHECKED, _version(project, files, version))
    log.judge("a changelog entry", Standing.CHECKED, _changelog(project, files))
    log.judge("every dependency pinned", Standing.CHECKED, _pinned(project, pins))
    log.judge("a licence", Standing.CHECKED, _licence(project, commit))
    log.judge("schemas under their names", Standing.CHECKED, _schemas(files))
    log.judge("verification vectors", Standing.CHECKED, _vectors(files))
    log.judge("the pinned build tool", Standing.CHECKED, _build_tool(pins))
    return None if log.findings else Ready(commit=commit, project=project, pins=pins)


def _locked(path: Path) -> Check:
    """A runtime lock in which every part is known; each that is not has its pointer."""
    lock, faults = read_lock(read_once(path.resolve(), name=str(path)), file=str(path))
    yield from faults
    return "no lock" if lock is None else described(lock)


def _read(commit: Commit) -> Mapping[str, bytes]:
    """What the gates look into."""
    fixed = {PYPROJECT, CONSTRAINTS, CHANGELOG, PACKAGE}
    wanted = [
        file.path
        for file in commit.files
        if file.path in fixed or _VECTOR.fullmatch(file.path) or _SCHEMA.fullmatch(file.path)
    ]
    return {file.path: content for file, content in commit.read(wanted)}


def _present(files: Mapping[str, bytes], path: str) -> bytes:
    if path not in files:
        raise FindingError(found("release.project-invalid", file=path, actual="not in the commit"))
    return files[path]


def _clean(commit: Commit) -> Check:
    yield from check_clean(commit.root)
    return f"commit {commit.name[:12]} of {commit.committed_at}"


def _portable(commit: Commit) -> Check:
    names = Names()
    for file in commit.files:
        if not file.regular:
            actual = {"120000": "a link", "160000": "a submodule"}.get(file.mode, f"mode {file.mode}")
            yield found("release.file-unportable", file=_shown(file.path), actual=actual)
            continue
        if _shown(file.path) != file.path:
            yield found("release.file-unportable", file=_shown(file.path), actual="not UTF-8")
            continue
        fault = names.add(file.path)
        if fault is not None:
            actual = fault.message if fault.actual is None else f"{fault.message}: {fault.actual}"
            yield found("release.file-unportable", file=_shown(file.path), actual=actual)
            continue
        yield from _header_faults(layout.SOURCE + file.path, file.size)
    if not commit.files:
        yield found("release.project-invalid", actual="a commit without files")
    return f"{len(commit.files)} files"


def _header_faults(path: str, size: int) -> Iterator[Finding]:
    try:
        ustar.header(ustar.Member(path=path, size=size, executable=False))
    except FindingError as fault:
        yield fault.finding


def _version(project: Project, files: Mapping[str, bytes], wanted: str | None) -> Check:
    version = project.version
    if order_of(version) is None:
        yield found(
            "release.version-inconsistent", file=PYPROJECT, expected="a version like 1.2.3 or 1.2.3rc1", actual=version
        )
    named = {PACKAGE: _package_version(files), CHANGELOG: next(iter(_HEADING.findall(_changelog_text(files))), None)}
    for file, actual in named.items():
        if actual != version:
            yield found("release.version-inconsistent", file=file, expected=version, actual=actual or "none")
    if wanted is not None and wanted != version:
        yield found("release.version-inconsistent", file=PYPROJECT, expected=f"--version {wanted}", actual=version)
    return version


def _package_version(files: Mapping[str, bytes]) -> str | None:
    """`__version__` as it is written down; the module is not run."""
    try:
        body = ast.parse(files.get(PACKAGE, b"")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what the parser makes of deep nesting
        return None
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str() as version)):
                return version
    return None


def _changelog_text(files: Mapping[str, bytes]) -> str:
    return files.get(CHANGELOG, b"").decode("utf-8", "replace")


def _changelog(project: Project, files: Mapping[str, bytes]) -> Check:
    parts = _HEADING.split(_changelog_text(files))
    entries = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = [line for line in entries.get(project.version, "").splitlines() if line.startswith("- ")]
    if not lines:
        yield found("release.changelog-empty", file=CHANGELOG, expected=f"## {project.version} and what changed")
    return f"{len(lines)} changes"


def _pinned(project: Project, pins: tuple[Pin, ...]) -> Check:
    known = {pin.name for pin in pins}
    for name in sorted({*project.required, *project.optional, *project.build} - known):
        yield found("release.unpinned", file=CONSTRAINTS, actual=name)
    return f"{len(pins)} pins"


def _licence(project: Project, commit: Commit) -> Check:
    paths = {file.path for file in commit.files}
    if project.licence is None or not project.licence_files:
        yield found("release.licence-missing", file=PYPROJECT, expected="project.license and project.license-files")
    for path in project.licence_files:
        if path not in paths:
            yield found("release.licence-missing", file=path, actual="not in the commit")
    return project.licence or "none"


def _schemas(files: Mapping[str, bytes]) -> Check:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    schemas = {path: raw for path, raw in files.items() if _SCHEMA.fullmatch(path)}
    if not schemas:
        yield found("release.schema-invalid", file="schemas", actual="no schema")
    for path, raw in sorted(schemas.items()):
        name, _, major = path.removeprefix("schemas/").removesuffix(".json").rpartition(".v")
        want = f"urn:mint2m:schema:{name}:v{major}"
        try:
            value = json.loads(raw)
            Draft202012Validator.check_schema(value)
        except (ValueError, RecursionError, SchemaError) as fault:
            yield found("release.schema-invalid", file=path, actual=str(fault).splitlines()[0][:200])
            continue
        have = value.get("$id") if isinstance(value, dict) else None
        if have != want:
            yield found("release.schema-invalid", file=path, pointer="/$id", expected=want, actual=str(have))
    return f"{len(schemas)} schemas"


def _vectors(files: Mapping[str, bytes]) -> Check:
    cases = {path: raw for path, raw in files.items() if _VECTOR.fullmatch(path)}
    if not cases:
        yield found("release.vectors-missing", file="tests/vectors", actual="no case")
    for path, raw in sorted(cases.items()):
        try:
            case = json.loads(raw)
        except (ValueError, RecursionError) as fault:
            yield found("release.vectors-missing", file=path, actual=str(fault))
            continue
        known = isinstance(case, dict) and isinstance(case.get("why"), str) and isinstance(case.get("exit"), int)
        if not known or not case["why"].strip():
            yield found("release.vectors-missing", file=path, expected="why and exit")
    return f"{len(cases)} cases"


def _build_tool(pins: tuple[Pin, ...]) -> Check:
    want = next((pin.version for pin in pins if pin.name == BUILD_TOOL), None)
    try:
        have = importlib.metadata.version(BUILD_TOOL)
    except importlib.metadata.PackageNotFoundError:
        have = "not installed"
    if want is None or have != want:
        yield found("release.build-tool", expected=f"{BUILD_TOOL} {want or 'pinned in ' + CONSTRAINTS}", actual=have)
    return f"{BUILD_TOOL} {have}"


def _shown(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
