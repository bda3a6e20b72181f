"""Whether a policy says something: refuses what is empty, vacuous or contradictory before it judges anything.

The rule: an auditor who brings a policy believes that it demands something. One that demands nothing accepts whatever
comes; one that can never be met was not thought through; one that says two things is read in two ways. Each of these is
the caller's fault to mend (exit 2), and none is a verdict on evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mint2m_verify.documents.trust_policy import Assertion, PolicySigner, Rule, TrustPolicy
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.grant import GRANT_TYPE
from mint2m_verify.policy.patterns import is_open, width_fault
from mint2m_verify.policy.roles import OWN_TYPES, PLAN_TYPE, RELEASE_TYPE, role_of
from mint2m_verify.policy.versions import order_of
from mint2m_verify.signing import key_id, parse_public_key, public_key_pem
from mint2m_verify.statement import SEAL_TYPE, TRAINING_TYPE
from mint2m_verify.times import parse_time

#: Which claim scopes a run of a hardware class can have at all.
SCOPES_OF_CLASS: Mapping[str, frozenset[str]] = {
    "reference-cpu": frozenset(
        {
            "reference_cpu_execution",
            "reference_cpu_numerical_correctness",
            "gradient_parity",
            "topology_rehearsal",
            "gradient_accumulation_only",
        }
    ),
    "h20-4x8": frozenset(
        {
            "2m_execution_only_not_numerical_correctness",
            "gradient_parity",
            "topology_rehearsal",
            "gradient_accumulation_only",
        }
    ),
}

#: Which stages a seal of a kind can be of.
_STAGES: Mapping[str | None, frozenset[str]] = {
    "training": frozenset({"run"}),
    "validation": frozenset({"doctor", "kernel", "nccl", "actor", "parity-32k", "parity-64k", "scale-2m"}),
}

#: Statements that are of a hardware class and a claim scope.
ABOUT_RUNS = frozenset({SEAL_TYPE, TRAINING_TYPE})

_KINDS: Mapping[str, frozenset[str | None]] = {
    SEAL_TYPE: frozenset({"training", "validation"}),
    TRAINING_TYPE: frozenset({None}),
    RELEASE_TYPE: frozenset({"release"}),
    GRANT_TYPE: frozenset({"training", "validation"}),
}


def faults(policy: TrustPolicy, *, file: str) -> Iterator[Finding]:
    """Everything that keeps `policy` from meaning something, in the order of the document."""
    yield from _window(policy.not_before, policy.not_after, "", file)
    yield from _names(policy, file)
    for index, root in enumerate(policy.roots):
        where = f"/roots/{index}"
        same = next((other for other in policy.roots[:index] if other.sha256 == root.sha256), None)
        if same is not None and same.mode != root.mode:
            yield found(
                "policy.contradictory", file=file, pointer=f"{where}/mode", expected=same.mode, actual=root.mode
            )
        elif same is not None:
            yield found("policy.duplicate", file=file, pointer=f"{where}/sha256", actual=f"root {same.name}")
        if all(root.name not in signer.roots for signer in policy.signers):
            yield found("policy.unused", file=file, pointer=where, actual=f"no signer counts under root {root.name}")
    for index, signer in enumerate(policy.signers):
        yield from _signer(policy, index, signer, file)
    if not policy.rules:
        yield found("policy.empty", file=file, pointer="/rules", expected="at least one rule")
    for index, rule in enumerate(policy.rules):
        yield from _rule(policy, index, rule, file)
    for index, assertion in enumerate(policy.assertions):
        yield from _assertion(policy, index, assertion, file)
    yield from _revoked(policy, file)


def _window(start: str | None, end: str | None, pointer: str, file: str) -> Iterator[Finding]:
    begun, ended = (None if text is None else parse_time(text) for text in (start, end))
    if begun is not None and ended is not None and begun >= ended:
        yield found(
            "policy.contradictory",
            file=file,
            pointer=f"{pointer}/not_before",
            expected=f"before {end}",
            actual=start,
        )


def _names(policy: TrustPolicy, file: str) -> Iterator[Finding]:
    for member, items in (
        ("roots", [root.name for root in policy.roots]),
        ("signers", [signer.name for signer in policy.signers]),
        ("rules", [rule.name for rule in policy.rules]),
    ):
        for index, name in enumerate(items):
            if name in items[:index]:
                yield found("policy.duplicate", file=file, pointer=f"/{member}/{index}/name", actual=name)


def _repeated(names: Sequence[str], pointer: str, file: str) -> Iterator[Finding]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield found("policy.duplicate", file=file, pointer=f"{pointer}/{index}", actual=name)


def _references(names: Sequence[str], known: Sequence[str], pointer: str, file: str) -> Iterator[Finding]:
    for index, name in enumerate(names):
        if name not in known:
            yield found("policy.unknown-name", file=file, pointer=f"{pointer}/{index}", actual=name)
    yield from _repeated(names, pointer, file)


# Signers


def _signer(policy: TrustPolicy, index: int, signer: PolicySigner, file: str) -> Iterator[Finding]:
    where = f"/signers/{index}"
    yield from _references(signer.roots, [root.name for root in policy.roots], f"{where}/roots", file)
    if (signer.identity is None) == (signer.key is None):
        actual = "neither" if signer.identity is None else "both"
        yield found("policy.contradictory", file=file, pointer=where, expected="identity or key", actual=actual)
        return
    if signer.identity is not None:
        yield from _identity(policy, index, signer, file)
    if signer.key is not None:
        yield from _key(policy, index, signer, file)
    used = any(signer.name in rule.signers for rule in policy.rules)
    revoked = revocation(policy, signer)
    if revoked is not None and used:
        yield found("policy.contradictory", file=file, pointer=where, actual=f"{signer.name} is revoked and may sign")
    if revoked is None and not used:
        yield found("policy.unused", file=file, pointer=where, actual=f"no rule lets {signer.name} sign")


def _identity(policy: TrustPolicy, index: int, signer: PolicySigner, file: str) -> Iterator[Finding]:
    where = f"/signers/{index}/identity"
    identity = signer.identity
    if identity is None:
        return
    for member, pattern in (("san", identity.san), ("issuer", identity.issuer)):
        fault = width_fault(pattern)
        if fault is not None:
            yield found("policy.too-wide", file=file, pointer=f"{where}/{member}", actual=f"{pattern}: {fault}")
    names = [claim.name for claim in identity.claims]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield found("policy.duplicate", file=file, pointer=f"{where}/claims/{number}/name", actual=name)
    if not signer.roots:
        yield found("policy.empty", file=file, pointer=f"/signers/{index}/roots", expected="a root for this identity")
    for other in policy.signers[:index]:
        if other.identity is not None and _same(other, signer):
            yield found("policy.duplicate", file=file, pointer=where, actual=f"identity of signer {other.name}")


def _same(one: PolicySigner, other: PolicySigner) -> bool:
    """One identity under two names, in whatever order its claims stand."""
    if one.identity is None or other.identity is None:
        return False
    sides = [
        (i.san, i.issuer, sorted((claim.name, claim.value) for claim in i.claims))
        for i in (one.identity, other.identity)
    ]
    return sides[0] == sides[1] and bool(set(one.roots) & set(other.roots))


def _key(policy: TrustPolicy, index: int, signer: PolicySigner, file: str) -> Iterator[Finding]:
    where = f"/signers/{index}/key"
    key = signer.key
    if key is None:
        return
    try:
        held = parse_public_key(key.pem.encode(), file=file)
    except FindingError as fault:
        yield found("policy.key-invalid", file=file, pointer=f"{where}/pem", actual=fault.finding.message)
    else:
        # Readers of PEM skip what stands around the key; here nothing may, so that nothing is there to be misread.
        if key.pem.rstrip("\n") != public_key_pem(held).decode().rstrip("\n"):
            yield found(
                "policy.key-invalid", file=file, pointer=f"{where}/pem", expected="the key's PEM and nothing else"
            )
        if key_id(held) != key.sha256:
            expected = f"{key_id(held)}, of its PEM"
            yield found(
                "policy.key-invalid", file=file, pointer=f"{where}/sha256", expected=expected, actual=key.sha256
            )
    yield from _window(key.not_before, key.not_after, where, file)
    for other in policy.signers[:index]:
        if other.key is not None and other.key.sha256 == key.sha256:
            yield found("policy.duplicate", file=file, pointer=f"{where}/sha256", actual=f"key of signer {other.name}")
    if signer.needs.any and not signer.roots:
        yield found("policy.empty", file=file, pointer=f"/signers/{index}/roots", expected="a root for what it needs")
    if signer.roots and not signer.needs.any and not _age_matters(policy, signer):
        yield found(
            "policy.unused",
            file=file,
            pointer=f"/signers/{index}/roots",
            actual="a key that needs neither log nor time",
        )


def _age_matters(policy: TrustPolicy, signer: PolicySigner) -> bool:
    """A root also serves a key whose signing time somebody asks for: by a rule on age, or by the key's own window."""
    timed = any(signer.name in rule.signers and rule.maximum_age_days is not None for rule in policy.rules)
    windowed = signer.key is not None and (signer.key.not_before is not None or signer.key.not_after is not None)
    return timed or windowed


