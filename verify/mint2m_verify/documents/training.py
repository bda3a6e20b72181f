"""An online training: what it is to do, what each step drew, and how its steps hang together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mint2m_verify.documents.base import Document, FileRef
from mint2m_verify.documents.inputs import Distribution, FixtureModel, HardwareClass, ModelSource, PinnedFile
from mint2m_verify.documents.sampling import Finish, SamplingParameters

#: Whether a step's optimizer goes on from the moments that the step before left, or starts at zero.
Moments = Literal["carried", "fresh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineDeployment(Document):
    """With what an online training runs on this machine; written by the operator.

    Without `moments` they are fresh, without `prompts_per_step` a step has one prompt, and without `checkpoints_kept`
    every checkpoint stays.
    """

    NAME: ClassVar[str] = "online-deployment"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"moments", "prompts_per_step", "checkpoints_kept"})

    name: str
    seed: int
    hardware_class: HardwareClass
    ranks_on_this_machine: int
    model: ModelSource
    adapter: str | None
    profile: PinnedFile
    dataset: PinnedFile
    reward_rule: str
    sampling: SamplingParameters
    rows_per_step: int
    logprob_bound: float
    distribution: Distribution
    signing_key: str
    moments: Moments | None = None
    prompts_per_step: int | None = None
    checkpoints_kept: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow(Document):
    """One line of a dataset."""

    NAME: ClassVar[str] = "training-row"

    prompt: str
    question: str
    ground_truth: str

    @property
    def text(self) -> str:
        """What the policy is given."""
        return f"{self.prompt}\n\n{self.question}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan(Document):
    """What is fixed before the first step. `profile.context.prompt_tokens` gives way to each row's length.

    Without `moments` they are fresh, without `prompts_per_step` a step has one prompt, and without `checkpoints_kept`
    every checkpoint stays.
    """

    NAME: ClassVar[str] = "training-plan"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"moments", "prompts_per_step", "checkpoints_kept"})

    name: str
    seed: int
    steps: int
    source_sha256: str
    hardware_class: HardwareClass
    model: FixtureModel
    policy_sha256: str | None
    profile: FileRef
    dataset: FileRef
    rows: int
    reward_rule: str
    sampling: SamplingParameters
    rows_per_step: int
    logprob_bound: float
    moments: Moments | None = None
    prompts_per_step: int | None = None
    checkpoints_kept: int | None = None

    @property
    def prompts(self) -> int:
        """Groups that each step trains on."""
        return self.prompts_per_step or 1

    def lets_go(self, step: int, *, last: int) -> bool:
        """Whether the checkpoint of `step` need not be there any more once the step `last` is finished."""
        return self.checkpoints_kept is not None and step <= last - self.checkpoints_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnResponse:
    """`logprobs` are of the policy, one for each token, without temperature, top-p and top-k."""

    seed: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one row gave. Digests of adapter and pages are the same on every rank, those of base weights are not."""

    row: int
    pages_sha256: str
    pages_adapter_sha256: str
    adapter_sha256: str
    weights_sha256: tuple[str, ...]
    responses: tuple[DrawnResponse, ...]
    signal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep(Document):
    """One step before its update. An attempt with signal is a group that is trained on, and ends a prompt's search."""

    NAME: ClassVar[str] = "training-step"

    step: int
    plan_sha256: str
    parent: str | None
    policy_sha256: str | None
    attempts: tuple[Attempt, ...]

    @property
    def searches(self) -> tuple[tuple[Attempt, ...], ...]:
        """The attempts of each prompt, in order; the last search may have ended without signal."""
        ends = [n + 1 for n, attempt in enumerate(self.attempts) if attempt.signal or n == len(self.attempts) - 1]
        return tuple(self.attempts[start:end] for start, end in zip((0, *ends), ends, strict=False))

    @property
    def groups(self) -> tuple[Attempt, ...]:
        """What each prompt is trained on."""
        return tuple(search[-1] for search in self.searches)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStep:
    """A step's file, the digest of its run's seal payload, and the root digest of the adapter that it left."""

    step: FileRef
    seal_sha256: str
    policy_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Document):
    """A finished training."""

    NAME: ClassVar[str] = "training"

    plan: FileRef
    steps: tuple[FinishedStep, ...]
