"""What driver and ranks say to each other. Plain frozen values: Ray carries them between processes by pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from mint2m_trainer.faults import Cause, cause_of, words_of
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.inputs import Accumulation, Rollout, RunProfile
from mint2m_verify.documents.records import PhaseEvidence
from mint2m_verify.elsewhere import HashedElsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """What one rank is started with; paths are the same on every node."""

    rank: int
    world_size: int
    run_dir: Path
    snapshot: Path
    adapter: Path | None
    profile: RunProfile
    rollout: Rollout
    phases: tuple[str, ...]
    plan_sha256: str
    execution_id: str
    image_digest: str | None
    #: `module:attribute` of the class that makes the update.
    backend: str
    #: Where capture and reverse keep their work; None keeps nothing.
    progress: Path | None = None
    #: Where the rank's instruments write; None watches nothing.
    instruments: Path | None = None
    #: What the optimizer goes on from, and after how many steps; None is zero state.
    moments: Path | None = None
    steps_before: int = 0
    #: The run's place in a step over several prompts, and the gradient that it goes on from.
    accumulation: Accumulation | None = None
    gradient: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A rank's first word: who and where it is."""

    rank: int
    pid: int
    start_ticks: int
    node_ip: str
    bundle: int
    accelerator: str
    runtime_identity_sha256: str
    source_sha256: str
    plan_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where rank 0 waits for the others."""

    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReply:
    """One phase of one rank, done: times by the rank's own clock, files with their digests."""

    rank: int
    phase: str
    started_at: str
    ended_at: str
    evidence: PhaseEvidence
    #: Hashed by the rank that wrote them, when it had written them.
    written: tuple[HashedElsewhere, ...]

    @property
    def files(self) -> tuple[FileRef, ...]:
        """The same as the record of the phase names them."""
        return tuple(reference_of(file) for file in self.written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a rank is within a phase."""

    rank: int
    phase: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """The last collective that a rank came to. Every rank comes to the same ones, so `calls` says who is behind."""

    rank: int
    calls: int
    operation: str
    phase: str
    #: -1 outside chunks, and outside layers.
    chunk: int
    layer: int


def reference_of(file: HashedElsewhere) -> FileRef:
    """The file as documents name it."""
    return FileRef(path=file.file.path, sha256=file.digests.sha256, size=file.digests.size)


#: What the operator reads of each sort.
FINDING_IDS: Mapping[Cause, str] = {
    Cause.INPUT: "rank.input-refused",
    Cause.REFUSED: "rank.failed",
    Cause.RESOURCE: "rank.resource",
    Cause.BUG: "rank.internal",
}


class RankError(Exception):
    """A rank could not go on. Made of plain strings, since other exceptions need not survive a pickle."""

    def __init__(self, rank: int, phase: str, cause: Cause, kind: str, text: str, trace: str) -> None:
        super().__init__(rank, phase, cause, kind, text, trace)
        self.rank, self.phase, self.cause = rank, phase, cause
        self.kind, self.text, self.trace = kind, text, trace

    def __str__(self) -> str:
        return f"rank {self.rank} in {self.phase}: {self.kind}: {self.text}"


class told_as_rank_error:  # noqa: N801 - used like a function
    """Scope in which whatever a rank raises becomes a `RankError` that reaches the driver whole."""

    def __init__(self, rank: int, phase: str) -> None:
        self._rank, self._phase = rank, phase

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if fault is None or not isinstance(fault, Exception):
            return False
        import traceback

        trace_text = "".join(traceback.format_exception(fault))
        raise RankError(
            self._rank, self._phase, cause_of(fault), type(fault).__name__, words_of(fault), trace_text
        ) from None
