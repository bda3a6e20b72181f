"""Where everything lies in a run directory.

The rule: the places are fixed here and never read from the evidence, so a run cannot choose which manifest judges
which of its trees, or bring a file that nothing checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mint2m_verify.documents import (
    CheckpointManifest,
    Deployment,
    Doctor,
    Document,
    FileManifest,
    ModelManifest,
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

SEAL = "attestations/seal.sigstore.json"
ATTESTATIONS = "attestations/"

#: Further signatures over the seal's payload. The seal is the first; nine are more than any threshold asks for.
COSIGNATURES = tuple(f"attestations/seal.{number}.sigstore.json" for number in range(2, 10))

#: The authorization grant, where there is one; signed by its grantor, before or after the seal.
GRANT = "attestations/grant.sigstore.json"

DOCTOR = "doctor.json"
PLAN = "plan.json"
OWNERSHIP = "ownership.jsonl"
RECEIPT = "receipt.json"

#: In the place of a receipt where the run did not come through; no run that verifies has it.
FAILED_RECEIPT = "failed-receipt.json"

RANK_SESSIONS = "artifacts/rank-sessions.json"
SCORES = "artifacts/scores.json"
GRADIENT = "artifacts/gradient.safetensors"
OPTIMIZER_AFTER = "artifacts/optimizer-after.safetensors"
OPTIMIZER_INITIAL = "inputs/optimizer-initial.safetensors"
GRADIENT_INITIAL = "inputs/gradient-initial.safetensors"
CHECKPOINT_MANIFEST = "artifacts/checkpoint-manifest.json"
ADAPTER_MANIFEST = "artifacts/adapter-manifest.json"
ADAPTER_BEFORE_MANIFEST = "artifacts/adapter-before-manifest.json"
DEPLOYMENT = "inputs/deployment.json"
PROFILE = "inputs/profile.json"
FIXTURE = "inputs/fixture.json"
PAYLOAD = "inputs/payload.json"
ROLLOUT = "inputs/rollout.json"
MODEL_MANIFEST = "inputs/model-manifest.json"
RUNTIME_IDENTITY = "inputs/runtime-identity.json"

#: At hand only where the run brought its model along.
MODEL_CONFIG = "inputs/model/config.json"

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

#: Documents of a run, by path. Those that a person may have written need not be in RFC 8785 form.
DOCUMENTS: Mapping[str, type[Document]] = {
    DOCTOR: Doctor,
    PLAN: Plan,
    RECEIPT: TrainingReceipt,
    RANK_SESSIONS: RankSessions,
    SCORES: Scores,
    CHECKPOINT_MANIFEST: CheckpointManifest,
    ADAPTER_MANIFEST: FileManifest,
    ADAPTER_BEFORE_MANIFEST: FileManifest,
    DEPLOYMENT: Deployment,
    PROFILE: RunProfile,
    FIXTURE: TrainingFixture,
    PAYLOAD: TrainingPayload,
    ROLLOUT: Rollout,
    MODEL_MANIFEST: ModelManifest,
    RUNTIME_IDENTITY: RuntimeIdentity,
}
WRITTEN_BY_PEOPLE = frozenset({DEPLOYMENT, PROFILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlace:
    """A directory whose files a manifest covers; `optional` ones may lie outside the run directory instead."""

    prefix: str
    manifest: str
    stage: str
    root_fault: str
    optional: bool = False


TREES = (
    TreePlace(
        prefix="checkpoint/",
        manifest=CHECKPOINT_MANIFEST,
        stage="checkpoint",
        root_fault="receipt.checkpoint-root-mismatch",
    ),
    TreePlace(
        prefix="adapter/", manifest=ADAPTER_MANIFEST, stage="checkpoint", root_fault="receipt.adapter-root-mismatch"
    ),
    TreePlace(
        prefix="artifacts/adapter-before/",
        manifest=ADAPTER_BEFORE_MANIFEST,
        stage="materialize",
        root_fault="receipt.adapter-before-root-mismatch",
    ),
    TreePlace(
        prefix="inputs/model/",
        manifest=MODEL_MANIFEST,
        stage="materialize",
        root_fault="plan.model-root-mismatch",
        optional=True,
    ),
)

#: A given policy adapter, copied beside the other inputs; sealed file by file.
ADAPTER_INITIAL = "inputs/adapter-initial/"

#: What ranks say to people; sealed like any other file, and read by no check.
_LOG = re.compile(r"logs/rank-(?:[0-9]{4}|[1-9][0-9]{4})\.log")

#: Every other file that a run directory may hold, all sealed by path.
SEALED_FILES = frozenset({*DOCUMENTS, OWNERSHIP, GRADIENT, OPTIMIZER_AFTER})
REQUIRED_FILES = SEALED_FILES

#: What only a step leaves: a run that ends with its gradient has none of these files, and nothing in their trees.
STEP_FILES = frozenset({OPTIMIZER_AFTER, CHECKPOINT_MANIFEST, ADAPTER_MANIFEST})

#: Sealed like them, and there only where the deployment names what it is a copy of.
_NAMED_FILES = frozenset({OPTIMIZER_INITIAL, GRADIENT_INITIAL})

_JSON_LIMIT = 64 << 20

#: Files of tensors that are read whole.
TENSOR_LIMIT = 1 << 30
_KEPT_TENSORS = frozenset(
    {
        GRADIENT,
        OPTIMIZER_AFTER,
        OPTIMIZER_INITIAL,
        GRADIENT_INITIAL,
        f"adapter/{ADAPTER_WEIGHTS}",
        f"artifacts/adapter-before/{ADAPTER_WEIGHTS}",
        f"{ADAPTER_INITIAL}{ADAPTER_WEIGHTS}",
    }
)
_KEPT_JSON = frozenset(
    {
        *DOCUMENTS,
        OWNERSHIP,
        FAILED_RECEIPT,
        SEAL,
        *COSIGNATURES,
        GRANT,
        MODEL_CONFIG,
        f"adapter/{ADAPTER_CONFIG}",
        f"artifacts/adapter-before/{ADAPTER_CONFIG}",
    }
)


def rank_log(rank: int) -> str:
    """Where a rank's log lies."""
    return f"logs/rank-{rank:04d}.log"


