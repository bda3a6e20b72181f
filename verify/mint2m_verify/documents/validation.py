"""What a promotion run is judged by and what its stages leave: the validation plan and the four files of a bundle.

The rule: the plan is fixed before the first stage and names every bound; a stage's own files hold observations and
references only. `stage-validation` repeats the verdict for people and is never taken for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mint2m_verify.documents.base import Document, FileRef
from mint2m_verify.documents.inputs import ClaimScope, HardwareClass, OptimizerContract, Timeouts, Topology
from mint2m_verify.documents.manifests import FileManifest
from mint2m_verify.documents.records import PhaseRecord

StageName = Literal["doctor", "kernel", "nccl", "actor", "parity-32k", "parity-64k", "scale-2m"]
Backend = Literal["gloo", "nccl"]
StandingName = Literal["replayed", "derived", "checked", "attested-only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One number's bounds, inclusive, of which at least one is given, and the weakest standing that it may have."""

    number: str
    at_least: float | None
    at_most: float | None
    standing: StandingName


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFixture:
    """What a stage computes on: its profile, and a training fixture with its payload and rollout.

    `deployment` is the training deployment of a stage that is a whole run, null for others.
    """

    profile: FileRef
    fixture: FileRef
    payload: FileRef
    rollout: FileRef
    deployment: FileRef | None

    @property
    def files(self) -> tuple[FileRef, ...]:
        """All of them."""
        four = (self.profile, self.fixture, self.payload, self.rollout)
        return four if self.deployment is None else (*four, self.deployment)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixtureCase:
    """What one stage of a validation deployment computes on; paths are relative to the set."""

    stage: StageName
    profile: FileRef
    fixture: FileRef
    payload: FileRef
    rollout: FileRef


@dataclass(frozen=True, slots=True, kw_only=True)
class FixtureSet(Document):
    """The cases of a validation deployment, which names this document by digest; one a stage, in the stages' order."""

    NAME: ClassVar[str] = "fixture-set"

    name: str
    cases: tuple[FixtureCase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One stage: its inputs where it needs any, the seconds it may take, and the bounds of its numbers."""

    stage: StageName
    fixture: PlannedFixture | None
    limit_s: int
    thresholds: tuple[Threshold, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """The snapshot by revision and manifest, and the files of the adapter that every stage starts from."""

    revision: str
    manifest: FileRef
    adapter: tuple[FileRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlan(Document):
    """Everything that decides what a promotion run does and how it is judged, fixed before it."""

    NAME: ClassVar[str] = "validation-plan"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"runtime_lock"})

    name: str
    nonce_sha256: str
    source_sha256: str
    checkout_sha256: str | None
    runtime_identity: FileRef
    image_digest: str | None
    deployment: FileRef
    hardware_class: HardwareClass
    claim_scope: ClaimScope
    backend: Backend
    topology: Topology
    model: PlannedModel
    optimizer: OptimizerContract
    kernel_cache_required: bool
    required_stages: tuple[StageName, ...]
    stages: tuple[PlannedStage, ...]
    timeouts_s: Timeouts
    runtime_lock: FileRef | None = None

    def stage(self, name: str) -> PlannedStage | None:
        """What is planned for a stage, if anything."""
        return next((item for item in self.stages if item.stage == name), None)

    @property
    def inputs(self) -> tuple[FileRef, ...]:
        """Every file that the plan names, each once, in order of path."""
        refs = {ref.path: ref for ref in (self.runtime_identity, self.deployment, self.model.manifest)}
        if self.runtime_lock is not None:
            refs[self.runtime_lock.path] = self.runtime_lock
        refs |= {ref.path: ref for ref in self.model.adapter}
        for item in self.stages:
            if item.fixture is not None:
                refs |= {ref.path: ref for ref in item.fixture.files}
        return tuple(refs[path] for path in sorted(refs))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRef:
    """The stage before: its seal's payload and its validation file, by SHA-256."""

    stage: StageName
    seal_sha256: str
    validation_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Something of the environment that changes how a stage runs and none of its numbers."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNumber:
    """A number as the stage reports it; null where it has no value."""

    name: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord(Document):
    """`X.json`: which stage ran, under what, after what, and the numbers it came to."""

    NAME: ClassVar[str] = "stage"

    stage: StageName
    run_id: str
    execution_id: str
    validation_plan: FileRef
    parent: ParentRef | None
    source_sha256: str
    runtime_identity_sha256: str
    hardware_class: HardwareClass
    claim_scope: ClaimScope
    backend: Backend
    world_size: int
    settings: tuple[Setting, ...]
    started_at: str
    ended_at: str
    numbers: tuple[StageNumber, ...]
    ranks: FileRef
    artifacts: FileRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A process's own look at what it runs, before its work and after it."""

    identity_before: str
    identity_after: str
    source_before: str
    source_after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRank:
    """One rank. `actor` and `actor_id` are null where the driver itself did the work."""

    rank: int
    actor: str | None
    actor_id: str | None
    pid: int
    node_ip: str
    slot: int
    device: str
    observed: Observed
    files: tuple[FileRef, ...]
    groups_destroyed: bool
    absent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRanks(Document):
    """`Y-ranks.json`: the driver and every rank of one execution."""

    NAME: ClassVar[str] = "stage-ranks"

    stage: StageName
    execution_id: str
    validation_plan_sha256: str
    world_size: int
    driver: Observed
    ranks: tuple[StageRank, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageArtifacts(FileManifest):
    """`Y-artifacts.json`: every raw file of the stage, below `artifacts/STAGE/`."""

    NAME: ClassVar[str] = "stage-artifacts"

    stage: StageName
    execution_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedNumber:
    """A number computed again, its standing, the plan's bounds and whether it keeps them."""

    name: str
    value: float | None
    standing: StandingName
    at_least: float | None
    at_most: float | None
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageValidation(Document):
    """`Y-validation.json`: what the verifier made of the other three files; output, never input."""

    NAME: ClassVar[str] = "stage-validation"

    stage: StageName
    run_id: str
    execution_id: str
    validation_plan_sha256: str
    record: FileRef
    ranks: FileRef
    artifacts: FileRef
    numbers: tuple[JudgedNumber, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenHead:
    """Size and root of the log."""

    size: int
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProof(Document):
    """What lies beside a seal: the log's head with it, and proofs that it is in it and that the log only grew."""

    NAME: ClassVar[str] = "log-proof"

    payload_sha256: str
    index: int
    head: ProvenHead
    inclusion: tuple[str, ...]
    consistency: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTensor:
    """A tensor as a rank holds it; `sha256` is over its little-endian bytes in that dtype."""

    name: str
    dtype: Literal["F64", "F32", "BF16", "F16"]
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTensors(Document):
    """What one rank holds after materialization, and the optimizer that stands ready and has taken no step."""

    NAME: ClassVar[str] = "loaded-tensors"

    stage: StageName
    execution_id: str
    rank: int
    base: tuple[LoadedTensor, ...]
    adapter: tuple[LoadedTensor, ...]
    optimizer: OptimizerContract
    optimizer_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPhases(Document):
    """The phases of one rank in one computation of a stage (`case`, `side`), chained from its execution on."""

    NAME: ClassVar[str] = "rank-phases"

    stage: StageName
    execution_id: str
    validation_plan_sha256: str
    rank: int
    case: str
    side: str
    phases: tuple[PhaseRecord, ...]
