"""Runs under a sound policy: who signed, how many, when, with what witness, and what they may assert."""

from __future__ import annotations

from collections.abc import Callable

import rfc8785

from maker.case import vector
from maker.forge import DEPLOYMENT, HERE, SEAL, Run, bundle, key_digest, load_key, sha256
from maker.policies import (
    REPOSITORY,
    ROOT,
    VERIFY,
    WITH_ROOT,
    Policy,
    bring,
    identity_signer,
    key_signer,
    may_assert,
    payload_of,
    policy,
    release_rule,
    root_entry,
    run_rule,
    witnessed,
)
from maker.witnesses import certificate_payload

SECOND = "attestations/seal.2.sigstore.json"
THIRD = "attestations/seal.3.sigstore.json"
ONE = "run-one-rank"

OTHER_ROOT = (*VERIFY, "--trusted-root", "{keys}/private-root/other_root.json")

#: The same run, sealed by a certificate under the private root.
CERTIFICATE = {SEAL: "certificate-v1"}


def judged(
    name: str,
    why: str,
    finding: str | None,
    make: Callable[[], Policy],
    exit: int,
    *,
    command: tuple[str, ...] = VERIFY,
    base: str = "run",
    bundles: dict[str, str] | None = None,
    also: tuple[str, ...] = (),
) -> None:
    """A vector with a sound policy; `bundles` of the private root take the places that are named."""

    @vector(name, why, finding, base=base, command=command, exit=exit, also=also)
    def _(run: Run) -> None:
        bring(run, make())
        for place, witness in (bundles or {}).items():
            run.files[place] = witnessed(witness)


def cosigned(run: Run, place: str, key: str, payload: bytes | None = None) -> None:
    run.files[place] = rfc8785.dumps(bundle(payload or payload_of(run.base), load_key(key)))


def two(**changes: object) -> Policy:
    """Two signers, both of whom must have signed."""
    signers = (key_signer("operator"), key_signer("witness", "release-p256"))
    return policy(*signers, rules=[run_rule("operator", "witness", threshold=2)], **changes)


def private(*signers: Policy, **changes: object) -> Policy:
    """Signers under the private root."""
    return policy(*(signers or (identity_signer(),)), roots=[root_entry()], **changes)


def timed_key(**changes: object) -> Policy:
    """The key of the run of one rank, for which the private root may witness."""
    return key_signer("operator", "release-p256", roots=["private"], **changes)


def other_root() -> Policy:
    return root_entry(sha256=sha256((ROOT / "other_root.json").read_bytes()))


# What must be accepted


@vector("right-policy-documented", "The policy that docs/trust.md shows.", None, command=WITH_ROOT, exit=0)
def _(run: Run) -> None:
    text = (HERE.parents[1] / "docs/trust.md").read_text(encoding="utf-8")
    run.outside["policy.json"] = text.split("```json\n")[1].split("```")[0].encode()
    run.files[SECOND] = witnessed("certificate-cosigns")


judged("right-policy", "A right run under a policy of one key.", None, policy, 0)
judged(
    "right-policy-certificate",
    "A run sealed by a certificate, its log entry of version 1.",
    None,
    private,
    0,
    command=WITH_ROOT,
    bundles=CERTIFICATE,
)
judged(
    "right-policy-certificate-v2",
    "A run sealed by a certificate, its log entry of version 2, its time by an authority.",
    None,
    lambda: private(identity_signer(needs={"transparency": True, "timestamp": True})),
    0,
    command=WITH_ROOT,
    bundles={SEAL: "certificate-v2"},
)
judged(
    "right-policy-prefix-and-claim",
    "An identity by its beginning, and a claim about its repository.",
    None,
    lambda: private(
        identity_signer(
            san="https://example.com/acme/*", claims=[{"name": "source_repository_uri", "value": REPOSITORY}]
        ),
        rules=[run_rule("workflow", maximum_age_days=31)],
    ),
    0,
    command=WITH_ROOT,
    bundles=CERTIFICATE,
)
judged(
    "right-policy-key-and-certificate",
    "A key and a certificate over one statement: two of two.",
    None,
    lambda: private(key_signer(), identity_signer(), rules=[run_rule("operator", "workflow", threshold=2)]),
    0,
    command=WITH_ROOT,
    bundles={SECOND: "certificate-cosigns"},
)
judged(
    "right-policy-key-logged",
    "A key that needs a log entry and has one, and is valid no more but was then.",
    None,
    lambda: private(timed_key(needs={"transparency": True, "timestamp": False}, not_after="2026-06-15T00:00:00Z")),
    0,
    command=WITH_ROOT,
    base=ONE,
    bundles={SEAL: "logged"},
)


