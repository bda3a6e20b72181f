"""Stages, their order, and where everything lies in an evidence directory.

The rule: order and places are fixed here and never read from the evidence, so a chain cannot skip a stage, name its
own parent or bring a file that nothing checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mint2m_verify.documents.validation import StageName
from mint2m_verify.layout import PLAN as PLAN_OF_RUN
from mint2m_verify.layout import RANK_SESSIONS, RECEIPT

PLAN = "validation-plan.json"
ATTESTATIONS = "attestations/"
PLAN_SEAL = f"{ATTESTATIONS}plan.sigstore.json"

#: The authorization grant, where there is one: over the plan, by a grantor.
GRANT = f"{ATTESTATIONS}grant.sigstore.json"
INPUTS = "inputs/"

#: At hand only where the planner put the model beside the plan; the manifest that the plan names covers it.
MODEL = f"{INPUTS}model/"

#: Promotion order: each stage's parent is the one before it.
ORDER: tuple[StageName, ...] = ("doctor", "kernel", "nccl", "actor", "parity-32k", "parity-64k", "scale-2m")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlaces:
    """The files of one stage: the bundle's four, the tree of raw artifacts, the seal and the proof beside it."""

    stage: StageName
    record: str
    ranks: str
    artifacts: str
    validation: str

    @property
    def bundle(self) -> tuple[str, str, str, str]:
        """The four files, which are the seal's subjects."""
        return self.record, self.ranks, self.artifacts, self.validation

    @property
    def tree(self) -> str:
        return f"artifacts/{self.stage}/"

    @property
    def seal(self) -> str:
        return f"{ATTESTATIONS}{self.stage}.sigstore.json"

    @property
    def proof(self) -> str:
        return f"{ATTESTATIONS}{self.stage}.log.json"


#: Two stems of each stage: of the record, and of the other three files.
_STEMS: Mapping[StageName, tuple[str, str]] = {
    "doctor": ("doctor", "doctor"),
    "kernel": ("kernel-smoke", "kernel"),
    "nccl": ("nccl-smoke", "nccl"),
    "actor": ("actor", "actor"),
    "parity-32k": ("parity-32k", "parity-32k"),
    "parity-64k": ("parity-64k", "parity-64k"),
    "scale-2m": ("scale-2m", "scale-2m"),
}

PLACES: Mapping[StageName, StagePlaces] = {
    stage: StagePlaces(
        stage=stage,
        record=f"{first}.json",
        ranks=f"{second}-ranks.json",
        artifacts=f"{second}-artifacts.json",
        validation=f"{second}-validation.json",
    )
    for stage, (first, second) in _STEMS.items()
}

#: Exact lengths, in prompt tokens, of the stages that promise one in their name.
NAMED_TOKENS: Mapping[StageName, int] = {"parity-32k": 32_768, "parity-64k": 65_536, "scale-2m": 2_097_152}

#: Seconds that a stage may take where the planner says nothing else.
LIMIT_S = 75 * 60

_JSON_LIMIT = 64 << 20


def parent_of(stage: StageName) -> StageName | None:
    """The stage before, None for the first."""
    at = ORDER.index(stage)
    return ORDER[at - 1] if at else None


def stage_of(path: str) -> StageName | None:
    """The stage that a file belongs to, if any."""
    for stage, places in PLACES.items():
        if path in (*places.bundle, places.seal, places.proof) or path.startswith(places.tree):
            return stage
    return None


def kept_bytes(path: str) -> int:
    """Largest size at which a file's bytes are kept for parsing; 0 for files that are only hashed."""
    if path.startswith(f"{PLACES['scale-2m'].tree}run/") and not path.endswith((PLAN_OF_RUN, RECEIPT, RANK_SESSIONS)):
        return 0  # a run directory of its own, which its own verifier reads
    # Tensors are hashed here and read one at a time by whoever computes with them.
    return _JSON_LIMIT if path.endswith((".json", ".jsonl")) else 0
