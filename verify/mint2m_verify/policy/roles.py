"""What a signature is for: the triple by which a policy looks its signers up.

The rule: it is looked up exactly. A key trusted with releases says nothing about runs, so no rule falls back to another
and none has a wildcard.
"""

from __future__ import annotations

from dataclasses import dataclass

from mint2m_verify.documents.trust_policy import Rule, TrustPolicy
from mint2m_verify.statement import SEAL_TYPE, TRAINING_TYPE

RELEASE_TYPE = "urn:mint2m:predicate:release:v1"
PLAN_TYPE = "urn:mint2m:predicate:plan:v1"

#: A file signed directly carries no statement.
ARTIFACT = "artifact"

#: Every type of ours begins like this, so that a misspelt one is told from somebody else's.
OWN_TYPES = "urn:mint2m:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Predicate type of a statement, with kind and stage where it has them; `artifact` for a plain file."""

    predicate_type: str
    kind: str | None = None
    stage: str | None = None

    def __str__(self) -> str:
        return " ".join(part for part in (self.predicate_type, self.kind, self.stage) if part is not None)


TRAINING_RUN = Role(predicate_type=SEAL_TYPE, kind="training", stage="run")
TRAINING = Role(predicate_type=TRAINING_TYPE)
RELEASE = Role(predicate_type=RELEASE_TYPE, kind="release")
FILE = Role(predicate_type=ARTIFACT)


def role_of(rule: Rule) -> Role:
    """The role that a rule is about."""
    return Role(predicate_type=rule.predicate_type, kind=rule.kind, stage=rule.stage)


def rule_for(policy: TrustPolicy, role: Role) -> tuple[int, Rule] | None:
    """The policy's rule for `role` and its index; sound policies have one at most."""
    return next(((index, rule) for index, rule in enumerate(policy.rules) if role_of(rule) == role), None)