def revocation(policy: TrustPolicy, signer: PolicySigner) -> str | None:
    """Why the signer's key is revoked; None where it is not, and for identities, whose certificates come and go."""
    if signer.key is None:
        return None
    if signer.key.revoked is not None:
        return signer.key.revoked
    return next((item.reason for item in policy.revoked if item.sha256 == signer.key.sha256), None)


# Rules


def _rule(policy: TrustPolicy, index: int, rule: Rule, file: str) -> Iterator[Finding]:
    where = f"/rules/{index}"
    role = role_of(rule)
    for other in policy.rules[:index]:
        if role_of(other) == role:
            yield found("policy.duplicate", file=file, pointer=where, actual=f"what rule {other.name} is about: {role}")
    yield from _role(rule, where, file)
    if not rule.signers:
        yield found("policy.empty", file=file, pointer=f"{where}/signers", expected="at least one signer")
    yield from _references(rule.signers, [signer.name for signer in policy.signers], f"{where}/signers", file)
    yield from _references(rule.requires, [other.name for other in policy.rules], f"{where}/requires", file)
    if rule.name in rule.requires:
        yield found("policy.vacuous", file=file, pointer=f"{where}/requires", actual=f"{rule.name} requires itself")
    if rule.threshold == 0:
        yield found("policy.vacuous", file=file, pointer=f"{where}/threshold", expected="at least 1", actual="0")
    most = _most_distinct(policy, rule)
    if most is not None and rule.signers and rule.threshold > most:
        yield found(
            "policy.unsatisfiable",
            file=file,
            pointer=f"{where}/threshold",
            expected=f"at most {most}: its signers are that many",
            actual=str(rule.threshold),
        )
    if rule.minimum_version is not None and order_of(rule.minimum_version) is None:
        yield found(
            "policy.invalid",
            file=file,
            pointer=f"{where}/minimum_version",
            expected="a version like 1.2.3 or 1.2.3rc1",
            actual=rule.minimum_version,
        )
    if rule.maximum_age_days == 0:
        yield found("policy.unsatisfiable", file=file, pointer=f"{where}/maximum_age_days", expected="at least 1")
    yield from _repeated(rule.hardware_classes or (), f"{where}/hardware_classes", file)
    yield from _repeated(rule.claim_scopes or (), f"{where}/claim_scopes", file)
    yield from _asked(policy, rule, where, file)


