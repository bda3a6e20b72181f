"""What this machine must have: packages, disk, memory, a writable place and a key. Metadata only, nothing imported."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.deployment_files import Gathered
from mint2m_verify.deployment_parts import Check
from mint2m_verify.documents.inputs import Deployment
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.runtime_identity import installed_version
from mint2m_verify.signing import load_private_key

#: Switches the training backend off, so that a refusal can be rehearsed.
DISABLE_BACKEND = "MINT2M_DISABLE_BACKEND"

#: Room beside what the run writes: documents, journal, temporary names of files being written.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """A distribution of the trainer extra: its import name and the versions it may have, [least, below)."""

    distribution: str
    module: str
    least: tuple[int, ...]
    below: tuple[int, ...] | None


#: The trainer extra of pyproject.toml; a test compares the two.
TRAINER_PACKAGES = (
    Needed(distribution="torch", module="torch", least=(2, 8), below=None),
    Needed(distribution="megatron-core", module="megatron", least=(0, 16, 1), below=(0, 17)),
    Needed(distribution="ray", module="ray", least=(2, 40), below=None),
    Needed(distribution="psutil", module="psutil", least=(5, 9), below=None),
    Needed(distribution="numba", module="numba", least=(0, 60), below=None),
)


def backend_fault() -> Finding | None:
    """Why the direct Megatron backend is not available here, or None where it is."""
    if os.environ.get(DISABLE_BACKEND, "0") not in ("", "0"):
        return found("backend.unavailable", actual=f"{DISABLE_BACKEND}={os.environ[DISABLE_BACKEND]}")
    missing = _missing()
    return found("backend.unavailable", actual=f"not installed: {', '.join(missing)}") if missing else None


def require_trainer() -> None:
    """Refuse a command that needs the trainer extra where it is not installed; raises `tool.extra-missing`."""
    missing = _missing()
    if missing:
        raise FindingError(found("tool.extra-missing", actual=f"not installed: {', '.join(missing)}"))


def _missing() -> list[str]:
    return [
        need.distribution
        for need in TRAINER_PACKAGES
        if installed_version(need.distribution) is None or importlib.util.find_spec(need.module) is None
    ]


def platform_checks() -> tuple[Check, ...]:
    """Ranks are told apart by /proc start ticks and signalled by pidfd; only Linux has both."""
    system = platform.system()
    if system != "Linux" or not Path("/proc/self/stat").exists() or not hasattr(os, "pidfd_open"):
        return (Check(name="platform", findings=(found("platform.unsupported", expected="Linux", actual=system),)),)
    return (Check(name="platform", actual=f"{system} {platform.machine()}"),)


def package_checks() -> tuple[Check, ...]:
    """The trainer extra, package by package, and whether the backend is switched off."""
    checks = [_package(need) for need in TRAINER_PACKAGES]
    if os.environ.get(DISABLE_BACKEND, "0") not in ("", "0"):
        fault = found("backend.unavailable", actual=f"{DISABLE_BACKEND}={os.environ[DISABLE_BACKEND]}")
        return (*checks, Check(name="backend", findings=(fault,)))
    return (*checks, Check(name="backend", actual="direct Megatron"))


def _package(need: Needed) -> Check:
    version = installed_version(need.distribution)
    if version is None or importlib.util.find_spec(need.module) is None:
        return Check(name=need.distribution, findings=(found(f"{need.distribution}.package-missing"),))
    numbers = release(version)
    if numbers < need.least or (need.below is not None and numbers >= need.below):
        fault = found(f"{need.distribution}.package-version", expected=_range(need), actual=version)
        return Check(name=need.distribution, findings=(fault,))
    return Check(name=need.distribution, actual=version)


def release(version: str) -> tuple[int, ...]:
    """The release numbers of a PEP 440 version; a local suffix such as `+cpu` does not count."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _range(need: Needed) -> str:
    least = ".".join(map(str, need.least))
    return f">={least}" + (f",<{'.'.join(map(str, need.below))}" if need.below else "")


