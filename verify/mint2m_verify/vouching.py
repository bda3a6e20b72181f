"""Whether what the auditor brought vouches for a seal, and in what words the report says so.

The rule: the question is asked once, before anything of the run is judged, and its answer is one value: findings, or
who signed and how the auditor knows. A row, a mode or a signer's name in the report comes from that value and nowhere
else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mint2m_verify import layout
from mint2m_verify.anchor import CONSISTENT_MODE, Anchor, ConsistencyOnly, DigestAnchor, KeyAnchor, NoAnchor
from mint2m_verify.documents import Deployment
from mint2m_verify.finding import Finding, Standing, found
from mint2m_verify.findings import Check, Findings, drain
from mint2m_verify.grant import check_granted
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.seal import Seal, short
from mint2m_verify.signing import key_id, verify_bytes
from mint2m_verify.statement import Envelope

if TYPE_CHECKING:
    from mint2m_verify.policy import Accepted  # loaded where there is a policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """An anchor's answer about a seal.

    `mode` and `signers` say how and by whom, where there are no findings. `accepted` is the policy's own answer.
    `notes` are what the answer leaves open, in words.
    """

    findings: tuple[Finding, ...]
    words: str
    mode: str = "none"
    signers: tuple[str, ...] = ()
    accepted: Accepted | None = None
    notes: tuple[str, ...] = ()

    def check(self) -> Check:
        """The answer as a check, for the report's table."""
        yield from self.findings
        return self.words


def vouch(seal: Seal | None, anchor: Anchor) -> Vouched:
    """Whether `anchor` vouches for `seal`; None is a seal that could not be read, for which a finding exists."""
    if seal is None:
        findings = (found("trust.no-anchor"),) if isinstance(anchor, NoAnchor) else ()
        return Vouched(findings=findings, words="no seal")
    count = len(seal.statement.subjects)
    match anchor:
        case PolicyAnchor():
            return _by_policy(seal, anchor)
        case KeyAnchor():
            return _by_key(seal, anchor)
        case DigestAnchor():
            right = seal.statement.sha256 == anchor.sha256
            differs = found(
                "trust.digest-mismatch", file=layout.SEAL, expected=anchor.sha256, actual=seal.statement.sha256
            )
            return Vouched(
                findings=() if right else (differs,),
                words=f"payload {short(anchor.sha256)}, {count} subjects",
                mode="digest",
                notes=("who signed the seal: the digest names its content, not its signer",),
            )
        case NoAnchor():
            return Vouched(findings=(found("trust.no-anchor"),), words="none")
        case ConsistencyOnly():
            return Vouched(findings=(), words=f"not asked for; {count} subjects", mode=CONSISTENT_MODE)


def _by_key(seal: Seal, anchor: KeyAnchor) -> Vouched:
    """The key vouches where any of the signatures over the seal is its own: all are over the same bytes."""
    mine = key_id(anchor.key)
    its_own = tuple(s.file for s in seal.by_keys if mine == s.envelope.hint and _verifies(s.envelope, anchor))
    others = tuple(
        f"{name}: a signature by somebody else, which --key does not judge (a policy does)"
        for name in seal.files
        if name not in its_own
    )
    return Vouched(
        findings=tuple(_signatures(seal, anchor)),
        words=f"{short(mine)} over seal/v1, {len(seal.statement.subjects)} subjects",
        mode="self-asserted" if seal.statement.signer == "ephemeral" else "managed-key",
        signers=(mine,),
        notes=("whether the key was revoked after it was given to you", *others),
    )


def _verifies(envelope: Envelope, anchor: KeyAnchor) -> bool:
    return verify_bytes(envelope.signed_bytes, envelope.signature, anchor.key)


def _signatures(seal: Seal, anchor: KeyAnchor) -> Iterator[Finding]:
    """The signatures against the auditor's key; a hint is only used to say which of two things went wrong.

    One that says it is the key's own and is not, or is and says otherwise, is a fault beside any number of right ones.
    """
    mine, ours = key_id(anchor.key), False
    for signature in seal.by_keys:
        envelope, file = signature.envelope, signature.file
        if _verifies(envelope, anchor):
            ours = True
            if envelope.hint != mine:
                yield found("signature.hint-mismatch", file=file, expected=mine, actual=envelope.hint)
        elif envelope.hint == mine:
            ours = True  # told as what it is, and not once more as nobody's
            yield found("signature.invalid", file=file, expected=f"a signature by key {mine}")
    if ours:
        return
    if not seal.by_keys:
        yield found("signature.not-by-key", file=layout.SEAL, pointer="/verificationMaterial")
        return
    hints = ", ".join(f"key {signature.envelope.hint}" for signature in seal.by_keys)
    yield found("signature.key-mismatch", file=seal.by_keys[0].file, expected=f"key {mine}", actual=hints)


