"""From findings and rows to the one report, and the guard against accepting what was never judged."""

from __future__ import annotations

from dataclasses import dataclass

from mint2m_verify.anchor import CONSISTENT_MODE, Anchor, ConsistencyOnly, DigestAnchor, KeyAnchor, VerifyOptions
from mint2m_verify.finding import Finding, NamedDigest, Report, Standing, Trust, found
from mint2m_verify.findings import Findings
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.seal import Seal, short
from mint2m_verify.signing import key_id
from mint2m_verify.vouching import Vouched

#: Findings that leave the anchor without force: no mode and no signer is named beside them.
_UNANCHORED = frozenset(
    {
        "trust.no-anchor",
        "trust.key-inside-evidence",
        "trust.policy-inside-evidence",
        "trust.no-seal",
        "trust.digest-mismatch",
        "signature.invalid",
        "signature.key-mismatch",
        "signature.hint-mismatch",
        "signature.not-by-key",
        "seal.missing",
        "seal.bundle-invalid",
        "seal.invalid",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What was verified, by which command, and what the verdict does not establish."""

    subject: str
    command: str
    not_checked: tuple[str, ...]
    digests: tuple[NamedDigest, ...] = ()


def finish(
    about: About, log: Findings, anchor: Anchor, options: VerifyOptions, seal: Seal | None, vouched: Vouched
) -> Report:
    """The report; a row that failed or was not reached without any finding becomes one, so that nothing slips by."""
    stuck = [*log.unreached, *(row.required for row in log.requirements if row.standing is Standing.FAILED)]
    if stuck and not log.findings:
        log.add([found("verify.not-reached", actual=", ".join(stuck))])
    anchored = not any(_leaves_unanchored(fault) for fault in log.findings) and not vouched.findings
    trust = _trust(anchor, about, seal, vouched, anchored=anchored)
    return Report(
        subject=about.subject,
        command=about.command,
        requirements=log.requirements,
        findings=log.findings,
        not_checked=(*about.not_checked, *vouched.notes),
        trust=trust,
        claim_scope=seal.statement.claim_scope
        if seal is not None and anchored and not isinstance(anchor, ConsistencyOnly)
        else None,
        evaluated_at=anchor.evaluated_at if isinstance(anchor, PolicyAnchor) else options.at,
        summary=_summary(log, anchor, trust, anchored=anchored, sealed=seal is not None),
    )


def _leaves_unanchored(fault: Finding) -> bool:
    """Whether the finding leaves the anchor without force: every one of a policy's own does, whatever it is about."""
    return fault.id in _UNANCHORED or fault.id.startswith("policy.")


def _trust(anchor: Anchor, about: About, seal: Seal | None, vouched: Vouched, *, anchored: bool) -> Trust:
    digests = list(about.digests)
    if seal is not None:
        digests.insert(0, NamedDigest(name="seal", sha256=seal.statement.sha256))
    mode = vouched.mode if anchored else "none"
    signers = vouched.signers if anchored else ()
    match anchor:
        case PolicyAnchor():
            if anchor.root is not None:
                digests.insert(0, NamedDigest(name="trusted-root", sha256=anchor.root.sha256))
            digests.insert(0, NamedDigest(name="policy", sha256=anchor.sha256))
            shown = f"policy {anchor.document.name}"
            return Trust(mode=mode, anchor=shown, signers=signers, digests=tuple(digests))
        case KeyAnchor():
            mine = key_id(anchor.key)
            digests.insert(0, NamedDigest(name="key", sha256=mine))
            return Trust(mode=mode, anchor=f"key {mine}", signers=signers, digests=tuple(digests))
        case DigestAnchor():
            return Trust(mode=mode, anchor=f"sha256 {anchor.sha256}", digests=tuple(digests))
        case ConsistencyOnly():
            return Trust(mode=CONSISTENT_MODE, digests=tuple(digests))
        case _:
            return Trust(digests=tuple(digests))


def _summary(log: Findings, anchor: Anchor, trust: Trust, *, anchored: bool, sealed: bool) -> str:
    if not log.findings:
        match anchor:
            case PolicyAnchor():
                return f"signed by {', '.join(trust.signers)}, {trust.mode}, under {trust.anchor}"
            case KeyAnchor():
                kind = "ephemeral key, self-asserted," if trust.mode == "self-asserted" else "managed key"
                return f"signed by {kind} {short(key_id(anchor.key))}"
            case DigestAnchor():
                return f"the evidence that digest {short(anchor.sha256)} names"
            case _:
                return trust.mode
    ids = {fault.id for fault in log.findings}
    if ids == {"trust.no-anchor"}:
        return "The evidence is consistent with itself: --consistency-only shows that, and no more."
    trusted = isinstance(anchor, KeyAnchor | PolicyAnchor)
    if anchored and sealed and trusted and any(id.startswith("tree.") for id in ids):
        return "The seal itself is genuine: what differs was changed after it was signed."
    return ""
