"""What the operator asserts of a run, and what the policy asks for: class and scope; and versions of releases.

The rule: class and scope are somebody's word, so they count only from a signer who may give it; and what was
asserted must be among what was asked for, exactly. No class stands in for another and no scope includes another: a
run on reference-cpu is none on h20-4x8, and a receipt of execution says nothing about numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from mint2m_verify.finding import Finding, found
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.judge import Accepted
from mint2m_verify.policy.versions import order_of


def check_asserted(
    anchor: PolicyAnchor, accepted: Accepted, *, hardware_class: str, claim_scope: str, file: str
) -> Iterator[Finding]:
    """The accepted statement's class and scope: asserted by one who may, and asked for."""
    rule = accepted.rule
    if rule is None:
        return  # `policy.no-rule` was found
    entries = [item for item in anchor.document.assertions if set(item.signers) & set(accepted.signers)]
    classes = {name for item in entries for name in item.hardware_classes}
    scopes = {name for item in entries for name in item.claim_scopes}
    for member, have, allowed, asked, fault in (
        ("hardware_class", hardware_class, classes, rule.hardware_classes, "policy.hardware-class"),
        ("claim_scope", claim_scope, scopes, rule.claim_scopes, "policy.claim-scope"),
    ):
        if accepted.signers and have not in allowed:
            yield found(
                "policy.assertion-not-allowed",
                file=file,
                pointer=f"/predicate/{member}",
                expected=" or ".join(sorted(allowed)) or "nothing of the kind",
                actual=f"{have}, by {', '.join(accepted.signers)}",
            )
        if asked is not None and have not in asked:
            yield found(fault, file=file, pointer=f"/predicate/{member}", expected=" or ".join(asked), actual=have)


def check_grant(anchor: PolicyAnchor, accepted: Accepted, *, grant: str | None, file: str) -> Iterator[Finding]:
    """A deployment that names a grant is signed by one who may say so; `mint2m_verify.grant` looks at the grant."""
    if accepted.rule is None or grant is None:
        return
    may = any(
        item.authorization_grant and set(item.signers) & set(accepted.signers) for item in anchor.document.assertions
    )
    if accepted.signers and not may:
        yield found(
            "policy.assertion-not-allowed",
            file=file,
            pointer="/authorization_grant",
            expected="null, or a signer who may assert a grant",
            actual=f"{grant}, by {', '.join(accepted.signers)}",
        )


def check_version(
    anchor: PolicyAnchor, accepted: Accepted, version: str, *, file: str | None = None
) -> Iterator[Finding]:
    """A release is at least as new as the rule's minimum; what is no version is older than any."""
    rule = accepted.rule
    if rule is None or rule.minimum_version is None:
        return
    least, have = order_of(rule.minimum_version), order_of(version)
    if least is None or have is None or have < least:
        expected = f"at least {rule.minimum_version}, by policy {anchor.document.name}"
        yield found("policy.version-too-old", file=file, expected=expected, actual=version)
