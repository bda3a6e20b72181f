"""Signatures under a policy: each is verified, each that counts is counted once, and a rule says if that is enough.

The rule: every bundle that is brought is looked at, and none is believed for what it claims. A signature by somebody
whom the policy knows must be right in every respect, or the evidence is refused; one by a stranger is set aside,
named, and counts for nothing. An empty list of bundles, a threshold that is not met and a role without a rule are no
acceptance.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from mint2m_verify.canonical import Limits, parse
from mint2m_verify.documents.trust_policy import Rule
from mint2m_verify.finding import Finding, FindingError, Verdict, found
from mint2m_verify.findings import drain
from mint2m_verify.policy.anchor import PolicyAnchor
from mint2m_verify.policy.roles import ARTIFACT, OWN_TYPES, Role, rule_for
from mint2m_verify.policy.signers import Mode, Stranger, Vote, has_roots, vote, weakest
from mint2m_verify.sigstore_bundle.model import Artifact, Envelope, SignedBundle, SignedTime, Verified
from mint2m_verify.statement import BUNDLE_LIMIT, PAYLOAD_TYPE, STATEMENT_TYPE

_PAYLOAD_LIMITS = Limits(size_bytes=BUNDLE_LIMIT, depth=32, members=2_000_000)

#: What `verify_bundle` says of a key bundle whose hint names none of the keys it was given, or where it was given none.
_STRANGE_KEY = ({"signature.key-mismatch"}, {"sigstore.key-needed"})

#: What it says of a certificate that no authority of the root issued: an honest one may be for other auditors.
_OTHER_ROOT = "sigstore.chain-untrusted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Whose signatures counted for `role`.

    `signers` are the policy's names, each once, and `files` the bundles that count; `mode` is that of the weakest,
    None where none counted; `logged` and `certified` say that one of them has a log entry, is by a certificate.
    `payload` is the one statement that all bundles carry, None for plain files. `set_aside` says in words which
    signatures counted for nothing. `met`: the rule's threshold and its age were met; where it is False, findings said
    why.
    """

    role: Role
    rule: Rule | None
    signers: tuple[str, ...]
    files: tuple[str, ...]
    mode: Mode | None
    times: tuple[SignedTime, ...]
    payload: bytes | None
    logged: bool
    certified: bool
    set_aside: tuple[str, ...]
    met: bool


def judge_signatures(
    anchor: PolicyAnchor, bundles: Sequence[SignedBundle], role: Role
) -> Generator[Finding, None, Accepted]:
    """Whether the policy accepts a statement of `role` by these signatures, all over the same payload.

    Args:
        anchor: the policy.
        bundles: the first signature and its co-signatures, parsed.
        role: what the statement must be; its payload is held against it.
    """
    yield from _same_payload(bundles)
    for bundle in bundles:
        yield from _statement_fault(bundle, role)
    counted = yield from _count(anchor, bundles, role, None)
    return counted


def judge_artifact(
    anchor: PolicyAnchor, bundles: Sequence[SignedBundle], artifact: Artifact, role: Role | None
) -> Generator[Finding, None, tuple[Accepted, ...]]:
    """Whether the policy accepts `artifact` by these bundles, one answer for each role that they have.

    Args:
        anchor: the policy.
        bundles: statements about the artifact, signatures of its bytes, or both.
        artifact: what each of them must be about.
        role: the only role that is wanted; None takes what each bundle says of itself.
    """
    yield from _revoked(anchor, artifact.sha256, artifact.name or f"sha256:{artifact.sha256}")
    if not bundles:
        yield found("policy.threshold-not-met", expected="at least one signature", actual="no bundle")
        return ()
    by_role: dict[Role, list[SignedBundle]] = {}
    for bundle in bundles:
        if role is not None:
            yield from _statement_fault(bundle, role)
            by_role.setdefault(role, []).append(bundle)
            continue
        try:
            own = _own_role(bundle)
        except FindingError as fault:
            yield fault.finding
        else:
            by_role.setdefault(own, []).append(bundle)
    accepted = []
    for wanted, group in by_role.items():
        counted = yield from _count(anchor, group, wanted, artifact)
        accepted.append(counted)
    for item in accepted:
        yield from check_required(anchor, item, [other.role for other in accepted if other.met])
    return tuple(accepted)


