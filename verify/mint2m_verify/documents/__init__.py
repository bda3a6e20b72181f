"""Typed documents: one frozen dataclass per schema, read strictly and written in one form.

`Document.parse` checks bytes, JSON and schema before a value exists, and keeps the bytes, because digests and
signatures cover bytes. Member names are the schemas' own.

Here are the documents of one run. Those of a promotion, of training, of a release and of who is trusted lie in their
modules, because making a dataclass takes half a millisecond and `verify run` needs none of them.
"""

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

__all__ = [
    "CheckpointManifest",
    "Deployment",
    "Doctor",
    "DoctorCheck",
    "Document",
    "FileManifest",
    "FileRef",
    "Grant",
    "ImageProvenance",
    "ModelManifest",
    "OptimizerContract",
    "OwnershipEvent",
    "PhaseEvidence",
    "PhaseRecord",
    "Plan",
    "RankSession",
    "RankSessions",
    "ResponseScores",
    "Rollout",
    "RunProfile",
    "RuntimeIdentity",
    "RuntimeLock",
    "Scores",
    "TrainingFixture",
    "TrainingPayload",
    "TrainingReceipt",
    "TreeEntry",
]
