"""What a stage's recomputation may look at: the plan, the ranks' file and the bytes that were hashed."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from mint2m_verify.chain.numbers import Number
from mint2m_verify.chain.places import PLACES
from mint2m_verify.documents.base import Document
from mint2m_verify.documents.validation import PlannedFixture, PlannedStage, StageRanks, ValidationPlan
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.recompute.shard_file import ShardFile
from mint2m_verify.walk import ReadFile

D = TypeVar("D", bound=Document)

#: Findings on the way, and the numbers at the end.
Recomputation: TypeAlias = Generator[Finding, None, tuple[Number, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One execution of one stage.

    `files` are all of the evidence directory by path; `roots` are the directories in which they lie, the first that has
    a file counts.
    """

    plan: ValidationPlan
    planned: PlannedStage
    execution_id: str
    ranks: StageRanks
    files: Mapping[str, ReadFile]
    roots: tuple[Path, ...]

    @property
    def tree(self) -> str:
        """Where the stage's raw artifacts lie, `artifacts/STAGE/`."""
        return PLACES[self.planned.stage].tree

    @property
    def world_size(self) -> int:
        return self.plan.topology.world_size

    @property
    def fixture(self) -> PlannedFixture:
        """The stage's inputs; raises `FindingError` (`validation-plan.fixture-missing`)."""
        if self.planned.fixture is None:
            raise FindingError(found("validation-plan.fixture-missing", stage=self.planned.stage))
        return self.planned.fixture

    def has(self, path: str) -> bool:
        return path in self.files

    def raw(self, path: str) -> bytes:
        """A file's bytes; raises `FindingError` (`chain.artifact-missing`)."""
        file = self.files.get(path)
        if file is None or file.raw is None:
            raise FindingError(found("chain.artifact-missing", stage=self.planned.stage, file=path))
        return file.raw

    def document(self, kind: type[D], path: str, *, canonical_form: bool = True) -> D:
        """A document; raises `FindingError` (`chain.artifact-missing`, `json.*`, `schema.*`)."""
        return kind.parse(self.raw(path), file=path, canonical_form=canonical_form)

    def tensors(self, path: str) -> ShardFile:
        """A safetensors file, read tensor by tensor; raises `FindingError` (`chain.artifact-missing`, `tensor.*`)."""
        file = self.files.get(path)
        place = next((root / path for root in self.roots if (root / path).exists()), None)
        if file is None or place is None:
            raise FindingError(found("chain.artifact-missing", stage=self.planned.stage, file=path))
        return ShardFile(place, name=path, sha256=file.entry.sha256)
