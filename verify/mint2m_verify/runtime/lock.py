"""The runtime lock: read, held against itself, against a class of hardware and against what a process really runs.

The rule: a lock counts only when every part of it is known. One that is written by hand, half filled in, is told so
member by member, and nothing is downloaded, built or started by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mint2m_verify import schema
from mint2m_verify.canonical import parse, sha256_hex
from mint2m_verify.documents.base import decode
from mint2m_verify.documents.inputs import HardwareClass, Package, RuntimeIdentity
from mint2m_verify.documents.runtime import Environment, RuntimeLock
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.runtime.digests import placeholders, without_placeholders
from mint2m_verify.runtime_identity import PACKAGES

#: The environment that each class of hardware runs.
ENVIRONMENTS: dict[HardwareClass, Environment] = {"reference-cpu": "cpu", "h20-4x8": "cuda13"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLock:
    """A lock, the SHA-256 of its file's bytes, and the file's name for findings."""

    document: RuntimeLock
    sha256: str
    file: str


def read_lock(raw: bytes, *, file: str) -> tuple[ReadLock | None, tuple[Finding, ...]]:
    """A lock and everything that is wrong with it by itself; None where not even its form holds.

    Findings: `runtime-lock.invalid`, `runtime-lock.placeholder-digest`, `runtime-lock.unresolved`.
    """
    try:
        value = parse(raw, file=file)
    except FindingError as stop:
        return None, (_invalid(stop.finding, file),)
    fillers = tuple(
        found("runtime-lock.placeholder-digest", file=file, pointer=pointer, actual=text)
        for pointer, text in placeholders(value)
    )
    value = without_placeholders(value)
    faults = schema.check(value, RuntimeLock.NAME, file=file)
    if faults or not isinstance(value, dict):
        return None, (*(_invalid(fault, file) for fault in faults), *fillers)
    document = decode(RuntimeLock, {name: member for name, member in value.items() if name != "schema"})
    lock = ReadLock(document=document, sha256=sha256_hex(raw), file=file)
    unknown = (found("runtime-lock.unresolved", file=file, pointer=pointer) for pointer in document.unresolved())
    return lock, (*fillers, *_repeated(document, file), *unknown)


def resolved(raw: bytes, *, file: str) -> ReadLock:
    """A lock in which every part is known; raises `FindingError` with the first fault otherwise."""
    lock, findings = read_lock(raw, file=file)
    for fault in findings:
        raise FindingError(fault)
    if lock is None:
        raise FindingError(found("runtime-lock.invalid", file=file))
    return lock


def _invalid(cause: Finding, file: str) -> Finding:
    actual = cause.actual if cause.id == "schema.invalid" else cause.message
    return found("runtime-lock.invalid", file=file, pointer=cause.pointer, expected=cause.expected, actual=actual)


def _repeated(lock: RuntimeLock, file: str) -> Iterator[Finding]:
    """A package in two versions is no lock."""
    for member, names in (
        ("wheels", [wheel.name for wheel in lock.wheels]),
        ("system_packages", [package.name for package in lock.system_packages]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                yield found("runtime-lock.invalid", file=file, pointer=f"/{member}", expected=f"{name} once")


def check_environment(lock: ReadLock, hardware_class: HardwareClass) -> Iterator[Finding]:
    """The lock is of the environment that this class of hardware runs."""
    want, have = ENVIRONMENTS[hardware_class], lock.document.environment
    if want != have:
        yield found(
            "runtime-lock.environment-mismatch", file=lock.file, pointer="/environment", expected=want, actual=have
        )


def check_identity(
    lock: ReadLock, identity: RuntimeIdentity, *, file: str, installed: Callable[[str], str | None] | None = None
) -> Iterator[Finding]:
    """Where what runs is not what was locked.

    Args:
        lock: the lock.
        identity: made where the code runs, as every rank makes its own.
        file: the name of the identity's file.
        installed: the version of a distribution where this is asked, to hold every locked wheel against; None
            compares only what the identity names.
    """
    python = lock.document.python
    if python is not None and python != identity.python:
        want = f"{python.implementation} {python.version}"
        have = f"{identity.python.implementation} {identity.python.version}"
        yield found("runtime-identity.not-locked", file=file, pointer="/python", expected=want, actual=have)
    locked = {wheel.name: wheel.version for wheel in lock.document.wheels}
    seen = {package.name: package.version for package in identity.packages}
    for index, package in enumerate(identity.packages):
        if locked.get(package.name) != package.version:
            yield found(
                "runtime-identity.not-locked",
                file=file,
                pointer=f"/packages/{index}",
                expected=f"{package.name} {locked.get(package.name, 'not in the lock')}",
                actual=f"{package.name} {package.version}",
            )
    if installed is None:
        # What an identity looks for and does not name was not there, or was not to be seen.
        for name in sorted(locked.keys() & set(PACKAGES) - seen.keys()):
            expected = f"{name} {locked[name]}"
            yield found("runtime-identity.not-locked", file=file, pointer="/packages", expected=expected, actual="none")
        return
    for name, version in locked.items():
        here = installed(name)
        if name not in seen and here != version:
            yield found(
                "runtime-identity.not-locked",
                file=file,
                expected=f"{name} {version}",
                actual=f"{name} {here or 'not installed'}",
            )


def not_locked(lock: ReadLock, installed: Iterable[Package], *, file: str) -> Iterator[Finding]:
    """What is installed where this is asked and stands in no wheel of the lock: it could take part in anything."""
    locked = {wheel.name for wheel in lock.document.wheels}
    for package in installed:
        if package.name not in locked:
            actual = f"{package.name} {package.version}"
            yield found("runtime-identity.not-locked", file=file, expected=f"{package.name} not there", actual=actual)


def requirements(lock: RuntimeLock) -> bytes:
    """The wheels as a file for `pip install --require-hashes -r`; every one must have its digests."""
    lines: list[str] = []
    for wheel in sorted(lock.wheels, key=lambda item: item.name):
        if wheel.sha256 is None:
            raise FindingError(found("runtime-lock.unresolved", pointer="/wheels", actual=wheel.name))
        lines += [" \\\n    ".join((f"{wheel.name}=={wheel.version}", *(f"--hash=sha256:{h}" for h in wheel.sha256)))]
    return ("\n".join(lines) + "\n").encode("utf-8")


def described(lock: ReadLock) -> str:
    """A lock in a few words."""
    return f"{lock.document.name}, {lock.document.environment}, {len(lock.document.wheels)} wheels, {lock.sha256}"
