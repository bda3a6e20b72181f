"""The plan: what will run, where and under which names, fixed before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from mint2m_verify.canonical import JsonValue, canonical, sha256_hex
from mint2m_verify.documents.base import Document, FileRef
from mint2m_verify.documents.inputs import ClaimScope, FixtureModel, HardwareClass, RunProfile, Timeouts

MemoryCategory = Literal[
    "weights",
    "lora",
    "gradients",
    "optimizer",
    "pages",
    "gradient-pages",
    "decisions",
    "activations",
    "communication",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentIdentity:
    """The members of a deployment that decide where ranks run."""

    name: str
    hardware_class: HardwareClass
    ray_address: str
    node_ips: tuple[str, ...]
    accelerators_per_node: int
    image_digest: str | None
    image_resource: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """References to the copies under DIR/inputs."""

    deployment: FileRef
    profile: FileRef
    fixture: FileRef
    payload: FileRef
    rollout: FileRef
    model_manifest: FileRef
    runtime_identity: FileRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    name: str
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One placement-group bundle, bound to one node."""

    index: int
    node_ip: str
    cpus: int
    accelerators: int
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRank:
    rank: int
    actor: str
    bundle: int
    node_ip: str
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    group: str
    coordinator: str
    bundles: tuple[Bundle, ...]
    ranks: tuple[PlannedRank, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """Planned bytes of one category on the fullest rank."""

    category: MemoryCategory
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    creator: str
    lifetime: Literal["driver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Document):
    """Content-addressed: `plan_sha256` covers the document without that member."""

    NAME: ClassVar[str] = "plan"

    plan_sha256: str
    run_id: str
    nonce_sha256: str
    namespace: str
    source_sha256: str
    deployment: DeploymentIdentity
    profile: ProfileMember
    model: FixtureModel
    inputs: PlanInputs
    placement: Placement
    phases: tuple[str, ...]
    prefix_chunks: int
    memory: tuple[MemoryItem, ...]
    timeouts_s: Timeouts
    ownership: Ownership
    claim_scope: ClaimScope

    def computed_sha256(self) -> str:
        """What `plan_sha256` must be."""
        members: dict[str, JsonValue] = {n: m for n, m in self.value().items() if n != "plan_sha256"}
        return sha256_hex(canonical(members))

    def addressed(self) -> Plan:
        """This plan with its own address filled in."""
        return replace(self, plan_sha256=self.computed_sha256())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileMember(RunProfile):
    """A whole run profile inside a plan, `schema` member included."""

    schema: str = "mint2m.run-profile/v1"
