"""Whether what the auditor brought vouches for the statement that a bundle is signed by.

The rule: a statement comes out of here only where the anchor vouches for it, and nothing else of the archive is read
without one. All signatures are over one statement. A policy counts them; a key must have made the first; what it
cannot judge is not unpacked either.
"""

from __future__ import annotations

from dataclasses import dataclass

from mint2m_verify.anchor import CONSISTENT_MODE, Anchor, ConsistencyOnly, DigestAnchor, KeyAnchor, NoAnchor
from mint2m_verify.bundle.head import Head
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import drain
from mint2m_verify.policy import PolicyAnchor, check_required, check_version, judge_signatures
from mint2m_verify.policy.roles import RELEASE
from mint2m_verify.release.statement import ReleaseStatement, parse_release
from mint2m_verify.seal import short
from mint2m_verify.signing import key_id
from mint2m_verify.sigstore_bundle import Envelope, SignedBundle, read_bundle, verify_bundle
from mint2m_verify.statement import PAYLOAD_TYPE
from mint2m_verify.vouching import policy_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Who vouches: `statement` is None where nobody does.

    `judged` are the members whose signature was verified and counts. `notes` are what this leaves open, in words.
    """

    findings: tuple[Finding, ...]
    statement: ReleaseStatement | None = None
    mode: str = "none"
    signers: tuple[str, ...] = ()
    judged: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    words: str = "none"


def judge(head: Head, anchor: Anchor) -> Authority:
    """The statement of `head`, if `anchor` vouches for it; without an anchor it may be read and is not trusted."""
    try:
        bundles = tuple(read_bundle(signature.raw, file=signature.name) for signature in head.signatures)
        payload = _one_payload(bundles)
        match anchor:
            case PolicyAnchor():
                return _by_policy(anchor, bundles, payload)
            case KeyAnchor():
                return _by_key(anchor, bundles, payload)
            case DigestAnchor():
                return _by_digest(anchor, bundles, payload)
            case NoAnchor():
                statement = parse_release(payload, file=bundles[0].file)
                return Authority(findings=(found("trust.no-anchor"),), statement=statement)
            case ConsistencyOnly():
                statement = parse_release(payload, file=bundles[0].file)
                return Authority(findings=(), statement=statement, mode=CONSISTENT_MODE, words="not asked for")
    except FindingError as fault:
        return Authority(findings=(fault.finding,))


def _one_payload(bundles: tuple[SignedBundle, ...]) -> bytes:
    """The payload that all of `bundles` are over."""
    payloads: list[bytes] = []
    for bundle in bundles:
        content = bundle.content
        if not isinstance(content, Envelope) or content.payload_type != PAYLOAD_TYPE:
            actual = content.payload_type if isinstance(content, Envelope) else "a signature without a statement"
            raise FindingError(
                found("release.statement-invalid", file=bundle.file, expected=PAYLOAD_TYPE, actual=actual)
            )
        payloads.append(content.payload)
        if payloads[0] != content.payload:
            want, have = sha256_hex(payloads[0]), sha256_hex(content.payload)
            raise FindingError(found("release.signatures-differ", file=bundle.file, expected=want, actual=have))
    return payloads[0]


def _by_policy(anchor: PolicyAnchor, bundles: tuple[SignedBundle, ...], payload: bytes) -> Authority:
    findings, accepted = drain(judge_signatures(anchor, bundles, RELEASE))
    if findings or not accepted.met or accepted.mode is None or accepted.payload != payload:
        return Authority(findings=findings or (found("verify.not-reached", file=bundles[0].file),))
    statement = parse_release(payload, file=bundles[0].file)
    short_of = (
        *check_version(anchor, accepted, statement.version, file=bundles[0].file),
        *check_required(anchor, accepted, (RELEASE,)),
    )
    if short_of:
        return Authority(findings=short_of)
    return Authority(
        findings=(),
        statement=statement,
        mode=accepted.mode,
        signers=accepted.signers,
        judged=frozenset(bundle.file for bundle in bundles if _counts(anchor, bundle)),
        notes=policy_notes(accepted),
        words=f"{', '.join(accepted.signers)} over release/v1, {len(statement.subjects)} subjects",
    )


def _counts(anchor: PolicyAnchor, bundle: SignedBundle) -> bool:
    """Whether this signature is one of those that the policy counted: asked about it alone, it names a signer."""
    _, accepted = drain(judge_signatures(anchor, (bundle,), RELEASE))
    return bool(accepted.signers)


def _by_key(anchor: KeyAnchor, bundles: tuple[SignedBundle, ...], payload: bytes) -> Authority:
    first = bundles[0]
    if first.material != "public-key":
        raise FindingError(found("signature.not-by-key", file=first.file))
    result = verify_bundle(first, root=None, keys=(anchor.key,))
    if result.verified is None:
        return Authority(findings=result.findings)
    statement = parse_release(payload, file=first.file)
    mine = key_id(anchor.key)
    return Authority(
        findings=(),
        statement=statement,
        mode="managed-key",
        signers=(mine,),
        judged=frozenset({first.file}),
        notes=(
            "whether the key was revoked after it was given to you",
            *(f"{bundle.file}: a co-signature, which --key does not judge (a policy does)" for bundle in bundles[1:]),
        ),
        words=f"{short(mine)} over release/v1, {len(statement.subjects)} subjects",
    )


def _by_digest(anchor: DigestAnchor, bundles: tuple[SignedBundle, ...], payload: bytes) -> Authority:
    have = sha256_hex(payload)
    if have != anchor.sha256:
        raise FindingError(found("trust.digest-mismatch", file=bundles[0].file, expected=anchor.sha256, actual=have))
    statement = parse_release(payload, file=bundles[0].file)
    words = f"payload {short(have)}, {len(statement.subjects)} subjects"
    notes = ("who signed the release: the digest names its statement, not its signer",)
    return Authority(findings=(), statement=statement, mode="digest", words=words, notes=notes)
