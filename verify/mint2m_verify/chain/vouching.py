"""Whether what the auditor brought vouches for the statements of a chain.

The rule: the anchor answers for each statement alone. A key answers for what it signed; a policy for who may sign a
plan and each stage; the digest of the last seal's payload answers for everything before it, since each seal names its
parent's payload; and nothing inside the evidence answers for anything.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from mint2m_verify.anchor import Anchor, DigestAnchor, KeyAnchor, NoAnchor
from mint2m_verify.chain.statements import KIND, PLAN_TYPE
from mint2m_verify.documents.validation import StageName
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.assertions import check_asserted
from mint2m_verify.policy.judge import Accepted, judge_signatures
from mint2m_verify.policy.roles import Role
from mint2m_verify.signing import key_id, verify_bytes
from mint2m_verify.sigstore_bundle.model import MessageSignature, SignedBundle
from mint2m_verify.sigstore_bundle.reading import read_bundle
from mint2m_verify.statement import PAYLOAD_TYPE, SEAL_TYPE, Envelope, SealStatement, is_plain, parse_bundle

#: Who may sign a validation plan is asked of a policy under this role.
PLAN_ROLE = Role(predicate_type=PLAN_TYPE)


def stage_role(stage: StageName) -> Role:
    """Who may seal this stage is asked of a policy under this role."""
    return Role(predicate_type=SEAL_TYPE, kind=KIND, stage=stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A bundle's payload and its signature: `envelope` as a key reads it, `bundle` as a policy does."""

    file: str
    payload: bytes
    envelope: Envelope | None
    bundle: SignedBundle | None


@dataclass(slots=True)
class Signers:
    """Whom a policy accepted, over all statements of a chain."""

    accepted: list[Accepted] = field(default_factory=list)


def read_signed(raw: bytes, *, file: str, anchor: Anchor) -> Signed:
    """The statement in a bundle, read as strictly as the anchor can judge it.

    Raises:
        FindingError: `json.*`, `seal.bundle-invalid`, `signature.not-by-key` or what a policy's reader refuses.
    """
    if not isinstance(anchor, PolicyAnchor) and (isinstance(anchor, KeyAnchor) or is_plain(raw, file=file)):
        envelope = parse_bundle(raw, file=file)
        return Signed(file=file, payload=envelope.payload, envelope=envelope, bundle=None)
    bundle = read_bundle(raw, file=file)
    content = bundle.content
    if isinstance(content, MessageSignature) or content.payload_type != PAYLOAD_TYPE:
        raise FindingError(found("seal.bundle-invalid", file=file, pointer="/dsseEnvelope", expected=PAYLOAD_TYPE))
    return Signed(file=file, payload=content.payload, envelope=None, bundle=bundle)


def check_signed(
    signed: Signed, anchor: Anchor, role: Role, signers: Signers, seal: SealStatement | None = None
) -> Generator[Finding, None, None]:
    """What `anchor` has against the signature of one statement; nothing where only the last seal counts.

    Args:
        seal: what the statement says where it is a seal; its class and scope count by the policy's word alone.
    """
    if isinstance(anchor, PolicyAnchor) and signed.bundle is not None:
        accepted = yield from judge_signatures(anchor, (signed.bundle,), role)
        signers.accepted.append(accepted)
        if seal is not None:
            yield from check_asserted(
                anchor,
                accepted,
                hardware_class=seal.hardware_class,
                claim_scope=seal.claim_scope,
                file=signed.file,
            )
    elif isinstance(anchor, KeyAnchor) and signed.envelope is not None:
        yield from by_key(signed.envelope, anchor, file=signed.file)


def by_key(envelope: Envelope, anchor: KeyAnchor, *, file: str) -> Iterator[Finding]:
    """The one signature against the auditor's key; the hint only says which of two things went wrong."""
    mine = key_id(anchor.key)
    if verify_bytes(envelope.signed_bytes, envelope.signature, anchor.key):
        if envelope.hint != mine:
            yield found("signature.hint-mismatch", file=file, expected=mine, actual=envelope.hint)
    elif envelope.hint == mine:
        yield found("signature.invalid", file=file, expected=f"a signature by key {mine}")
    else:
        yield found("signature.key-mismatch", file=file, expected=f"key {mine}", actual=f"key {envelope.hint}")


def check_last(payload_sha256: str | None, anchor: Anchor, *, file: str) -> Iterator[Finding]:
    """What `anchor` has against the chain as a whole, of which this is the last seal's payload."""
    if isinstance(anchor, NoAnchor):
        yield found("trust.no-anchor")
    elif isinstance(anchor, DigestAnchor) and payload_sha256 != anchor.sha256:
        yield found("trust.digest-mismatch", file=file, expected=anchor.sha256, actual=payload_sha256)
