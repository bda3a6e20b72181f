"""`mint2m release lock | requirements | sbom | image-provenance`: the papers of an image, made from what is at hand.

The rule: nothing is fetched and nothing is guessed. A digest comes from pip's own words or from the file's bytes; what
nobody gave is written as null, and the lock then says so itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.doctor.machine import TRAINER_PACKAGES
from mint2m_verify.documents.inputs import Image, Python
from mint2m_verify.documents.runtime import Drivers, Environment, LockedWheel, NamedDigest, RuntimeLock
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.release.project import (
    CONSTRAINTS,
    PROJECT,
    PYPROJECT,
    Pin,
    Project,
    normal_name,
    read_pins,
    read_project,
)
from mint2m_verify.runtime.digests import is_placeholder
from mint2m_verify.runtime.hashes import merged, read_hashes
from mint2m_verify.runtime.lock import ReadLock, described, read_lock, requirements, resolved
from mint2m_verify.runtime.provenance import make_provenance
from mint2m_verify.runtime.sbom import make_sbom
from mint2m_verify.source import observed_sha256

_IMAGE = re.compile(r"([^@\s]+)@(sha256:[0-9a-f]{64})")
_WHEEL = re.compile(r"([A-Za-z0-9_.]+)-([A-Za-z0-9_.!+]+)(?:-[0-9][^-]*)?-[^-]+-[^-]+-[^-]+\.whl")

#: A wheel of torch with its CUDA libraries is larger than any document.
_WHEEL_LIMIT = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """What the operator knows; None, and what is in none of the files, is not known.

    Args:
        source: the top of a checkout, for its pins, version and direct requirements.
        hashes: files of pip's, each a report or requirements with digests; without any, every pin is there by version.
        wheels: files that are at hand, among them mint2m's own.
    """

    environment: Environment
    source: Path
    hashes: tuple[Path, ...] = ()
    wheels: tuple[Path, ...] = ()
    base_image: str | None = None
    container_file: Path | None = None
    python: str | None = None
    cuda_driver: str | None = None
    nccl: str | None = None


def make_lock(request: LockRequest) -> RuntimeLock:
    """The lock; raises `FindingError` (`runtime-lock.*`, `release.project-invalid`, `usage.invalid`)."""
    if request.environment == "cpu" and (request.cuda_driver or request.nccl):
        raise FindingError(found("usage.invalid", expected="--cuda-driver, --nccl with --environment cuda13"))
    project = read_project(_bytes(request.source / PYPROJECT), file=PYPROJECT)
    pins = read_pins(_bytes(request.source / CONSTRAINTS), file=CONSTRAINTS)
    wheels = _wheels(request, project, pins)
    for fault in _against_pins(wheels, project, pins):
        raise FindingError(fault)
    return RuntimeLock(
        name=f"{PROJECT}-{request.environment}",
        environment=request.environment,
        base_image=None if request.base_image is None else image_argument(request.base_image, "--base-image"),
        container_file=None if request.container_file is None else _named(request.container_file),
        python=None if request.python is None else Python(implementation="CPython", version=request.python),
        wheels=wheels,
        system_packages=(),
        drivers=None
        if request.environment == "cpu"
        else Drivers(cuda_driver_minimum=request.cuda_driver, nccl=request.nccl),
    )


def write_lock(request: LockRequest, output: Path) -> Report:
    """`release lock`: write it, and say what in it is not known."""
    raw = make_lock(request).encode()
    lock, faults = read_lock(raw, file=str(output))
    for fault in faults:
        if lock is None or fault.id != "runtime-lock.unresolved":
            raise FindingError(fault)
    if lock is None:
        raise FindingError(found("runtime-lock.invalid", file=str(output)))
    write_atomic(output, raw)
    return _report("lock", output, described(lock), _known(tuple(fault.pointer or "" for fault in faults)))


def write_requirements(lock: Path, output: Path) -> Report:
    """`release requirements`: the wheels of a lock, for `pip install --require-hashes -r`."""
    read = _resolved(lock)
    write_atomic(output, requirements(read.document))
    return _report("requirements", output, described(read))


def write_sbom(lock: Path, output: Path) -> Report:
    """`release sbom`: the SBOM of a lock."""
    read = _resolved(lock)
    raw = make_sbom(read)
    write_atomic(output, raw)
    return _report("sbom", output, f"{len(read.document.wheels)} wheels, {sha256_hex(raw)}")


def write_provenance(image: str, lock: Path, container_file: Path, sbom: Path, output: Path) -> Report:
    """`release image-provenance`: an image, and the papers that it was built from."""
    read = _resolved(lock)
    raw = make_provenance(
        image_argument(image, "--image"),
        read,
        container_file=_bytes(container_file),
        sbom=_bytes(sbom),
        source_sha256=observed_sha256(),
    )
    write_atomic(output, raw)
    return _report("image-provenance", output, f"{image}, {sha256_hex(raw)}")


def image_argument(text: str, option: str) -> Image:
    """NAME@sha256:HEX of a command line; raises `FindingError` (`usage.invalid`, `image.placeholder-digest`)."""
    match = _IMAGE.fullmatch(text)
    if match is None:
        raise FindingError(found("usage.invalid", expected=f"{option} NAME@sha256:<64 hex>", actual=text))
    if is_placeholder(match[2]):
        raise FindingError(found("image.placeholder-digest", actual=match[2]))
    return Image(name=match[1], digest=match[2])


def _wheels(request: LockRequest, project: Project, pins: tuple[Pin, ...]) -> tuple[LockedWheel, ...]:
    """Every package of the environment, mint2m itself among them."""
    rows = [wheel for path in request.hashes for wheel in read_hashes(_bytes(path), file=str(path))]
    if not request.hashes:
        rows = [LockedWheel(name=pin.name, version=pin.version, sha256=None) for pin in pins]
    rows += [_at_hand(path) for path in request.wheels]
    if all(row.name != PROJECT for row in rows):
        rows.append(LockedWheel(name=PROJECT, version=project.version, sha256=None))
    return merged(rows, file=", ".join(str(path) for path in (*request.hashes, *request.wheels)) or CONSTRAINTS)


def _at_hand(path: Path) -> LockedWheel:
    match = _WHEEL.fullmatch(path.name)
    if match is None:
        raise FindingError(found("usage.invalid", expected="--wheel NAME-VERSION-….whl", actual=path.name))
    digest = sha256_hex(read_once(path.resolve(), name=str(path), limit=_WHEEL_LIMIT))
    return LockedWheel(name=normal_name(match[1]), version=match[2], sha256=(digest,))


def _against_pins(wheels: tuple[LockedWheel, ...], project: Project, pins: tuple[Pin, ...]) -> Iterator[Finding]:
    """Where pip resolved something else than the project tests; a local label such as `+cpu` is of the same version."""
    pinned = {pin.name: pin.version for pin in pins} | {PROJECT: project.version}
    locked = {wheel.name: wheel.version for wheel in wheels}
    for name in sorted(locked.keys() & pinned.keys()):
        if locked[name] not in (pinned[name], f"{pinned[name]}+{locked[name].partition('+')[2]}"):
            yield _pin(name, pinned[name], locked[name])
    for name in sorted({*project.required, *(need.distribution for need in TRAINER_PACKAGES)} - locked.keys()):
        yield _pin(name, pinned.get(name, "any version"), "not there")


def _pin(name: str, expected: str, actual: str) -> Finding:
    return found("runtime-lock.pin-differs", file=CONSTRAINTS, expected=f"{name} {expected}", actual=actual)


def _named(path: Path) -> NamedDigest:
    return NamedDigest(name=path.name, sha256=sha256_hex(_bytes(path)))


def _bytes(path: Path) -> bytes:
    return read_once(path.resolve(), name=str(path))


def _resolved(lock: Path) -> ReadLock:
    return resolved(_bytes(lock), file=str(lock))


def _known(pointers: tuple[str, ...]) -> Requirement:
    """A row that says which parts are null; a lock may be written so, and runs nothing then."""
    shown = ", ".join(pointers[:4]) + (f" and {len(pointers) - 4} more" if len(pointers) > 4 else "")
    return Requirement(
        required="every part is known",
        found=f"not known: {shown}" if pointers else "all of them",
        standing=Standing.UNVERIFIABLE if pointers else Standing.CHECKED,
    )


def _report(command: str, output: Path, words: str, *rows: Requirement) -> Report:
    made = Requirement(required=f"written to {output}", found=words, standing=Standing.CHECKED)
    return Report(
        subject=str(output),
        command=f"release {command}",
        requirements=(made, *rows),
        not_checked=("whether an image was built from it, and whether it holds nothing else",),
    )
