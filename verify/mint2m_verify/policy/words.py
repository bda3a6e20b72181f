"""A policy in plain words: what it accepts, from whom, and what it does not.

The rule: the words come from the document alone and leave nothing out, so that whoever reads them knows what a verdict
under this policy will rest on. Every string of the policy passes `escape`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mint2m_verify.documents.trust_policy import ManagedKey, PolicySigner, Rule, SigstoreIdentity, TrustPolicy
from mint2m_verify.policy.roles import ARTIFACT, role_of
from mint2m_verify.policy.soundness import ABOUT_RUNS, SCOPES_OF_CLASS, assertable, revocation
from mint2m_verify.render.escape import escape


def policy_text(policy: TrustPolicy, sha256: str) -> str:
    """The whole policy for people; it is sound, or the words would promise what it does not keep."""
    return "\n".join(_lines(policy, sha256))


def _lines(policy: TrustPolicy, sha256: str) -> Iterator[str]:
    yield f"policy {escape(policy.name)}   {sha256}"
    start = "" if policy.not_before is None else f"from {escape(policy.not_before)} "
    yield f"valid {start}until {escape(policy.not_after)}"
    yield ""
    yield "Signers"
    for signer in policy.signers:
        yield from _signer(policy, signer)
    yield ""
    yield "Accepted"
    for rule in policy.rules:
        yield from _rule(policy, rule)
    yield ""
    yield "Not accepted"
    yield from (f"  {line}" for line in _not_accepted(policy))


def _signer(policy: TrustPolicy, signer: PolicySigner) -> Iterator[str]:
    revoked = revocation(policy, signer)
    mark = "" if revoked is None else f"   REVOKED: {escape(revoked)}"
    yield f"  {escape(signer.name)}{mark}"
    if signer.key is not None:
        yield from (f"    {line}" for line in _key(signer.key))
    if signer.identity is not None:
        yield from (f"    {line}" for line in _identity(signer.identity))
    if signer.roots:
        roots = {root.name: root for root in policy.roots}
        named = " or ".join(f"{escape(name)} ({roots[name].mode}, {roots[name].sha256})" for name in signer.roots)
        yield f"    counts under root {named}"
    needs = [
        words
        for needed, words in (
            (signer.needs.transparency, "an entry in a transparency log"),
            (signer.needs.timestamp, "an RFC 3161 timestamp"),
        )
        if needed
    ]
    yield f"    needs {' and '.join(needs)} of that root" if needs else "    needs no log entry and no timestamp"


def _key(key: ManagedKey) -> Iterator[str]:
    mode = "a managed key" if key.mode == "managed-key" else "a key that vouches for itself only (self-asserted)"
    yield f"key {key.sha256}, {mode}"
    window = [
        f"{word} {escape(time)}"
        for word, time in (("from", key.not_before), ("until", key.not_after))
        if time is not None
    ]
    if window:
        yield f"valid {' '.join(window)}, by verified signing time; without one, at the time of verification"


def _identity(identity: SigstoreIdentity) -> Iterator[str]:
    for word, pattern in (("identity", identity.san), ("issuer", identity.issuer)):
        rest = f"{escape(pattern[:-1])} and whatever follows" if pattern.endswith("*") else f"exactly {escape(pattern)}"
        yield f"{word} {rest}"
    for claim in identity.claims:
        yield f"certificate claim {escape(claim.name)} exactly {escape(claim.value)}"


def _rule(policy: TrustPolicy, rule: Rule) -> Iterator[str]:
    what = (
        "a file signed directly" if rule.predicate_type == ARTIFACT else f"a statement of {escape(str(role_of(rule)))}"
    )
    yield f"  {escape(rule.name)}: {what}"
    count = "one" if rule.threshold == 1 else f"{rule.threshold} distinct keys or identities"
    yield f"    signed by {count} of {_named(rule.signers)}"
    if rule.predicate_type in ABOUT_RUNS:
        pairs = "; ".join(f"{one} with {scope}" for one, scope in assertable(policy, rule))
        yield f"    of hardware class and claim scope {pairs}"
        for item in policy.assertions:
            both = [name for name in item.signers if name in rule.signers]
            grant = " and authorization grants" if item.authorization_grant else ""
            said = ", ".join((*item.hardware_classes, *item.claim_scopes)) or "nothing else"
            if both:
                yield f"    {_named(both)} may assert {said}{grant}"
    if rule.authorization_required:
        yield "    with an authorization grant by whom the rule for grants names"
    if rule.minimum_version is not None:
        yield f"    of version {escape(rule.minimum_version)} or newer"
    if rule.maximum_age_days is not None:
        yield f"    signed at most {rule.maximum_age_days} days before; no verified time is no age (exit 3)"
    if rule.requires:
        yield f"    only together with what these rules accept: {_named(rule.requires)}"


def _not_accepted(policy: TrustPolicy) -> Iterator[str]:
    yield "statements of any other type, kind or stage, whoever signed them"
    yield "signatures by anybody else: they are named and count for nothing"
    rules = [rule for rule in policy.rules if rule.predicate_type in ABOUT_RUNS]
    taken = {one for rule in rules for one, _ in assertable(policy, rule)}
    scopes = {scope for rule in rules for _, scope in assertable(policy, rule)}
    refused = sorted(SCOPES_OF_CLASS.keys() - taken)
    known = {scope for group in SCOPES_OF_CLASS.values() for scope in group}
    if rules and refused:
        yield f"runs of hardware class {', '.join(refused)}"
    if rules and known - scopes:
        yield f"runs of claim scope {', '.join(sorted(known - scopes))}"
    timeless = [s.name for s in policy.signers if not s.roots]
    aged = [rule for rule in policy.rules if rule.maximum_age_days is not None and set(rule.signers) <= set(timeless)]
    for rule in aged:
        yield f"anything by rule {escape(rule.name)}: it asks for an age, and no root tells its signers' times"
    for item in policy.revoked:
        yield f"{item.sha256}, revoked: {escape(item.reason)}"


def _named(names: Sequence[str]) -> str:
    return ", ".join(escape(name) for name in names)
