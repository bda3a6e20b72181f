"""Typed documents: one frozen dataclass per schema, read strictly and written in one form.

`Document.parse` checks bytes, JSON and schema before a value exists, and keeps the bytes, because digests and
signatures cover bytes. Member names are the schemas' own.

The documents of one run are loaded with this package. The others are when they are asked for, because making a
dataclass takes half a millisecond and `verify run` needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mint2m_verify.documents.base import Document, FileRef
from mint2m_verify.documents.grant import Grant
from mint2m_verify.documents.inputs import (
    Deployment,
    OptimizerContract,
    Rollout,
    RunProfile,
    RuntimeIdentity,
    TrainingFixture,
    TrainingPayload,
)
from mint2m_verify.documents.manifests import CheckpointManifest, FileManifest, ModelManifest, TreeEntry
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import (
    Doctor,
    DoctorCheck,
    OwnershipEvent,
    PhaseEvidence,
    PhaseRecord,
    RankSession,
    RankSessions,
    ResponseScores,
    Scores,
    TrainingReceipt,
)
from mint2m_verify.documents.runtime import ImageProvenance, RuntimeLock

if TYPE_CHECKING:
    from mint2m_verify.documents.external_claim import ExternalClaim
    from mint2m_verify.documents.failure import FailedReceipt
    from mint2m_verify.documents.release import Release
    from mint2m_verify.documents.rollout_record import RolloutRecord
    from mint2m_verify.documents.training import OnlineDeployment, Training, TrainingPlan, TrainingRow, TrainingStep
    from mint2m_verify.documents.trust_policy import TrustPolicy
    from mint2m_verify.documents.validation import (
        FixtureSet,
        LoadedTensors,
        LogProof,
        RankPhases,
        StageArtifacts,
        StageRanks,
        StageRecord,
        StageValidation,
        ValidationPlan,
    )

__all__ = [
    "CheckpointManifest",
    "Deployment",
    "Doctor",
    "DoctorCheck",
    "Document",
    "ExternalClaim",
    "FailedReceipt",
    "FileManifest",
    "FileRef",
    "FixtureSet",
    "Grant",
    "ImageProvenance",
    "LoadedTensors",
    "LogProof",
    "ModelManifest",
    "OnlineDeployment",
    "OptimizerContract",
    "OwnershipEvent",
    "PhaseEvidence",
    "PhaseRecord",
    "Plan",
    "RankPhases",
    "RankSession",
    "RankSessions",
    "Release",
    "ResponseScores",
    "Rollout",
    "RolloutRecord",
    "RunProfile",
    "RuntimeIdentity",
    "RuntimeLock",
    "Scores",
    "StageArtifacts",
    "StageRanks",
    "StageRecord",
    "StageValidation",
    "Training",
    "TrainingFixture",
    "TrainingPayload",
    "TrainingPlan",
    "TrainingReceipt",
    "TrainingRow",
    "TrainingStep",
    "TreeEntry",
    "TrustPolicy",
    "ValidationPlan",
]

#: Modules that are loaded later, and what is in them.
_LATER = {
    "external_claim": ("ExternalClaim",),
    "failure": ("FailedReceipt",),
    "release": ("Release",),
    "rollout_record": ("RolloutRecord",),
    "training": (
        "OnlineDeployment",
        "Training",
        "TrainingPlan",
        "TrainingRow",
        "TrainingStep",
    ),
    "trust_policy": ("TrustPolicy",),
    "validation": (
        "FixtureSet",
        "LoadedTensors",
        "LogProof",
        "RankPhases",
        "StageArtifacts",
        "StageRanks",
        "StageRecord",
        "StageValidation",
        "ValidationPlan",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