def check_required(anchor: PolicyAnchor, accepted: Accepted, present: Sequence[Role]) -> Iterator[Finding]:
    """Rules that the accepted one requires, and that no accepted statement is of; `present` are the roles that are."""
    for name in accepted.rule.requires if accepted.rule is not None else ():
        wanted = next(rule for rule in anchor.document.rules if rule.name == name)
        role = Role(predicate_type=wanted.predicate_type, kind=wanted.kind, stage=wanted.stage)
        if role not in present:
            yield found("policy.required-missing", file=anchor.path.name, expected=f"{name}: {role}")


def _count(
    anchor: PolicyAnchor, bundles: Sequence[SignedBundle], role: Role, artifact: Artifact | None
) -> Generator[Finding, None, Accepted]:
    """The signatures that count for `role`."""
    chosen = rule_for(anchor.document, role)
    rule = None if chosen is None else chosen[1]
    told: list[Finding] = []
    if rule is None:
        told.append(found("policy.no-rule", file=anchor.path.name, pointer="/rules", actual=str(role)))
    votes: list[Vote] = []
    strangers: list[Stranger] = []
    for bundle in bundles:
        faults, outcome = _look(anchor, bundle, rule, artifact)
        if isinstance(outcome, Stranger):
            strangers.append(outcome)
        elif isinstance(outcome, Vote) and all(fault.verdict is Verdict.INCOMPLETE for fault in faults):
            votes.append(outcome)  # what is only incomplete is told as that, not as too few signers
        told += faults
    few = rule is not None and len({one.distinct for one in votes}) < max(1, rule.threshold)
    # Evidence may carry signatures for other auditors; a bundle that the caller named for this artifact must count.
    if few or artifact is not None:
        for stranger in strangers:
            told += stranger.reasons or (found("policy.signer-unknown", file=stranger.file, actual=stranger.who),)
    if rule is not None:
        told += [_too_few(anchor, rule, votes).following(next(iter(told), None))] if few else _age(anchor, rule, votes)
    yield from told
    content = bundles[0].content if bundles else None
    return Accepted(
        role=role,
        rule=rule,
        signers=tuple(dict.fromkeys(one.signer for one in votes)),
        files=tuple(one.file for one in votes),
        mode=weakest([one.mode for one in votes]) if votes else None,
        times=tuple(time for one in votes for time in one.times),
        payload=content.payload if isinstance(content, Envelope) else None,
        logged=any(one.logged for one in votes),
        certified=any(one.certified for one in votes),
        set_aside=tuple(
            f"a signature by a stranger, which counts for nothing: {one.who} ({one.file})" for one in strangers
        ),
        met=rule is not None and not told,
    )


def _too_few(anchor: PolicyAnchor, rule: Rule, votes: Sequence[Vote]) -> Finding:
    names = ", ".join(dict.fromkeys(one.signer for one in votes)) or "none"
    return found(
        "policy.threshold-not-met",
        file=anchor.path.name,
        pointer=f"/rules/{anchor.document.rules.index(rule)}/threshold",
        expected=f"{rule.threshold} of {', '.join(rule.signers)}",
        actual=f"{len({one.distinct for one in votes})}: {names}",
    )


def _look(
    anchor: PolicyAnchor, bundle: SignedBundle, rule: Rule | None, artifact: Artifact | None
) -> tuple[list[Finding], Vote | Stranger | None]:
    """One bundle: what is wrong with it, and what it counts for where nothing is."""
    from mint2m_verify.sigstore_bundle import verify_bundle

    if bundle.material == "certificate" and anchor.root is None:
        who = "a certificate; the policy names no identity, so nothing here can judge it"
        return [], Stranger(file=bundle.file, who=who)
    # What a bundle claims of logs and times is looked at under the roots of its signer: for a key, that is known first.
    first = None if bundle.material == "public-key" else anchor.root
    result = verify_bundle(bundle, root=first, keys=anchor.keys, artifact=artifact)
    if first is None and result.verified is not None and has_roots(anchor, result.verified):
        result = verify_bundle(bundle, root=anchor.root, keys=anchor.keys, artifact=artifact)
    verified = result.verified
    if verified is None or result.findings:
        ids = {fault.id for fault in result.findings}
        if bundle.material == "public-key" and ids in _STRANGE_KEY:
            return [], Stranger(file=bundle.file, who=f"a key that the policy does not list, hint {bundle.hint}")
        if _OTHER_ROOT in ids and all(fault.verdict is Verdict.UNTRUSTED for fault in result.findings):
            cause = next(fault for fault in result.findings if fault.id == _OTHER_ROOT)
            follow = (fault.following(cause) for fault in result.findings if fault.id != _OTHER_ROOT)
            return [], Stranger(file=bundle.file, who="a certificate of another root", reasons=(cause, *follow))
        return list(result.findings) or [found("verify.not-reached", file=bundle.file)], None
    faults, outcome = drain(vote(anchor, verified, rule))
    return [*_revocations(anchor, verified), *faults], outcome