@vector("right-policy-two-of-two", "Two keys over one statement.", None, command=VERIFY, exit=0)
def _(run: Run) -> None:
    bring(run, two())
    cosigned(run, SECOND, "release-p256")


@vector(
    "right-policy-stranger-cosigns", "A stranger's co-signature beside one that counts.", None, command=VERIFY, exit=0
)
def _(run: Run) -> None:
    bring(run, policy())
    cosigned(run, SECOND, "stranger")


judged(
    "right-policy-cosigned-under-another-root",
    "A co-signature by a certificate of another root, which is for other auditors.",
    None,
    lambda: policy(
        key_signer(),
        identity_signer("workflow"),
        roots=[other_root()],
    ),
    0,
    command=OTHER_ROOT,
    bundles={SECOND: "certificate-cosigns"},
)


@vector("right-key-and-cosignature", "A co-signature that --key does not judge.", None, exit=0)
def _(run: Run) -> None:
    cosigned(run, SECOND, "stranger")


for word, arguments in (
    ("receipt", ("{run}/receipt.json",)),
    ("checkpoint", ("{run}/checkpoint",)),
    (
        "manifest",
        (
            "{run}/artifacts/adapter-manifest.json",
            "--root",
            "{run}/adapter",
            "--seal",
            "{run}/attestations/seal.sigstore.json",
        ),
    ),
):
    judged(
        f"right-policy-{word}",
        f"`verify {word}` under a policy.",
        None,
        policy,
        0,
        command=("verify", word, *arguments, *VERIFY[3:]),
    )


# Who signed, and how many


@vector(
    "policy-signer-unknown",
    "Signed by a key that the policy does not list.",
    "policy.signer-unknown",
    command=VERIFY,
    exit=4,
)
def _(run: Run) -> None:
    bring(run, policy())
    run.redo_seal(key="stranger")


judged(
    "policy-certificate-unknown",
    "Sealed by a certificate, and the policy knows keys only.",
    "policy.signer-unknown",
    policy,
    4,
    bundles=CERTIFICATE,
)
judged(
    "policy-identity-unknown",
    "Sealed by another identity than the policy names.",
    "policy.signer-unknown",
    private,
    4,
    command=WITH_ROOT,
    bundles={SEAL: "certificate-stranger"},
    also=("policy.threshold-not-met",),
)
judged(
    "policy-issuer-unknown",
    "The right identity, vouched for by another issuer than the policy names.",
    "policy.signer-unknown",
    lambda: private(identity_signer(issuer="https://issuer.example.org")),
    4,
    command=WITH_ROOT,
    bundles=CERTIFICATE,
)
judged(
    "policy-no-rule",
    "A policy for releases, asked about a run.",
    "policy.no-rule",
    lambda: policy(rules=[release_rule("operator")], assertions=[]),
    4,
)
judged(
    "policy-signer-not-allowed",
    "A run signed with the key that may sign releases.",
    "policy.signer-not-allowed",
    lambda: policy(
        key_signer("operator", "release-p256"),
        key_signer("publisher"),
        rules=[run_rule("operator"), release_rule("publisher")],
        assertions=[may_assert("operator")],
    ),
    4,
)
judged("policy-one-of-two", "One signature where the policy asks for two.", "policy.threshold-not-met", two, 4)


@vector(
    "policy-one-key-twice", "Two signatures by one key are one.", "policy.threshold-not-met", command=VERIFY, exit=4
)
def _(run: Run) -> None:
    bring(run, two())
    cosigned(run, SECOND, "release")


@vector(
    "policy-stranger-for-two",
    "A stranger's signature does not make two.",
    "policy.signer-unknown",
    command=VERIFY,
    exit=4,
)
def _(run: Run) -> None:
    bring(run, two())
    cosigned(run, THIRD, "stranger")


@vector(
    "cosignature-differs", "A co-signature over another statement.", "seal.cosignature-differs", command=VERIFY, exit=1
)
def _(run: Run) -> None:
    bring(run, two())
    cosigned(run, SECOND, "release-p256", payload_of(ONE))


@vector(
    "cosignature-differs-under-a-key", "A co-signature over another statement, under --key.", "seal.cosignature-differs"
)
def _(run: Run) -> None:
    cosigned(run, SECOND, "release-p256", payload_of(ONE))


