"""Policies that are refused before they judge anything: empty, vacuous, contradictory, run out, or no policy at all."""

from __future__ import annotations

import json
from collections.abc import Callable

from maker.case import vector
from maker.forge import KEYS, SEAL, Run
from maker.policies import (
    AT,
    VERIFY,
    WITH_ROOT,
    Policy,
    bring,
    identity_signer,
    key_signer,
    may_assert,
    pem,
    policy,
    release_rule,
    root_entry,
    run_rule,
)


def refused(
    name: str, why: str, finding: str, make: Callable[[], Policy], *, command: tuple[str, ...] = VERIFY, exit: int = 2
) -> None:
    """A vector whose only fault is in its policy."""

    @vector(name, why, finding, command=command, exit=exit)
    def _(run: Run) -> None:
        bring(run, make())


@vector("policy-missing", "The policy that is named is not there.", "input.missing", command=VERIFY, exit=2)
def _(_run: Run) -> None:
    pass


@vector("policy-not-json", "The policy is cut in the middle.", "policy.malformed", command=VERIFY, exit=2)
def _(run: Run) -> None:
    bring(run, policy())
    run.outside["policy.json"] = run.outside["policy.json"][:-200]


@vector("policy-duplicate-member", "The policy has its threshold twice.", "policy.malformed", command=VERIFY, exit=2)
def _(run: Run) -> None:
    bring(run, policy())
    raw = run.outside["policy.json"]
    run.outside["policy.json"] = raw.replace(b'"threshold": 1,', b'"threshold": 2, "threshold": 1,')


@vector("policy-is-a-key", "A key where the policy belongs.", "policy.malformed", command=VERIFY, exit=2)
def _(run: Run) -> None:
    run.outside["policy.json"] = (KEYS / "release.pub").read_bytes()


@vector("policy-template", "The template, as it was written.", "policy.placeholder", command=VERIFY, exit=2)
def _(run: Run) -> None:
    place = KEYS.parents[2] / "trust/policy-template.json"
    run.outside["policy.json"] = place.read_bytes()


refused(
    "policy-unknown-member",
    "The policy says that a failing check may be waived.",
    "policy.invalid",
    lambda: policy(waive=["tree.file-changed"]),
)
refused(
    "policy-next-version",
    "A policy of the next major version.",
    "policy.invalid",
    lambda: policy(schema="mint2m.trust-policy/v2"),
)
refused(
    "policy-zero-digest",
    "A key by a digest of zeros.",
    "policy.placeholder",
    lambda: policy(key_signer(sha256="0" * 64)),
)
refused(
    "policy-no-rule-at-all",
    "A policy without a rule.",
    "policy.empty",
    lambda: policy(key_signer(revoked="lost"), rules=[], assertions=[]),
)
refused(
    "policy-rule-without-signer",
    "A rule that nobody may sign.",
    "policy.empty",
    lambda: policy(rules=[run_rule("operator"), release_rule()]),
)
refused(
    "policy-threshold-zero",
    "A rule that asks for no signature.",
    "policy.vacuous",
    lambda: policy(rules=[run_rule("operator", threshold=0)]),
)
refused(
    "policy-asserts-nothing",
    "An assertion of nothing.",
    "policy.vacuous",
    lambda: policy(assertions=[may_assert("operator"), may_assert("operator", hardware_classes=[], claim_scopes=[])]),
)
for label, why, san in (
    ("bare-star", "An identity that is anybody.", "*"),
    ("host-star", "An identity that is anybody on a host.", "https://example.com/*"),
    ("owner-star", "A star behind half an owner's name, which matches other owners.", "https://example.com/acme*"),
    ("mail-star", "A star in a mail address, where the domain should end.", "release@example.com*"),
):
    refused(
        f"policy-{label}",
        why,
        "policy.too-wide",
        lambda san=san: policy(identity_signer(san=san), roots=[root_entry()]),
        command=WITH_ROOT,
    )
