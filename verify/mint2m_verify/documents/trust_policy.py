"""The trust policy as a document: who may sign what, under which roots, and what must be there. Data, no behaviour.

The rule: a policy says everything that its verdicts depend on, and nothing in it is a program: names, digests, numbers
and patterns with at most one trailing `*`. Whether it makes sense is `mint2m_verify.policy`'s subject.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mint2m_verify.documents.base import Document

RootMode = Literal["public-good", "private-root"]
KeyMode = Literal["managed-key", "self-asserted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRoot:
    """A Sigstore trusted root by the SHA-256 of its file, and what the verdict calls it."""

    name: str
    mode: RootMode
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateClaim:
    """A claim that a signing certificate must carry, exactly."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SigstoreIdentity:
    """Who signs with a certificate: `san` and `issuer` are exact, or a beginning and one trailing `*`."""

    san: str
    issuer: str
    claims: tuple[CertificateClaim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedKey:
    """Who signs with a key: its SPKI digest and PEM, when it is valid, and why it is revoked, if it is."""

    sha256: str
    pem: str
    mode: KeyMode
    not_before: str | None
    not_after: str | None
    revoked: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be verified beside the signature: an entry in a transparency log, an RFC 3161 time."""

    transparency: bool
    timestamp: bool

    @property
    def any(self) -> bool:
        return self.transparency or self.timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySigner:
    """A signer by name; exactly one of `identity` and `key` is given in a sound policy."""

    name: str
    identity: SigstoreIdentity | None
    key: ManagedKey | None
    roots: tuple[str, ...]
    needs: Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Who may sign statements of one (predicate type, kind, stage), and what such a statement must satisfy."""

    name: str
    predicate_type: str
    kind: str | None
    stage: str | None
    signers: tuple[str, ...]
    threshold: int
    requires: tuple[str, ...]
    hardware_classes: tuple[str, ...] | None
    claim_scopes: tuple[str, ...] | None
    authorization_required: bool
    minimum_version: str | None
    maximum_age_days: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """What these signers may assert of a run; their word counts nowhere else."""

    signers: tuple[str, ...]
    hardware_classes: tuple[str, ...]
    claim_scopes: tuple[str, ...]
    authorization_grant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedDigest:
    """A key, certificate, statement payload, artifact or root that counts for nothing."""

    sha256: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustPolicy(Document):
    """The auditor's bar; it comes through another channel than the evidence."""

    NAME: ClassVar[str] = "trust-policy"

    name: str
    not_before: str | None
    not_after: str
    roots: tuple[PolicyRoot, ...]
    signers: tuple[PolicySigner, ...]
    rules: tuple[Rule, ...]
    assertions: tuple[Assertion, ...]
    revoked: tuple[RevokedDigest, ...]
