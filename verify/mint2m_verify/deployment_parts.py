"""What the checks of a deployment share: the parts read so far, one row per thing looked at, and the operator's words.

The rule: a fault in the operator's own input blocks and never fails, whichever reader found it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from mint2m_verify.canonical import JsonValue
from mint2m_verify.documents.base import Document, decode
from mint2m_verify.documents.inputs import Deployment, RunProfile, RuntimeIdentity
from mint2m_verify.documents.manifests import ModelManifest
from mint2m_verify.documents.plan import MemoryItem
from mint2m_verify.finding import Finding, Verdict, found
from mint2m_verify.fixture import CheckedFixture, FixtureBytes
from mint2m_verify.runtime.lock import ReadLock

D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at: `name` says what, `actual` what was found, and `findings` what is wrong with it."""

    name: str
    actual: str | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(slots=True)
class Parts:
    """What was read so far; a part stays None where it failed. `of_a_stage`: of a promotion run, under its plan."""

    path: Path
    of_a_stage: bool = False
    checks: list[Check] = field(default_factory=list)
    deployment: Deployment | None = None
    deployment_raw: bytes = b""
    profile: RunProfile | None = None
    profile_raw: bytes = b""
    manifest: ModelManifest | None = None
    fixture: CheckedFixture | None = None
    fixture_bytes: FixtureBytes | None = None
    identity: RuntimeIdentity | None = None
    memory: tuple[MemoryItem, ...] | None = None
    adapter_sha256: str | None = None
    lock: ReadLock | None = None
    sbom_sha256: str | None = None

    def near(self, operator_path: str) -> Path:
        """An operator's path, resolved against the deployment's directory."""
        return self.path.parent / operator_path

    def record(self, name: str, *findings: Finding, actual: str | None = None) -> None:
        self.checks.append(Check(name=name, actual=None if findings else actual, findings=findings))


def decode_document(kind: type[D], value: JsonValue) -> D:
    if not isinstance(value, dict):
        raise TypeError(f"schema {kind.NAME} accepted a value that is no object")
    return decode(kind, {name: member for name, member in value.items() if name != "schema"})


def because(id: str, cause: Finding, *, pointer: str | None = None) -> Finding:
    """The operator's fault `id`, with the words of the finding that showed it."""
    actual = cause.message if cause.actual is None else f"{cause.message}: {cause.actual}"
    if cause.id == "schema.invalid" and cause.actual is not None:
        actual = cause.actual  # that a schema was broken is what `id` says already
    return found(
        id,
        file=cause.file,
        pointer=cause.pointer if cause.pointer is not None else pointer,
        expected=cause.expected,
        actual=actual,
    )


def blocking(finding: Finding) -> Finding:
    """A finding about evidence, met in the operator's own input: it blocks, nothing has failed."""
    return replace(finding, verdict=Verdict.BLOCKED)