refused(
    "policy-inner-star",
    "A star in the middle of an identity.",
    "policy.invalid",
    lambda: policy(identity_signer(san="https://example.com/acme/*/run.yml"), roots=[root_entry()]),
    command=WITH_ROOT,
)
refused(
    "policy-key-twice",
    "Two names for one key, which would make two of one.",
    "policy.duplicate",
    lambda: policy(key_signer("one"), key_signer("two"), rules=[run_rule("one", "two", threshold=2)]),
)
refused(
    "policy-two-rules-for-one-role",
    "Two rules for one role.",
    "policy.duplicate",
    lambda: policy(rules=[run_rule("operator"), run_rule("operator", name="again")]),
)
refused(
    "policy-unknown-signer",
    "A rule names a signer that is not there.",
    "policy.unknown-name",
    lambda: policy(rules=[run_rule("operator", "operater")]),
)
refused(
    "policy-unused-signer",
    "A signer that no rule lets sign.",
    "policy.unused",
    lambda: policy(
        key_signer(),
        key_signer("spare", "release-p256"),
        rules=[run_rule("operator")],
        assertions=[may_assert("operator")],
    ),
)
refused(
    "policy-unused-root",
    "A root under which nobody counts.",
    "policy.unused",
    lambda: policy(roots=[root_entry()]),
    command=WITH_ROOT,
)
refused(
    "policy-revoked-may-sign",
    "A key that is revoked and may sign.",
    "policy.contradictory",
    lambda: policy(key_signer(revoked="stolen")),
)
refused(
    "policy-root-two-modes",
    "One root under two modes.",
    "policy.contradictory",
    lambda: policy(
        identity_signer(roots=["private", "public"]),
        roots=[root_entry(), root_entry(name="public", mode="public-good")],
    ),
    command=WITH_ROOT,
)
refused(
    "policy-ends-before-it-begins",
    "A policy that ends before it begins.",
    "policy.contradictory",
    lambda: policy(not_before="2028-01-01T00:00:00Z"),
)
refused(
    "policy-key-and-identity",
    "A signer who is a key and an identity.",
    "policy.contradictory",
    lambda: policy({**identity_signer("operator"), "key": key_signer()["key"]}, roots=[root_entry()]),
    command=WITH_ROOT,
)
refused(
    "policy-two-of-one",
    "Two signatures by one signer.",
    "policy.unsatisfiable",
    lambda: policy(rules=[run_rule("operator", threshold=2)]),
)
refused(
    "policy-stage-misspelt",
    "A rule about a stage that there is none of.",
    "policy.unsatisfiable",
    lambda: policy(
        rules=[run_rule("operator"), run_rule("operator", name="parity", kind="validation", stage="parity-23k")]
    ),
)
refused(
    "policy-class-nobody-asserts",
    "A rule asks for a class that its signer may not assert.",
    "policy.unsatisfiable",
    lambda: policy(rules=[run_rule("operator", hardware_classes=["h20-4x8"])]),
)
refused(
    "policy-scope-of-another-class",
    "A rule asks for a scope that its class never has.",
    "policy.unsatisfiable",
    lambda: policy(
        assertions=[may_assert("operator", claim_scopes=["2m_execution_only_not_numerical_correctness"])],
    ),
)
refused(
    "policy-version-malformed",
    "A minimum version that is none.",
    "policy.invalid",
    lambda: policy(rules=[run_rule("operator"), release_rule("operator", minimum_version="latest")]),
)
refused(
    "policy-key-of-another-digest",
    "The digest is of another key than the PEM.",
    "policy.key-invalid",
    lambda: policy(key_signer(pem=pem("stranger"))),
)
refused(
    "policy-expired",
    "A policy that ran out.",
    "policy.expired",
    lambda: policy(not_after="2026-06-30T23:59:59Z"),
    exit=4,
)
refused(
    "policy-not-yet-valid",
    "A policy of next month.",
    "policy.not-yet-valid",
    lambda: policy(not_before="2026-08-01T00:00:00Z"),
    exit=4,
)
refused(
    "policy-root-not-brought",
    "A policy that names a root, and no root.",
    "usage.invalid",
    lambda: policy(identity_signer(), roots=[root_entry()]),
)
refused("policy-root-not-asked-for", "A root, and a policy of keys alone.", "usage.invalid", policy, command=WITH_ROOT)
refused(
    "policy-another-root",
    "Another root than the policy names.",
    "policy.root-not-named",
    lambda: policy(identity_signer(), roots=[root_entry()]),
    command=(*VERIFY, "--trusted-root", "{keys}/private-root/other_root.json"),
    exit=4,
)
refused(
    "policy-and-a-key",
    "A policy and a key: which one decides?",
    "usage.invalid",
    policy,
    command=(*VERIFY, "--key", "{keys}/release.pub"),
)
refused(
    "root-without-a-policy",
    "A trusted root without a policy that names it.",
    "usage.invalid",
    policy,
    command=("verify", "run", "{run}", "--trusted-root", "{keys}/private-root/trusted_root.json"),
)


# Anchors that came with the evidence


@vector(
    "policy-inside-evidence",
    "The policy is taken from inside the evidence that it should judge.",
    "trust.policy-inside-evidence",
    exit=1,
    also=("tree.file-unlisted",),
    command=("verify", "run", "{run}", "--policy", "{run}/attestations/policy.json", "--at", AT),
)
def _(run: Run) -> None:
    run.files["attestations/policy.json"] = (json.dumps(policy()) + "\n").encode()


@vector(
    "policy-inside-evidence-linked",
    "The policy lies outside, but is a hard link to a file of the evidence.",
    "trust.policy-inside-evidence",
    exit=1,
    also=("tree.file-unlisted",),
    command=("verify", "run", "{run}", "--policy", "{outside}/mine.json", "--at", AT),
)
def _(run: Run) -> None:
    run.files["inputs/policy.json"] = (json.dumps(policy()) + "\n").encode()
    run.steps["hardlinks_outside"] = {"mine.json": "inputs/policy.json"}


@vector(
    "policy-inside-evidence-copied",
    "The policy lies outside, with the bytes of a file of the evidence.",
    "trust.policy-inside-evidence",
    exit=1,
    also=("tree.file-unlisted",),
    command=VERIFY,
)
def _(run: Run) -> None:
    bring(run, policy())
    run.files["inputs/policy.json"] = run.outside["policy.json"]


@vector(
    "root-inside-evidence",
    "The trusted root lies inside the evidence.",
    "trust.policy-inside-evidence",
    exit=1,
    also=("tree.file-unlisted",),
    command=(*VERIFY, "--trusted-root", "{run}/inputs/root.json"),
)
def _(run: Run) -> None:
    bring(run, policy(identity_signer(), roots=[root_entry()]))
    run.files["inputs/root.json"] = (KEYS / "private-root/trusted_root.json").read_bytes()
    run.files[SEAL] = (KEYS / "private-root/certificate-v1.sigstore.json").read_bytes()