def _role(rule: Rule, where: str, file: str) -> Iterator[Finding]:
    """A role that no statement can have would be a rule that never applies."""
    kinds = _KINDS.get(rule.predicate_type)
    if kinds is None and rule.predicate_type.startswith(OWN_TYPES) and rule.predicate_type != PLAN_TYPE:
        known = ", ".join((*_KINDS, PLAN_TYPE))
        yield found(
            "policy.unsatisfiable",
            file=file,
            pointer=f"{where}/predicate_type",
            expected=f"one of {known}",
            actual=rule.predicate_type,
        )
        return
    if kinds is None and not rule.predicate_type.startswith(OWN_TYPES):
        kinds = frozenset({None})
    if kinds is not None and rule.kind not in kinds:
        expected = " or ".join(sorted(kind or "null" for kind in kinds))
        yield found(
            "policy.unsatisfiable", file=file, pointer=f"{where}/kind", expected=expected, actual=rule.kind or "null"
        )
    stages = _STAGES.get(rule.kind, frozenset()) if rule.predicate_type == SEAL_TYPE else frozenset[str | None]({None})
    if stages and rule.stage not in stages:
        expected = " or ".join(sorted(stage or "null" for stage in stages))
        yield found(
            "policy.unsatisfiable",
            file=file,
            pointer=f"{where}/stage",
            expected=expected,
            actual=rule.stage or "null",
        )


