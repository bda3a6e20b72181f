"""One stage's bundle as it lies in an evidence directory, each part read from the bytes that were hashed.

The rule: a part that cannot be read is told once, with all its faults, and is then absent; checks that need it are not
reached and the others still run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from mint2m_verify.anchor import Anchor
from mint2m_verify.chain.places import PLACES, StagePlaces
from mint2m_verify.chain.statements import parse_stage
from mint2m_verify.chain.vouching import Signed, read_signed
from mint2m_verify.documents.base import Document, FileRef, decode
from mint2m_verify.documents.validation import (
    LogProof,
    StageArtifacts,
    StageName,
    StageRanks,
    StageRecord,
    StageValidation,
)
from mint2m_verify.finding import FindingError, found
from mint2m_verify.findings import Findings
from mint2m_verify.run_documents import read_value
from mint2m_verify.statement import SealStatement
from mint2m_verify.walk import ReadFile

D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What could be read of one stage; None where a part is missing or malformed, which has been told."""

    places: StagePlaces
    record: StageRecord | None
    ranks: StageRanks | None
    artifacts: StageArtifacts | None
    validation: StageValidation | None
    proof: LogProof | None
    signed: Signed | None
    seal: SealStatement | None

    @property
    def stage(self) -> StageName:
        return self.places.stage


def is_present(stage: StageName, files: Mapping[str, ReadFile]) -> bool:
    """Whether anything of the stage lies there."""
    places = PLACES[stage]
    own = (*places.bundle, places.seal, places.proof)
    return any(path in files for path in own) or any(path.startswith(places.tree) for path in files)


def read_stage(stage: StageName, files: Mapping[str, ReadFile], log: Findings, anchor: Anchor) -> Bundle:
    """Read the stage's parts; what is wrong with their form goes to `log`."""
    places = PLACES[stage]
    signed, seal = _seal(places, files, log, anchor)
    return Bundle(
        places=places,
        record=_read(StageRecord, places.record, files, log),
        ranks=_read(StageRanks, places.ranks, files, log),
        artifacts=_read(StageArtifacts, places.artifacts, files, log),
        validation=_read(StageValidation, places.validation, files, log),
        proof=_read(LogProof, places.proof, files, log),
        signed=signed,
        seal=seal,
    )


def reference(path: str, files: Mapping[str, ReadFile]) -> FileRef | None:
    """What a reference to the file at hand must say."""
    file = files.get(path)
    return None if file is None else FileRef(path=path, sha256=file.entry.sha256, size=file.entry.size)


def _seal(
    places: StagePlaces, files: Mapping[str, ReadFile], log: Findings, anchor: Anchor
) -> tuple[Signed | None, SealStatement | None]:
    raw = None if places.seal not in files else files[places.seal].raw
    if raw is None:
        if places.seal not in files:
            log.unreadable(places.seal, [found("chain.seal-missing", stage=places.stage, file=places.seal)])
        return None, None
    try:
        signed = read_signed(raw, file=places.seal, anchor=anchor)
        return signed, parse_stage(signed.payload, file=places.seal)
    except FindingError as fault:
        log.unreadable(places.seal, [fault.finding])
        return None, None


def _read(kind: type[D], path: str, files: Mapping[str, ReadFile], log: Findings) -> D | None:
    file = files.get(path)
    if file is None:
        log.unreadable(path, [found("tree.file-missing", file=path, expected=f"mint2m.{kind.NAME}/v1")])
        return None
    if file.raw is None:
        return None  # too large or unreadable: the walk said so
    value, faults = read_value(kind, file.raw, file=path, canonical_form=True)
    if value is None:
        log.unreadable(path, faults)
        return None
    return decode(kind, {name: member for name, member in value.items() if name != "schema"})
