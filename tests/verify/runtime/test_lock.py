"""A lock says by itself what it lacks, and nothing in it is invented."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from mint2m.__main__ import run as command_line
from mint2m_verify.documents.inputs import Package
from mint2m_verify.documents.runtime import Drivers, LockedWheel, RuntimeLock, SystemPackage
from mint2m_verify.finding import FindingError
from mint2m_verify.runtime.hashes import read_hashes
from mint2m_verify.runtime.lock import (
    check_environment,
    check_identity,
    not_locked,
    read_lock,
    requirements,
    resolved,
)
from mint2m_verify.runtime_identity import installed_packages, observe

_SPEC = importlib.util.spec_from_file_location("mint2m_test_papers_of_locks", Path(__file__).with_name("papers_kit.py"))
assert _SPEC is not None and _SPEC.loader is not None
kit = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = kit  # dataclasses look their own module up
_SPEC.loader.exec_module(kit)  # test modules do not import each other
digest, lock_of_this = kit.digest, kit.lock_of_this

ROOT = Path(__file__).resolve().parents[3]


def faults(value: Any) -> list[tuple[str, str | None]]:
    return [(fault.id, fault.pointer) for fault in read_lock(json.dumps(value).encode(), file="lock")[1]]


def value(edit: Callable[[Any], object] = lambda lock: None, *, lock: RuntimeLock | None = None) -> Any:
    document = json.loads((lock or lock_of_this()).encode())
    edit(document)
    return document


def test_a_lock_in_which_every_part_is_known_has_no_faults() -> None:
    assert faults(value()) == []


CHANGES: Mapping[str, tuple[Callable[[Any], object], list[tuple[str, str | None]]]] = {
    "base image": (lambda d: d.update(base_image=None), [("runtime-lock.unresolved", "/base_image")]),
    "container file": (lambda d: d.update(container_file=None), [("runtime-lock.unresolved", "/container_file")]),
    "python": (lambda d: d.update(python=None), [("runtime-lock.unresolved", "/python")]),
    "a wheel": (lambda d: d["wheels"][2].update(sha256=None), [("runtime-lock.unresolved", "/wheels/2/sha256")]),
    "a Debian package": (
        lambda d: d.update(system_packages=[{"name": "libc6", "version": None, "sha256": None}]),
        [
            ("runtime-lock.unresolved", "/system_packages/0/version"),
            ("runtime-lock.unresolved", "/system_packages/0/sha256"),
        ],
    ),
    "zeros": (
        lambda d: d["base_image"].update(digest=f"sha256:{'0' * 64}"),
        [("runtime-lock.placeholder-digest", "/base_image/digest")],
    ),
    "one character": (
        lambda d: d["wheels"][0].update(sha256=["a" * 64]),
        [("runtime-lock.placeholder-digest", "/wheels/0/sha256/0")],
    ),
    "eight characters": (
        lambda d: d["wheels"][0].update(sha256=["deadbeef" * 8]),
        [("runtime-lock.placeholder-digest", "/wheels/0/sha256/0")],
    ),
    "no digests": (lambda d: d["wheels"][0].update(sha256=[]), [("runtime-lock.invalid", "/wheels/0/sha256")]),
    "no wheels": (lambda d: d.update(wheels=[]), [("runtime-lock.invalid", "/wheels")]),
    "a wheel twice": (lambda d: d["wheels"].append(d["wheels"][0]), [("runtime-lock.invalid", "/wheels")]),
    "a name as people write it": (
        lambda d: d["wheels"][0].update(name="Jinja2_x"),
        [("runtime-lock.invalid", "/wheels/0/name")],
    ),
    "drivers of a CPU": (
        lambda d: d.update(drivers={"cuda_driver_minimum": "580.65", "nccl": "2.28"}),
        [("runtime-lock.invalid", "/drivers")],
    ),
    "an unknown member": (lambda d: d.update(approved=True), [("runtime-lock.invalid", "")]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_fault_has_its_finding_and_its_place(name: str) -> None:
    edit, expected = CHANGES[name]
    assert faults(value(edit)) == expected


def test_a_cuda_lock_needs_its_drivers() -> None:
    cuda = replace(lock_of_this(), environment="cuda13")
    assert faults(value(lock=cuda)) == [("runtime-lock.unresolved", "/drivers")]
    half = replace(cuda, drivers=Drivers(cuda_driver_minimum=None, nccl="2.28.3"))
    assert faults(value(lock=half)) == [("runtime-lock.unresolved", "/drivers/cuda_driver_minimum")]
    whole = replace(cuda, drivers=Drivers(cuda_driver_minimum="580.65.06", nccl="2.28.3"))
    assert faults(value(lock=whole)) == []


def test_bytes_that_are_no_json_are_one_finding() -> None:
    lock, findings = read_lock(b'{"a": 1, "a": 2}', file="lock")
    assert lock is None and [fault.id for fault in findings] == ["runtime-lock.invalid"]


def test_each_class_of_hardware_runs_one_environment() -> None:
    lock = resolved(lock_of_this().encode(), file="lock")
    assert list(check_environment(lock, "reference-cpu")) == []
    assert [fault.id for fault in check_environment(lock, "h20-4x8")] == ["runtime-lock.environment-mismatch"]


def test_what_is_installed_beside_the_lock_is_named_and_the_installers_are_not() -> None:
    lock = resolved(lock_of_this().encode(), file="lock")
    wheels = [Package(name=wheel.name, version=wheel.version) for wheel in lock.document.wheels]
    assert list(not_locked(lock, wheels, file="identity")) == []
    beside = Package(name="sitecustomized", version="1")
    (fault,) = not_locked(lock, [*wheels, beside], file="identity")
    assert (fault.id, fault.expected, fault.actual) == (
        "runtime-identity.not-locked",
        "sitecustomized not there",
        "sitecustomized 1",
    )
    here = {package.name for package in installed_packages()}
    assert {"numpy", "jsonschema", "mint2m"} <= here
    assert not here & {"pip", "setuptools", "wheel"}


def test_what_is_installed_must_be_what_is_locked() -> None:
    identity = observe(image_digest=None)
    lock = lock_of_this()

    def differing(changed: RuntimeLock, **options: Any) -> list[str | None]:
        read = resolved(changed.encode(), file="lock")
        return [fault.actual for fault in check_identity(read, identity, file="identity", **options)]

    assert differing(lock) == []
    first = lock.wheels[0]
    older = replace(lock, wheels=(replace(first, version="0.0.1"), *lock.wheels[1:]))
    assert differing(older) == [f"{first.name} {first.version}"]
    assert differing(replace(lock, wheels=lock.wheels[1:])) == [f"{first.name} {first.version}"]
    # An identity that leaves out what it looks for agrees with no lock that has it.
    identity, whole = replace(identity, packages=identity.packages[1:]), identity
    assert differing(lock) == ["none"]
    identity = whole
    assert lock.python is not None
    other = replace(lock, python=replace(lock.python, version="3.11.0"))
    assert differing(other) == [f"CPython {identity.python.version}"]
    # A package that the identity does not look at is asked for by itself.
    more = replace(lock, wheels=(*lock.wheels, LockedWheel(name="tuf", version="7.0.1", sha256=(digest("tuf"),))))
    assert differing(more, installed={"tuf": "7.0.1"}.get) == []
    assert differing(more, installed={"tuf": "7.0.2"}.get) == ["tuf 7.0.2"]
    assert differing(more, installed={}.get) == ["tuf not installed"]


def test_pip_reads_the_requirements_as_they_were_locked() -> None:
    lock = replace(
        lock_of_this(),
        wheels=(
            LockedWheel(name="torch", version="2.13.0+cpu", sha256=(digest("one"), digest("two"))),
            LockedWheel(name="rfc8785", version="0.1.4", sha256=(digest("three"),)),
        ),
    )
    made = requirements(lock)
    parsed = {str(Requirement(line.split(" \\")[0])) for line in made.decode().splitlines() if "==" in line}
    assert parsed == {"torch==2.13.0+cpu", "rfc8785==0.1.4"}
    # The reader of pip's files, which takes the file back, is checked against pip itself below.
    assert {wheel.name: set(wheel.sha256 or ()) for wheel in read_hashes(made, file="r")} == {
        wheel.name: set(wheel.sha256 or ()) for wheel in lock.wheels
    }


def test_pip_installs_what_was_locked_and_refuses_another_file(tmp_path: Path) -> None:
    wheel = tmp_path / "tiny_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_thing.py", "")
        archive.writestr("tiny_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        archive.writestr(
            "tiny_thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_thing-1.0.dist-info/RECORD", "")
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def installs(sha256: str) -> bool:
        lock = replace(lock_of_this(), wheels=(LockedWheel(name="tiny-thing", version="1.0", sha256=(sha256,)),))
        (tmp_path / "requirements.txt").write_bytes(requirements(lock))
        words = ["--isolated", "install", "--no-index", "--find-links", str(tmp_path), "--require-hashes", "--no-deps"]
        words += ["--target", str(tmp_path / sha256[:4]), "-r", str(tmp_path / "requirements.txt")]
        return subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, check=False).returncode == 0

    assert installs(right)
    assert not installs(digest("another file"))


REPORT = {
    "version": "1",
    "install": [
        {
            "metadata": {"name": "Jinja2", "version": "3.1.6"},
            "download_info": {"url": "https://example.org/j.whl", "archive_info": {"hashes": {"sha256": digest("j")}}},
        },
        {"metadata": {"name": "mint2m", "version": "0.1.0"}, "download_info": {"url": "file:///w", "dir_info": {}}},
    ],
}


def test_a_report_of_pip_gives_digests_where_it_has_them_and_no_others() -> None:
    wheels = read_hashes(json.dumps(REPORT).encode(), file="report")
    assert [(wheel.name, wheel.sha256) for wheel in wheels] == [("jinja2", (digest("j"),)), ("mint2m", None)]


@pytest.mark.parametrize(
    "text",
    [
        "jinja2>=3.1",
        "jinja2==3.1.6 ; python_version > '3' --hash=sha256:" + "ab" * 32,
        "jinja2 @ https://example.org/j.whl",
        "jinja2==3.1.6 --hash=md5:" + "ab" * 16,
        "-r other.txt",
        "jinja2==3.1.6\n--requirement other.txt",
        "jinja2==3.1.6\n--editable=.",
        "jinja2==3.1.6\njinja2==3.1.5",
        '{"install": []}',
        '{"install": [{"metadata": {"name": "x"}}]}',
    ],
)
def test_what_could_be_another_package_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(FindingError) as caught:
        read_hashes(text.encode(), file="r")
    assert caught.value.finding.id == "runtime-lock.hashes-invalid"


def command(*words: str) -> tuple[int, Any]:
    outcome = command_line(["release", *words, "--format", "json"])
    return int(outcome.verdict), json.loads(outcome.text)


def test_without_hashes_every_pin_is_there_and_none_is_known(tmp_path: Path) -> None:
    output = tmp_path / "lock.json"
    code, report = command(
        "lock", "--environment", "cuda13", "--source", str(ROOT), "--output", str(output), "--nccl", "2.28.3"
    )
    assert code == 0 and "/base_image" in str(report["requirements"])
    document = json.loads(output.read_bytes())
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    assert len(document["wheels"]) == len(pins) + 1  # and mint2m itself
    assert {wheel["sha256"] for wheel in document["wheels"]} == {None}
    assert document["drivers"] == {"cuda_driver_minimum": None, "nccl": "2.28.3"}
    for name, more in (("requirements", ()), ("sbom", ())):
        code, report = command(name, "--lock", str(output), "--output", str(tmp_path / name), *more)
        assert (code, report["findings"][0]["id"]) == (2, "runtime-lock.unresolved")
        assert not (tmp_path / name).exists()
    code, report = command("check", "--source", str(ROOT), "--lock", str(output))
    pointers = {item["pointer"] for item in report["findings"] if item["id"] == "runtime-lock.unresolved"}
    assert {"/base_image", "/python", "/wheels/0/sha256", "/drivers/cuda_driver_minimum"} <= pointers
    assert "/drivers/nccl" not in pointers


def test_what_pip_resolved_must_be_what_is_pinned(tmp_path: Path) -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    hashes = tmp_path / "hashes.txt"

    def made(lines: list[str]) -> tuple[int, Any]:
        hashes.write_text("\n".join(lines))
        words = ("lock", "--environment", "cpu", "--source", str(ROOT), "--hashes", str(hashes))
        return command(*words, "--output", str(tmp_path / "lock.json"))

    hashed = [f"{pin} --hash=sha256:{digest(pin)}" for pin in pins]
    local = [line.replace("torch==2.13.0 ", "torch==2.13.0+cpu ") for line in hashed]
    assert local != hashed
    assert made(local)[0] == 0
    other = [line.replace("torch==2.13.0 ", "torch==2.12.0 ") for line in hashed]
    assert [item["id"] for item in made(other)[1]["findings"]] == ["runtime-lock.pin-differs"]
    without = [line for line in hashed if not line.startswith("ray==")]
    code, report = made(without)
    assert (code, report["findings"][0]["id"]) == (2, "runtime-lock.pin-differs")


def test_a_template_digest_on_the_command_line_is_refused(tmp_path: Path) -> None:
    words = ("lock", "--environment", "cpu", "--source", str(ROOT), "--output", str(tmp_path / "lock.json"))
    code, report = command(*words, "--base-image", f"python@sha256:{'ab' * 32}")
    assert (code, report["findings"][0]["id"]) == (2, "image.placeholder-digest")
    code, report = command(*words, "--base-image", "python:3.11-slim")
    assert (code, report["findings"][0]["id"]) == (2, "usage.invalid")
    assert list(tmp_path.iterdir()) == []


def test_a_debian_package_is_a_part_like_any_other() -> None:
    package = SystemPackage(name="libnuma1", version="2.0.18-1", sha256=digest("numa"))
    assert faults(value(lock=replace(lock_of_this(), system_packages=(package,)))) == []