def _most_distinct(policy: TrustPolicy, rule: Rule) -> int | None:
    """Most distinct keys and pairs that can count at once, under one root; None without bound."""
    signers = [signer for signer in policy.signers if signer.name in rule.signers]
    if any(signer.identity is not None and is_open(signer.identity) for signer in signers):
        return None
    names: Sequence[str | None] = [root.name for root in policy.roots] or [None]
    most = 0
    for name in names:
        free = {s.key.sha256 for s in signers if s.key is not None and (not s.needs.any or name in s.roots)}
        pairs = {(s.identity.issuer, s.identity.san) for s in signers if s.identity is not None and name in s.roots}
        most = max(most, len(free) + len(pairs))
    return most


def _asked(policy: TrustPolicy, rule: Rule, where: str, file: str) -> Iterator[Finding]:
    """What the rule asks of class, scope, grant and version, a statement of its role must be able to say."""
    if rule.predicate_type != RELEASE_TYPE and rule.minimum_version is not None:
        yield found("policy.unsatisfiable", file=file, pointer=f"{where}/minimum_version", expected="null: no release")
    asks = (
        ("hardware_classes", rule.hardware_classes is not None),
        ("claim_scopes", rule.claim_scopes is not None),
        ("authorization_required", rule.authorization_required),
    )
    if rule.predicate_type == TRAINING_TYPE and rule.authorization_required:
        pointer = f"{where}/authorization_required"
        yield found("policy.unsatisfiable", file=file, pointer=pointer, expected="false: grants are for deployments")
    if rule.predicate_type not in ABOUT_RUNS:
        for member, asked in asks:
            if asked:
                yield found("policy.unsatisfiable", file=file, pointer=f"{where}/{member}", expected="no seal has it")
        return
    pairs = assertable(policy, rule)
    if not pairs:
        yield found(
            "policy.unsatisfiable",
            file=file,
            pointer=where,
            expected="a hardware class and a claim scope that one of its signers may assert",
            actual="none that fit together",
        )
    if rule.authorization_required and not any(
        (other.predicate_type, other.kind) == (GRANT_TYPE, rule.kind) for other in policy.rules
    ):
        yield found(
            "policy.unsatisfiable",
            file=file,
            pointer=f"{where}/authorization_required",
            expected=f"a rule for {GRANT_TYPE} {rule.kind}, which says who may grant",
        )


def assertable(policy: TrustPolicy, rule: Rule) -> tuple[tuple[str, str], ...]:
    """Pairs of class and scope that the rule takes and at least one of its signers may assert, sorted."""
    classes, scopes = set[str](), set[str]()
    for item in policy.assertions:
        if set(item.signers) & set(rule.signers):
            classes |= set(item.hardware_classes)
            scopes |= set(item.claim_scopes)
    if rule.hardware_classes is not None:
        classes &= set(rule.hardware_classes)
    if rule.claim_scopes is not None:
        scopes &= set(rule.claim_scopes)
    return tuple(sorted((c, s) for c in classes for s in scopes if s in SCOPES_OF_CLASS.get(c, ())))


# Assertions and revocations


def _assertion(policy: TrustPolicy, index: int, item: Assertion, file: str) -> Iterator[Finding]:
    where = f"/assertions/{index}"
    if not item.signers:
        yield found("policy.empty", file=file, pointer=f"{where}/signers", expected="at least one signer")
    if not item.hardware_classes and not item.claim_scopes and not item.authorization_grant:
        yield found("policy.vacuous", file=file, pointer=where, actual="nothing may be asserted by it")
    for other in policy.assertions[:index]:
        if other == item:
            yield found("policy.duplicate", file=file, pointer=where, actual="an assertion that is there already")
    yield from _repeated(item.hardware_classes, f"{where}/hardware_classes", file)
    yield from _repeated(item.claim_scopes, f"{where}/claim_scopes", file)
    yield from _references(item.signers, [signer.name for signer in policy.signers], f"{where}/signers", file)
    seals = {name for rule in policy.rules if rule.predicate_type in ABOUT_RUNS for name in rule.signers}
    for number, name in enumerate(item.signers):
        if name not in seals:
            actual = f"{name} may sign nothing that has a class or scope"
            yield found("policy.unused", file=file, pointer=f"{where}/signers/{number}", actual=actual)


def _revoked(policy: TrustPolicy, file: str) -> Iterator[Finding]:
    digests = [item.sha256 for item in policy.revoked]
    roots = {root.sha256: root.name for root in policy.roots}
    for index, digest in enumerate(digests):
        where = f"/revoked/{index}/sha256"
        if digest in digests[:index]:
            yield found("policy.duplicate", file=file, pointer=where, actual=digest)
        if digest in roots:
            yield found("policy.contradictory", file=file, pointer=where, actual=f"root {roots[digest]} is trusted too")
