"""From a verified bundle to the signer that the policy calls by name, and whether its signature counts.

The rule: a signature counts for one role when the policy knows who made it, lets that signer sign this role under the
root that vouched, and everything that the policy needs of the signer was verified. Names are for people: what is
distinct is the key, or the (issuer, SAN) pair.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from mint2m_verify.documents.trust_policy import ManagedKey, PolicySigner, Rule
from mint2m_verify.finding import Finding, found
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.soundness import revocation
from mint2m_verify.sigstore_bundle.identity import matches
from mint2m_verify.sigstore_bundle.model import CertificateSigner, KeySigner, SignedTime, Verified
from mint2m_verify.times import parse_time

Mode: TypeAlias = Literal["public-good", "private-root", "managed-key", "self-asserted"]

#: From what says most about who signed to what says least.
MODES: tuple[Mode, ...] = ("public-good", "private-root", "managed-key", "self-asserted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A signature that counts. `distinct` is what thresholds count; `time` is the earliest verified one."""

    file: str
    signer: str
    distinct: tuple[str, ...]
    mode: Mode
    times: tuple[SignedTime, ...]
    logged: bool

    @property
    def certified(self) -> bool:
        """Whether a certificate vouches for the signer, and so an authority of the root."""
        return self.mode in ("public-good", "private-root")

    @property
    def time(self) -> datetime | None:
        return min((time.time for time in self.times), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A good signature, or one that nobody here can check, by somebody whom the policy does not know.

    `reasons` say why where that is more than not being known.
    """

    file: str
    who: str
    reasons: tuple[Finding, ...] = ()


def weakest(modes: Sequence[Mode]) -> Mode:
    """The mode of several signatures together: that of the one that says least."""
    return max(modes, key=MODES.index)


def describe(signer: CertificateSigner | KeySigner) -> str:
    """Who signed, for people."""
    if isinstance(signer, KeySigner):
        return f"key {signer.spki_sha256}"
    return f"{signer.san} of {signer.issuer}"


def has_roots(anchor: PolicyAnchor, verified: Verified) -> bool:
    """Whether the policy gives this signer roots, under which log entries and timestamps then count."""
    return any(signer.roots for signer in _known(anchor, verified))


def vote(anchor: PolicyAnchor, verified: Verified, rule: Rule | None) -> Generator[Finding, None, Vote | Stranger]:
    """What this signature counts for; a signer whom the policy knows and who falls short is a finding.

    Returns:
        The vote, or a stranger where it is none of the policy's signers. With findings, what is returned counts for
        nothing.
    """
    file, who = verified.bundle.file, verified.signer
    known = _known(anchor, verified)
    if not known:
        return Stranger(file=file, who=describe(who))
    may = [signer for signer in known if rule is not None and signer.name in rule.signers]
    if rule is not None and not may and all(revocation(anchor.document, signer) is None for signer in known):
        names = ", ".join(signer.name for signer in known)
        yield found("policy.signer-not-allowed", file=file, expected=" or ".join(rule.signers), actual=names)
    best: list[Finding] | None = None
    for signer in may or known:
        faults = list(_faults(anchor, verified, signer))
        if not faults:
            return _vote(anchor, verified, signer)
        best = faults if best is None or len(faults) < len(best) else best
    yield from best or ()
    return _vote(anchor, verified, (may or known)[0])


def _vote(anchor: PolicyAnchor, verified: Verified, signer: PolicySigner) -> Vote:
    who = verified.signer
    distinct: tuple[str, ...]
    if isinstance(who, KeySigner):
        distinct, mode = ("key", who.spki_sha256), _key_mode(signer)
    else:
        distinct, mode = ("pair", who.issuer, who.san), _root_mode(anchor)
    return Vote(
        file=verified.bundle.file,
        signer=signer.name,
        distinct=distinct,
        mode=mode,
        times=verified.times,
        logged=verified.logged,
    )


def _key_mode(signer: PolicySigner) -> Mode:
    return "self-asserted" if signer.key is None else signer.key.mode


def _root_mode(anchor: PolicyAnchor) -> Mode:
    """What the policy calls the root; a certificate never verifies without one."""
    root = anchor.named_root
    return "self-asserted" if root is None else root.mode


def _known(anchor: PolicyAnchor, verified: Verified) -> list[PolicySigner]:
    """Signers of the policy that this key or identity is, by key digest or by pattern, whatever else they need."""
    who = verified.signer
    if isinstance(who, KeySigner):
        return [s for s in anchor.document.signers if s.key is not None and s.key.sha256 == who.spki_sha256]
    return [
        signer
        for signer in anchor.document.signers
        if signer.identity is not None
        and matches(signer.identity.san, who.san)
        and matches(signer.identity.issuer, who.issuer)
    ]


def _faults(anchor: PolicyAnchor, verified: Verified, signer: PolicySigner) -> Iterator[Finding]:
    """Why this signature by `signer` does not count, all reasons."""
    file, who = verified.bundle.file, verified.signer
    reason = revocation(anchor.document, signer)
    if reason is not None:
        yield found("policy.revoked", file=file, expected=f"signer {signer.name} not revoked", actual=reason)
    root = anchor.named_root
    if signer.roots and (root is None or root.name not in signer.roots):
        actual = "none" if root is None else root.name
        yield found("policy.root-not-for-signer", file=file, expected=" or ".join(signer.roots), actual=actual)
    if isinstance(who, CertificateSigner) and signer.identity is not None:
        for claim in signer.identity.claims:
            actual_claim = who.claim(claim.name)
            if actual_claim != claim.value:
                yield found(
                    "policy.claim-mismatch",
                    file=file,
                    pointer=claim.name,
                    expected=claim.value,
                    actual="not in the certificate" if actual_claim is None else actual_claim,
                )
    if signer.needs.transparency and not verified.logged:
        yield found("policy.transparency-missing", file=file, expected=f"a log entry, for signer {signer.name}")
    if signer.needs.timestamp and not verified.timestamped:
        yield found("policy.timestamp-missing", file=file, expected=f"an RFC 3161 timestamp, for signer {signer.name}")
    first = min((time.time for time in verified.times), default=None)
    if signer.key is not None:
        yield from _key_window(signer.key, file, first, anchor.at)
    last = max((time.time for time in verified.times), default=None)
    if last is not None and last > anchor.at:
        yield found("policy.signed-later", file=file, expected=f"by {_shown(anchor.at)}", actual=_shown(last))


def _key_window(key: ManagedKey, file: str, signed: datetime | None, at: datetime) -> Iterator[Finding]:
    """The key was valid when it signed; without a verified time now, since it could have signed just now."""
    time = at if signed is None else signed
    word = "evaluated" if signed is None else "signed"
    start = None if key.not_before is None else parse_time(key.not_before)
    end = None if key.not_after is None else parse_time(key.not_after)
    if start is not None and time < start:
        actual = f"{word} {_shown(time)}"
        yield found("policy.key-not-yet-valid", file=file, expected=f"from {key.not_before}", actual=actual)
    if end is not None and time > end:
        actual = f"{word} {_shown(time)}"
        yield found("policy.key-expired", file=file, expected=f"until {key.not_after}", actual=actual)


def _shown(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