@vector(
    "cosignature-forged",
    "A co-signature under the name of a known key that did not make it.",
    "signature.invalid",
    command=VERIFY,
)
def _(run: Run) -> None:
    bring(run, two())
    forged = bundle(payload_of("run"), load_key("stranger"))
    forged["verificationMaterial"] = bundle(payload_of("run"), load_key("release-p256"))["verificationMaterial"]
    run.files[SECOND] = rfc8785.dumps(forged)


@vector("cosignature-in-tenth-place", "A co-signature in a place that none has.", "tree.file-unlisted", command=VERIFY)
def _(run: Run) -> None:
    bring(run, policy())
    cosigned(run, "attestations/seal.10.sigstore.json", "release-p256")


@vector(
    "seal-says-certificate",
    "The sealed statement says that a certificate made it; a key did.",
    "seal.binding-mismatch",
    command=VERIFY,
)
def _(run: Run) -> None:
    bring(run, policy())
    run.files[SEAL] = rfc8785.dumps(bundle(certificate_payload(), load_key("release")))


judged(
    "policy-claim-mismatch",
    "The right workflow on another repository.",
    "policy.claim-mismatch",
    lambda: private(
        identity_signer(claims=[{"name": "source_repository_uri", "value": "https://example.com/acme/other"}])
    ),
    4,
    command=WITH_ROOT,
    bundles=CERTIFICATE,
)
judged(
    "policy-claim-absent",
    "A claim that the certificate does not make.",
    "policy.claim-mismatch",
    lambda: private(identity_signer(claims=[{"name": "source_repository_digest", "value": "a" * 40}])),
    4,
    command=WITH_ROOT,
    bundles=CERTIFICATE,
)
judged(
    "policy-root-not-for-signer",
    "An identity that counts under another root than the one that vouched.",
    "policy.root-not-for-signer",
    lambda: policy(
        key_signer("witness", "release-p256", roots=["private"], needs={"transparency": True, "timestamp": False}),
        identity_signer(roots=["other"]),
        roots=[root_entry(), root_entry(name="other", sha256=sha256((ROOT / "other_root.json").read_bytes()))],
    ),
    4,
    command=WITH_ROOT,
    bundles=CERTIFICATE,
)
judged(
    "policy-certificate-of-another-root",
    "Sealed by a certificate of another root than the policy names.",
    "sigstore.chain-untrusted",
    lambda: policy(identity_signer(), roots=[other_root()]),
    4,
    command=OTHER_ROOT,
    bundles=CERTIFICATE,
)


# Witnesses and time


judged(
    "policy-transparency-missing",
    "A key that needs a log entry, and none.",
    "policy.transparency-missing",
    lambda: private(timed_key(needs={"transparency": True, "timestamp": False})),
    4,
    command=WITH_ROOT,
    base=ONE,
)
judged(
    "policy-timestamp-missing",
    "A log entry where a timestamp is needed.",
    "policy.timestamp-missing",
    lambda: private(timed_key(needs={"transparency": False, "timestamp": True})),
    4,
    command=WITH_ROOT,
    base=ONE,
    bundles={SEAL: "logged"},
)
judged(
    "policy-key-expired",
    "A key whose time has passed, and no witness that it signed before.",
    "policy.key-expired",
    lambda: policy(key_signer(not_after="2026-06-15T00:00:00Z")),
    4,
)
judged(
    "policy-key-expired-when-signed",
    "A key whose time had passed when it signed, as a timestamp shows.",
    "policy.key-expired",
    lambda: private(timed_key(needs={"transparency": False, "timestamp": True}, not_after="2026-05-15T00:00:00Z")),
    4,
    command=WITH_ROOT,
    base=ONE,
    bundles={SEAL: "stamped"},
)
judged(
    "policy-key-not-yet-valid",
    "A key that is valid now and was not when it signed.",
    "policy.key-not-yet-valid",
    lambda: private(timed_key(needs={"transparency": False, "timestamp": True}, not_before="2026-06-15T00:00:00Z")),
    4,
    command=WITH_ROOT,
    base=ONE,
    bundles={SEAL: "stamped"},
)
judged(
    "policy-time-unknown",
    "A rule about age, and no time but the run's own.",
    "policy.time-unknown",
    lambda: policy(rules=[run_rule("operator", maximum_age_days=30)]),
    3,
)
judged(
    "policy-too-old",
    "Signed thirty days ago, where a week is the most.",
    "policy.too-old",
    lambda: private(rules=[run_rule("workflow", maximum_age_days=7)]),
    3,
    command=WITH_ROOT,
    bundles=CERTIFICATE,
)
judged(
    "policy-signed-later",
    "Judged as of a time before it was signed.",
    "policy.signed-later",
    private,
    3,
    command=tuple("2026-05-01T00:00:00Z" if word == VERIFY[-1] else word for word in WITH_ROOT),
    bundles=CERTIFICATE,
)