def rank_flight(rank: int) -> str:
    """Where a rank's flight record lies, if a phase took too long; no run that verifies has one."""
    return f"logs/rank-{rank:04d}.flight.json"


def is_log(path: str) -> bool:
    """Whether `path` is the log of a rank."""
    return _LOG.fullmatch(path) is not None


def kept_bytes(path: str) -> int:
    """Largest size at which the file's bytes are kept for parsing; 0 for files that are only hashed."""
    if path in _KEPT_TENSORS:
        return TENSOR_LIMIT
    return _JSON_LIMIT if path in _KEPT_JSON else 0


def tree_of(path: str) -> TreePlace | None:
    """The tree that `path` lies in, if any."""
    return next((place for place in TREES if path.startswith(place.prefix)), None)


def required_files(*, ends_with_gradient: bool) -> frozenset[str]:
    """The files that a run directory must hold."""
    return REQUIRED_FILES - STEP_FILES if ends_with_gradient else REQUIRED_FILES


def trees(*, ends_with_gradient: bool) -> tuple[TreePlace, ...]:
    """The trees that a run directory has."""
    return tuple(place for place in TREES if not (ends_with_gradient and place.manifest in STEP_FILES))


def has_place(path: str, *, ends_with_gradient: bool = False) -> bool:
    """Whether a run directory may hold `path` outside its trees and its attestations."""
    if ends_with_gradient and path in STEP_FILES:
        return False
    if is_log(path) or path in _NAMED_FILES:
        return True
    return path in SEALED_FILES or (path.startswith(ADAPTER_INITIAL) and "/" not in path.removeprefix(ADAPTER_INITIAL))