def _revocations(anchor: PolicyAnchor, verified: Verified) -> Iterator[Finding]:
    """The statement, its subjects or the certificate is revoked; a revoked key is told with its signer."""
    digests = [verified.payload_sha256, getattr(verified.signer, "certificate_sha256", None)]
    if verified.statement is not None:
        digests += [subject.sha256 for subject in verified.statement.subjects]
    for digest in dict.fromkeys(digest for digest in digests if digest is not None):
        yield from _revoked(anchor, digest, verified.bundle.file)


def _revoked(anchor: PolicyAnchor, digest: str, file: str) -> Iterator[Finding]:
    for item in anchor.document.revoked:
        if item.sha256 == digest:
            yield found("policy.revoked", file=file, expected=f"{digest} not revoked", actual=item.reason)


def _age(anchor: PolicyAnchor, rule: Rule, votes: Sequence[Vote]) -> Iterator[Finding]:
    """Enough distinct signers signed recently enough; a signature without a verified time has no age."""
    if rule.maximum_age_days is None:
        return
    oldest = anchor.at - timedelta(days=rule.maximum_age_days)
    recent = {one.distinct for one in votes if one.time is not None and one.time >= oldest}
    if len(recent) >= rule.threshold:
        return
    timeless = {one.distinct for one in votes if one.time is None}
    expected = f"within {rule.maximum_age_days} days before {anchor.evaluated_at}"
    if len(recent) + len(timeless) >= rule.threshold:
        names = ", ".join(dict.fromkeys(one.signer for one in votes if one.time is None))
        yield found("policy.time-unknown", file=anchor.path.name, expected=expected, actual=f"no time by {names}")
    else:
        times = ", ".join(f"{one.signer} {one.time.isoformat()}" for one in votes if one.time is not None)
        yield found("policy.too-old", file=anchor.path.name, expected=expected, actual=times.replace("+00:00", "Z"))


# What the bundles carry


def _same_payload(bundles: Sequence[SignedBundle]) -> Iterator[Finding]:
    contents = [bundle.content for bundle in bundles]
    for bundle, content in zip(bundles[1:], contents[1:], strict=True):
        if not (
            isinstance(content, Envelope)
            and isinstance(contents[0], Envelope)
            and (content.payload, content.payload_type) == (contents[0].payload, contents[0].payload_type)
        ):
            yield found("policy.payload-differs", file=bundle.file, expected=f"the payload of {bundles[0].file}")


def _statement_fault(bundle: SignedBundle, role: Role) -> Iterator[Finding]:
    """The bundle carries something else than a statement of `role`."""
    try:
        own = _own_role(bundle)
    except FindingError as fault:
        yield fault.finding
        return
    if own != role:
        yield found("policy.statement-type", file=bundle.file, expected=str(role), actual=str(own))


def _own_role(bundle: SignedBundle) -> Role:
    """What the bundle's content says it is; kind and stage are read in statements of ours only.

    Raises:
        FindingError: `json.*` or `policy.statement-type`.
    """
    content = bundle.content
    if not isinstance(content, Envelope):
        return Role(predicate_type=ARTIFACT)
    statement = None
    if content.payload_type == PAYLOAD_TYPE:
        statement = parse(content.payload, file=bundle.file, limits=_PAYLOAD_LIMITS)
    if not isinstance(statement, dict) or statement.get("_type") != STATEMENT_TYPE:
        raise FindingError(
            found("policy.statement-type", file=bundle.file, expected=STATEMENT_TYPE, actual=content.payload_type)
        )
    kind, predicate = statement.get("predicateType"), statement.get("predicate")
    if not isinstance(kind, str):
        raise FindingError(found("policy.statement-type", file=bundle.file, pointer="/predicateType"))
    if not kind.startswith(OWN_TYPES) or not isinstance(predicate, dict):
        return Role(predicate_type=kind)
    named = [value if isinstance(value := predicate.get(member), str) else None for member in ("kind", "stage")]
    return Role(predicate_type=kind, kind=named[0], stage=named[1])
