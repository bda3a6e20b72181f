"""Typed documents: one frozen dataclass per schema, read strictly and written in one form.

`Document.parse` checks bytes, JSON and schema before a value exists, and keeps the bytes, because digests and
signatures cover bytes. Member names are the schemas' own.
"""

from mint2m_verify.documents.base import Document, FileRef
from mint2m_verify.documents.external_claim import ExternalClaim
from mint2m_verify.documents.failure import FailedReceipt
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
from mint2m_verify.documents.release import Release
from mint2m_verify.documents.rollout_record import RolloutRecord
from mint2m_verify.documents.runtime import ImageProvenance, RuntimeLock
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