def local_checks(gathered: Gathered, path: Path, output: Path | None) -> tuple[Check, ...]:
    """Place, space, memory and key for a deployment that could be read."""
    deployment = gathered.deployment
    if deployment is None:
        return ()
    place = output if output is not None else path.parent / deployment.output_root
    checks = [_output(deployment, place), _memory(gathered, deployment), _signer(deployment, path)]
    if not checks[0].findings:
        checks.insert(1, _space(gathered, place))
    return tuple(checks)


def _output(deployment: Deployment, place: Path) -> Check:
    """The directory, or the nearest one above it that exists, can be written."""
    base = _existing(place)
    if not base.is_dir() or not os.access(base, os.W_OK | os.X_OK):
        fault = found("output.unwritable", file=str(place), pointer="/output_root", actual=f"{base} is not writable")
        return Check(name="output", findings=(fault,))
    if deployment.hardware_class != "reference-cpu" and (checkout := _checkout_above(base)) is not None:
        fault = found("output.inside-checkout", file=str(place), pointer="/output_root", actual=str(checkout))
        return Check(name="output", findings=(fault,))
    return Check(name="output", actual="writable")


def _existing(place: Path) -> Path:
    absolute = place.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def _checkout_above(base: Path) -> Path | None:
    return next(
        (path for path in (base, *base.parents) if (path / "pyproject.toml").exists() and (path / "schemas").is_dir()),
        None,
    )


def _space(gathered: Gathered, place: Path) -> Check:
    free = shutil.disk_usage(_existing(place)).free
    needed = _SPARE_BYTES
    if gathered.inputs is not None:
        # Adapter before and after, gradient, moments and checkpoint are each a small multiple of the LoRA weights.
        lora = sum(item.bytes for item in gathered.inputs.memory if item.category == "lora")
        files = gathered.inputs.fixture_bytes
        needed += 10 * lora * gathered.inputs.profile.topology.world_size + len(files.payload) + len(files.rollout)
    if free < needed:
        fault = found("output.space", file=str(place), expected=f"{needed} bytes free", actual=f"{free} bytes")
        return Check(name="space", findings=(fault,))
    return Check(name="space", actual="enough")


def _memory(gathered: Gathered, deployment: Deployment) -> Check:
    inputs = gathered.inputs
    if inputs is None:
        return Check(name="machine-memory", actual="not planned")
    needed = sum(item.bytes for item in inputs.memory)
    return memory_check(deployment, inputs.profile.topology.world_size, needed)


def memory_check(deployment: Deployment, ranks: int, rank_bytes: int) -> Check:
    """On a local deployment all ranks share this machine, so their sum must fit what is available."""
    if deployment.ray_address != "local":
        return Check(name="machine-memory", actual="not this machine's")
    needed, available = ranks * rank_bytes, available_bytes()
    if available is not None and needed > available:
        fault = found(
            "memory.does-not-fit", expected=f"{needed} bytes for {ranks} ranks", actual=f"{available} bytes available"
        )
        return Check(name="machine-memory", findings=(fault,))
    return Check(name="machine-memory", actual="enough")


def available_bytes() -> int | None:
    """MemAvailable of /proc/meminfo in bytes; None where there is no such file."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _signer(deployment: Deployment, path: Path) -> Check:
    if deployment.signer.kind == "ephemeral" or deployment.signer.path is None:
        return Check(name="signer", actual="a key made for the run")
    try:
        load_private_key(path.parent / deployment.signer.path)
    except FindingError as fault:
        inner = fault.finding
        actual = inner.message if inner.actual is None else f"{inner.message}: {inner.actual}"
        refused = found("signer.unusable", file=inner.file, pointer="/signer/path", actual=actual)
        return Check(name="signer", findings=(refused,))
    return Check(name="signer", actual="a key that can sign")
