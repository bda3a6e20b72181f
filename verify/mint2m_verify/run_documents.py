"""The documents of one run, each parsed from the bytes that were hashed.

The rule: a document that breaks its format is reported with all its faults and then treated as absent; the checks that
need it are not reached, and the others still run. Nothing is parsed from a second look at a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from mint2m_verify import layout, schema
from mint2m_verify.canonical import JsonValue, parse, sha256_hex
from mint2m_verify.documents import (
    Deployment,
    Doctor,
    Document,
    FileManifest,
    FileRef,
    ModelManifest,
    OwnershipEvent,
    Plan,
    RankSessions,
    Rollout,
    RunProfile,
    RuntimeIdentity,
    Scores,
    TrainingFixture,
    TrainingPayload,
    TrainingReceipt,
)
from mint2m_verify.documents.base import decode
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Findings
from mint2m_verify.walk import ReadFile

#: Faults of a journal's lines that are told.
_MOST_FAULTS = 100

D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Generic[D]):
    """A document beside what it was read from; `value` is its JSON as it stood."""

    path: str
    sha256: str
    size: int
    raw: bytes
    value: dict[str, JsonValue]
    document: D


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One event of the journal and the digest of its line."""

    sha256: str
    event: OwnershipEvent


class RunDocuments:
    """The documents at hand. Each getter gives None for one that is missing or malformed: that has been reported."""

    def __init__(self, files: Mapping[str, ReadFile], log: Findings) -> None:
        self._files = files
        self._log = log
        self._read: dict[str, Read[Document]] = {}
        for path, kind in layout.DOCUMENTS.items():
            file = files.get(path)
            if file is not None and file.raw is not None:
                self._parse(kind, file.raw, file)
        self.journal = self._parse_journal()

    def raw(self, path: str) -> bytes | None:
        """The bytes of a kept file, if it is there."""
        file = self._files.get(path)
        return None if file is None else file.raw

    def ref(self, path: str) -> FileRef | None:
        """What a reference to the file at hand must say."""
        file = self._files.get(path)
        if file is None:
            return None
        return FileRef(path=path, sha256=file.entry.sha256, size=file.entry.size)

    @property
    def doctor(self) -> Read[Doctor] | None:
        return self._get(layout.DOCTOR, Doctor)

    @property
    def plan(self) -> Read[Plan] | None:
        return self._get(layout.PLAN, Plan)

    @property
    def receipt(self) -> Read[TrainingReceipt] | None:
        return self._get(layout.RECEIPT, TrainingReceipt)

    @property
    def sessions(self) -> Read[RankSessions] | None:
        return self._get(layout.RANK_SESSIONS, RankSessions)

    @property
    def scores(self) -> Read[Scores] | None:
        return self._get(layout.SCORES, Scores)

    @property
    def deployment(self) -> Read[Deployment] | None:
        return self._get(layout.DEPLOYMENT, Deployment)

    @property
    def profile(self) -> Read[RunProfile] | None:
        return self._get(layout.PROFILE, RunProfile)

    @property
    def fixture(self) -> Read[TrainingFixture] | None:
        return self._get(layout.FIXTURE, TrainingFixture)

    @property
    def payload(self) -> Read[TrainingPayload] | None:
        return self._get(layout.PAYLOAD, TrainingPayload)

    @property
    def rollout(self) -> Read[Rollout] | None:
        return self._get(layout.ROLLOUT, Rollout)

    @property
    def model_manifest(self) -> Read[ModelManifest] | None:
        return self._get(layout.MODEL_MANIFEST, ModelManifest)

    @property
    def runtime_identity(self) -> Read[RuntimeIdentity] | None:
        return self._get(layout.RUNTIME_IDENTITY, RuntimeIdentity)

    def manifest(self, path: str) -> Read[FileManifest] | None:
        """A tree's manifest, of whichever kind the layout gives its place."""
        return self._get(path, FileManifest)

    def _get(self, path: str, kind: type[D]) -> Read[D] | None:
        read = self._read.get(path)
        if read is None or not isinstance(read.document, kind):
            return None
        return Read(
            path=read.path,
            sha256=read.sha256,
            size=read.size,
            raw=read.raw,
            value=read.value,
            document=read.document,
        )

    def _parse(self, kind: type[Document], raw: bytes, file: ReadFile) -> None:
        value, faults = read_value(kind, raw, file=file.path, canonical_form=file.path not in layout.WRITTEN_BY_PEOPLE)
        if value is None:
            self._log.unreadable(file.path, faults)
            return
        self._read[file.path] = Read(
            path=file.path,
            sha256=file.entry.sha256,
            size=file.entry.size,
            raw=raw,
            value=value,
            document=decode(kind, value),
        )

    def _parse_journal(self) -> tuple[JournalLine, ...] | None:
        raw = self.raw(layout.OWNERSHIP)
        if raw is None:
            return None
        lines, faults = read_journal(raw, file=layout.OWNERSHIP)
        if faults:
            self._log.unreadable(layout.OWNERSHIP, faults)
            return None
        return lines


def read_value(
    kind: type[Document], raw: bytes, *, file: str, canonical_form: bool
) -> tuple[dict[str, JsonValue] | None, tuple[Finding, ...]]:
    """The JSON value of a document that keeps its schema, or all its faults."""
    try:
        value = parse(raw, file=file, canonical_form=canonical_form)
    except FindingError as fault:
        return None, (fault.finding,)
    faults = schema.check(value, kind.NAME, file=file)
    if faults or not isinstance(value, dict):
        return None, faults
    return value, ()


def read_journal(raw: bytes, *, file: str) -> tuple[tuple[JournalLine, ...], tuple[Finding, ...]]:
    """The events of a journal, each line its own RFC 8785 form and ended by a newline; or all faults of its lines."""
    if not raw.endswith(b"\n"):
        return (), (found("journal.cut", file=file, actual=f"{len(raw)} bytes"),)
    lines: list[JournalLine] = []
    faults: list[Finding] = []
    for number, line in enumerate(raw[:-1].split(b"\n")):
        if len(faults) >= _MOST_FAULTS:
            break  # a file of line feeds is a fault a byte
        value, wrong = read_value(OwnershipEvent, line, file=file, canonical_form=True)
        if value is None:
            faults += [_at_line(fault, number) for fault in wrong]
        else:
            lines.append(JournalLine(sha256=sha256_hex(line), event=decode(OwnershipEvent, value)))
    return tuple(lines), tuple(faults)


def _at_line(fault: Finding, number: int) -> Finding:
    return replace(fault, pointer=f"line {number + 1}{fault.pointer or ''}")