def _by_policy(seal: Seal, anchor: PolicyAnchor) -> Vouched:
    from mint2m_verify.policy import TRAINING_RUN, judge_signatures
    from mint2m_verify.policy.signers import weakest

    findings, accepted = drain(judge_signatures(anchor, seal.bundles, TRAINING_RUN))
    mode = "none"
    if accepted.mode is not None:
        # The seal's own word can only make its signer less: a key made for one run is nobody's managed key.
        ephemeral = seal.statement.signer == "ephemeral"
        mode = weakest([accepted.mode, "self-asserted"]) if ephemeral else accepted.mode
    return Vouched(
        findings=findings,
        words=f"{', '.join(accepted.signers) or 'nobody'}: {mode}, {len(seal.statement.subjects)} subjects",
        mode=mode,
        signers=accepted.signers,
        accepted=accepted,
        notes=policy_notes(accepted),
    )


def policy_notes(accepted: Accepted) -> tuple[str, ...]:
    """What no offline verification under a policy can know, and what this one set aside."""
    notes = [
        *accepted.set_aside,
        "whether a key, certificate or statement was revoked after the policy was written",
        "whether the signer's machine and the signer were honest: a signature shows who signed, not what was done",
    ]
    sources = {time.source for time in accepted.times}
    if not sources:
        notes.append("when it was signed: no signature that counts has a verified time")
    if "transparency-log" in sources or accepted.logged:
        notes.append("whether the log shows everybody the same entries, and whether anybody watches it")
    if accepted.certified:
        notes.append("whether the authorities of the trusted root issued only what they should have")
    return tuple(notes)


def judge_policy(
    log: Findings, anchor: Anchor, seal: Seal | None, vouched: Vouched, *, deployment: Deployment | None, whole: bool
) -> None:
    """The rows that only a policy has: what was asserted, and what must be there beside this evidence.

    Args:
        log: takes the rows.
        anchor: nothing is added for any other anchor than a policy.
        seal: the seal that was judged.
        vouched: the policy's answer about it.
        deployment: the run's, where it could be read.
        whole: whether the whole run is at hand, so that a deployment should be.
    """
    if not isinstance(anchor, PolicyAnchor):
        return
    required = "class and scope as the policy has them"
    if seal is None or vouched.accepted is None or (whole and deployment is None):
        log.not_reached(required, (layout.SEAL,) if seal is None else (layout.DEPLOYMENT,))
    else:
        check = _asserted(anchor, seal, vouched, vouched.accepted, deployment, whole=whole)
        log.judge(required, Standing.ATTESTED_ONLY, check)
    if vouched.accepted is not None and vouched.accepted.rule is not None and vouched.accepted.rule.requires:
        log.judge("what the policy requires beside it", Standing.CHECKED, _beside(anchor, vouched.accepted))


def _asserted(
    anchor: PolicyAnchor,
    seal: Seal,
    vouched: Vouched,
    accepted: Accepted,
    deployment: Deployment | None,
    *,
    whole: bool,
) -> Check:
    from mint2m_verify.policy import check_asserted, check_grant

    statement = seal.statement
    # Whoever may assert it may be the one whose signature is missing.
    cause = next(iter(vouched.findings), None) if not accepted.met else None
    for fault in check_asserted(
        anchor,
        accepted,
        hardware_class=statement.hardware_class,
        claim_scope=statement.claim_scope,
        file=layout.SEAL,
    ):
        yield fault.following(cause) if fault.id == "policy.assertion-not-allowed" else fault
    grant = None if deployment is None else deployment.authorization_grant
    yield from check_grant(anchor, accepted, grant=grant, file=layout.DEPLOYMENT)
    if accepted.rule is not None and accepted.rule.authorization_required and not whole:
        yield found("policy.authorization-missing", file=layout.GRANT, actual="not looked at", hint=_WHOLE)
    return f"{statement.hardware_class}, {statement.claim_scope}"


def _beside(anchor: PolicyAnchor, accepted: Accepted) -> Check:
    from mint2m_verify.policy import TRAINING_RUN, check_required

    yield from check_required(anchor, accepted, (TRAINING_RUN,) if accepted.met else ())
    return "all there"


def judge_grant(log: Findings, anchor: Anchor, vouched: Vouched, *, raw: bytes | None, deployment: str | None) -> None:
    """The row of the authorization grant, where the policy's rule for this run requires one.

    Args:
        log: takes the row.
        anchor: nothing is added for any other anchor than a policy.
        vouched: the policy's answer about the seal.
        raw: the grant's bundle; None where there is none.
        deployment: digest of the run's deployment file; None where it is not at hand.
    """
    accepted = vouched.accepted
    if not isinstance(anchor, PolicyAnchor) or accepted is None or accepted.rule is None:
        return
    if not accepted.rule.authorization_required:
        return
    required = "an authorization grant by whom the policy names"
    if deployment is None:
        log.not_reached(required, (layout.DEPLOYMENT,))
        return
    check = check_granted(anchor, raw, kind="training", sha256=deployment, times=accepted.times, file=layout.GRANT)
    log.judge(required, Standing.CHECKED, check)


_WHOLE = "mint2m verify run DIR looks at the grant"
