"""What a run starts from: deployment, profile, fixture, payload, rollout and the identity of its runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mint2m_verify.documents.base import Document, FileRef

HardwareClass = Literal["reference-cpu", "h20-4x8"]
ClaimScope = Literal[
    "reference_cpu_execution",
    "reference_cpu_numerical_correctness",
    "2m_execution_only_not_numerical_correctness",
    "gradient_parity",
    "topology_rehearsal",
    "gradient_accumulation_only",
]
PrefixGradient = Literal["exact", "detached"]
Source = Literal["rollout", "recompute"]
Family = Literal["attention", "dense", "shared", "expert", "unembed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model snapshot: where the operator has it, and what it must be."""

    snapshot: str
    revision: str
    model_manifest_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """A file of the operator's by path and SHA-256."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """`key`: a private key file at `path`; `ephemeral`: a key made for this run."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["key", "ephemeral"]
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStart:
    """Adam's moments to go on from, as an earlier run left them in `path`, and the steps that led to them."""

    path: str
    sha256: str
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientStart:
    """The gradient to go on from, as the run with this seal (the digest of its payload) left it in `path`."""

    path: str
    sha256: str
    seal_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """The place of a run among those of one step over several prompts, one run a prompt.

    `tokens` and `responses` are all that the step scores: a loss is averaged over the whole step, not over a run.
    `gradient` is what the run before left; null in the first.
    """

    index: int
    prompts: int
    tokens: int
    responses: int
    gradient: GradientStart | None

    @property
    def takes_step(self) -> bool:
        """Whether the run steps on the sum of all gradients; the others end with theirs."""
        return self.index == self.prompts - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(Document):
    """Where and with what a run happens; written by the operator.

    Without `optimizer` its state starts at zero, without `accumulation` the step has one prompt.
    """

    NAME: ClassVar[str] = "deployment"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"accumulation", "optimizer", "runtime_lock"})

    kind: Literal["training", "validation"]
    name: str
    hardware_class: HardwareClass
    ray_address: str
    node_ips: tuple[str, ...]
    accelerators_per_node: int
    image: Image | None
    model: ModelSource
    adapter: str | None
    fixture: PinnedFile
    profile: PinnedFile | None
    runtime_identity: str | None
    sbom: str | None
    image_provenance: str | None
    authorization_grant: str | None
    output_root: str
    signer: Signer
    runtime_lock: str | None = None
    optimizer: OptimizerStart | None = None
    accumulation: Accumulation | None = None

    @property
    def ends_with_gradient(self) -> bool:
        """Whether the run is one of a step's that take no step of their own."""
        return self.accumulation is not None and not self.accumulation.takes_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    world_size: int
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    expert_parallel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    prompt_tokens: int
    max_response_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnParameters:
    """YaRN (arXiv 2309.00071) by Hugging Face's names; every member is stated, none has a default."""

    rope_type: Literal["yarn"]
    rope_theta: float
    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float
    truncate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPositions:
    """Positions that a profile puts on a checkpoint in place of its own."""

    max_position_embeddings: int
    rope_parameters: YarnParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNumerics:
    """`positions` stretches the checkpoint's positions; without it they are used as they are."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"positions"})

    dtype: Literal["float32", "bfloat16", "float64"]
    rope_angle_dtype: Literal["float32", "float64"]
    positions: LongPositions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions:
    """`seed` makes a fresh adapter; it has no effect where the deployment gives one."""

    rank: int
    alpha: float
    families: tuple[Family, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerContract:
    """What the live optimizer must be observed to be before its one step."""

    name: Literal["adam"]
    lr: float
    min_lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled_weight_decay: bool
    clip_grad: float
    schedule: Literal["constant"]
    distributed_optimizer: bool
    state_dtype: Literal["float32", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoOptions:
    """The constants of the loss; `norm_tokens` is the divisor of `sequence_sum_norm` and null elsewhere.

    `advantage_source` `rollout` takes one advantage for each response token from the rollout; without it they follow
    from the rewards. `logprob_bound` is how far the trainer's log-prob of a token may lie from the rollout's, which
    its sampler gave; without it, nobody holds them against each other.
    """

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"advantage_source", "logprob_bound"})

    clip_low: float
    clip_high: float
    clip_dual: float | None
    kl_beta: float
    kl_estimator: Literal["k1", "k2", "k3"]
    advantage_eps: float
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum_norm"]
    norm_tokens: int | None
    old_source: Source
    ref_source: Source
    advantage_source: Literal["rewards", "rollout"] | None = None
    logprob_bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixOptions:
    gradient: PrefixGradient
    chunk_tokens: int
    decisions: Literal["store", "rescore"]
    route: Literal["fetch", "lse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """Bounds on working memory: tokens a piece of the LM head, queries an attention tile, tokens an expert batch.

    `store` says where pages lie, in memory or in mapped files, and `page_rows` how many rows one has; neither changes
    a number of the run.
    """

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"store", "page_rows"})

    head_tokens: int
    query_tile: int
    expert_tokens: int
    rank_bytes: int | None
    store: Literal["memory", "mapped"] | None = None
    page_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    start: int
    phase: int
    cleanup: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The run that a rehearsal stands for: its profile, and how long its prompt is."""

    profile_sha256: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfile(Document):
    """Everything that changes a number of the run; `rehearses` is there only in a rehearsal's."""

    NAME: ClassVar[str] = "run-profile"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"rehearses"})

    name: str
    topology: Topology
    context: Context
    group_size: int
    model: ModelNumerics
    lora: LoraOptions
    optimizer: OptimizerContract
    grpo: GrpoOptions
    prefix: PrefixOptions
    memory: MemoryOptions
    timeouts_s: Timeouts
    rehearses: Rehearsed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixtureModel:
    revision: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    declaration: Literal["project-generated", "operator-owned", "licensed"]
    license: str
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FixtureShape:
    vocab_size: int
    prompt_tokens: int
    response_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFixture(Document):
    """What is trained on: hashes of model, policy adapter, profile, and the adjacent payload and rollout."""

    NAME: ClassVar[str] = "training-fixture"

    model: FixtureModel
    policy_sha256: str | None
    profile_sha256: str
    distribution: Distribution
    payload: FileRef
    rollout: FileRef
    shape: FixtureShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPayload(Document):
    """The text behind a rollout, its ground truth and the rule that rewards a response."""

    NAME: ClassVar[str] = "training-payload"

    tokenizer: Literal["utf8-bytes"]
    prompt_text: str
    ground_truth: str
    reward_rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Document):
    """Prompt tokens, G responses, rewards, and log-probs of R or R-1 entries a response (null: to be recomputed).

    `advantages`, R a response, are there only where the profile takes them from here.
    """

    NAME: ClassVar[str] = "rollout"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"advantages"})

    prompt_tokens: tuple[int, ...]
    responses: tuple[tuple[int, ...], ...]
    rewards: tuple[float, ...]
    old_logprobs: tuple[tuple[float, ...], ...] | None
    ref_logprobs: tuple[tuple[float, ...], ...] | None
    advantages: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    implementation: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    system: str
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeIdentity(Document):
    """The interpreter, packages and source that a worker runs; equal on every rank."""

    NAME: ClassVar[str] = "runtime-identity"

    python: Python
    platform: Platform
    packages: tuple[Package, ...]
    source_sha256: str
    image_digest: str | None