# Revocation


judged(
    "policy-key-revoked",
    "The run's key is revoked.",
    "policy.revoked",
    lambda: policy(
        key_signer("old", revoked="lost in May"),
        key_signer("operator", "release-p256"),
        rules=[run_rule("operator")],
        assertions=[may_assert("operator")],
    ),
    4,
)
judged(
    "policy-key-revoked-though-logged",
    "A revoked key, and a log entry from before: revocation asks no time.",
    "policy.revoked",
    lambda: private(
        timed_key(needs={"transparency": True, "timestamp": False}),
        key_signer("other"),
        rules=[run_rule("other")],
        assertions=[may_assert("other")],
        revoked=[{"sha256": key_digest(load_key("release-p256")).hex(), "reason": "leaked"}],
    ),
    4,
    command=WITH_ROOT,
    base=ONE,
    bundles={SEAL: "logged"},
)
judged(
    "policy-statement-revoked",
    "The run's own statement is revoked.",
    "policy.revoked",
    lambda: policy(revoked=[{"sha256": sha256(payload_of("run")), "reason": "withdrawn"}]),
    4,
)


@vector("policy-file-revoked", "A file that the seal names is revoked.", "policy.revoked", command=VERIFY, exit=4)
def _(run: Run) -> None:
    digest = sha256(run.files["inputs/rollout.json"])
    bring(run, policy(revoked=[{"sha256": digest, "reason": "a poisoned rollout"}]))


# What is asserted and asked for


judged(
    "policy-assertion-not-allowed",
    "The signer may sign runs; another one may say on what they ran.",
    "policy.assertion-not-allowed",
    lambda: policy(key_signer(), key_signer("observer", "release-p256"), assertions=[may_assert("observer")]),
    4,
)
judged(
    "policy-hardware-class",
    "A run on reference-cpu, where h20-4x8 is asked for.",
    "policy.hardware-class",
    lambda: policy(
        rules=[run_rule("operator", hardware_classes=["h20-4x8"])],
        assertions=[
            may_assert(
                "operator",
                hardware_classes=["reference-cpu", "h20-4x8"],
                claim_scopes=["reference_cpu_execution", "gradient_parity"],
            )
        ],
    ),
    3,
)
judged(
    "policy-claim-scope",
    "A receipt of execution, where numerical correctness is asked for.",
    "policy.claim-scope",
    lambda: policy(
        rules=[run_rule("operator", claim_scopes=["reference_cpu_numerical_correctness"])],
        assertions=[
            may_assert("operator", claim_scopes=["reference_cpu_execution", "reference_cpu_numerical_correctness"])
        ],
    ),
    3,
)
judged(
    "policy-authorization-missing",
    "A run that nobody authorized, where somebody must have.",
    "policy.authorization-missing",
    lambda: policy(
        rules=[run_rule("operator", authorization_required=True)],
        assertions=[may_assert("operator", authorization_grant=True)],
    ),
    3,
)


@vector(
    "policy-grant-not-allowed",
    "A run with a grant, and a signer who may not assert one.",
    "policy.assertion-not-allowed",
    base=ONE,
    command=VERIFY,
    exit=4,
)
def _(run: Run) -> None:
    bring(run, policy(key_signer("operator", "release-p256")))
    run.set(DEPLOYMENT, "/authorization_grant", "grant.json")
    run.redo_plan()
    run.follow(after="plan")


judged(
    "policy-required-missing",
    "A run alone, where the policy wants a validation stage beside it.",
    "policy.required-missing",
    lambda: policy(
        rules=[
            run_rule("operator", requires=["parity"]),
            run_rule("operator", name="parity", kind="validation", stage="parity-32k"),
        ]
    ),
    3,
)
judged(
    "policy-receipt-and-a-grant",
    "A receipt alone cannot show the grant that the policy asks for.",
    "policy.authorization-missing",
    lambda: policy(
        rules=[run_rule("operator", authorization_required=True)],
        assertions=[may_assert("operator", authorization_grant=True)],
    ),
    3,
    command=("verify", "receipt", "{run}/receipt.json", *VERIFY[3:]),
)
judged(
    "policy-checkpoint-by-a-stranger",
    "A checkpoint whose seal is by nobody whom the policy knows.",
    "policy.signer-unknown",
    lambda: policy(key_signer("operator", "stranger")),
    4,
    command=("verify", "checkpoint", "{run}/checkpoint", *VERIFY[3:]),
)
