"""A line of an engine's export, as vLLM or SGLang would write it, in names that no engine owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mint2m_verify.documents.base import Document
from mint2m_verify.documents.sampling import Finish, SamplingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPolicy:
    """Under what the responses were drawn: the model's revision, and the root digest of the adapter's files or none."""

    revision: str
    adapter_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResponse:
    """`logprobs` are of the policy, without temperature, top-p and top-k; `seed` is null where the engine has none."""

    seed: int | None
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord(Document):
    """One prompt and the responses that were drawn from it."""

    NAME: ClassVar[str] = "rollout-record"

    request: str
    engine: Engine
    policy: RecordedPolicy
    tokenizer: str
    sampling: SamplingParameters
    prompt_tokens: tuple[int, ...]
    responses: tuple[RecordedResponse, ...]
