"""Runs under a sound policy: what must be accepted, who signed, and how many."""

from __future__ import annotations

import rfc8785

from maker.case import vector
from maker.forge import HERE, SEAL, Run, bundle, load_key, sha256
from maker.policies import (
    REPOSITORY,
    ROOT,
    VERIFY,
    WITH_ROOT,
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
from maker.under_policy import (
    CERTIFICATE,
    ONE,
    OTHER_ROOT,
    SECOND,
    THIRD,
    cosigned,
    judged,
    other_root,
    private,
    timed_key,
    two,
)
from maker.witnesses import certificate_payload

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


#: For the auditor who has the key of whoever co-signed.
BY_COSIGNER = ("verify", "run", "{run}", "--key", "{keys}/release-p256.pub")


@vector("right-key-of-a-cosignature", "The key is the co-signer's.", None, command=BY_COSIGNER, exit=0)
def _(run: Run) -> None:
    cosigned(run, SECOND, "stranger")
    cosigned(run, THIRD, "release-p256")


@vector(
    "right-key-beside-a-logged-seal",
    "The key is the co-signer's; the seal itself has a log entry, which no key can judge.",
    None,
    base=ONE,
    command=("verify", "run", "{run}", "--key", "{keys}/release.pub"),
    exit=0,
)
def _(run: Run) -> None:
    run.files[SEAL] = witnessed("logged")
    cosigned(run, SECOND, "release")


@vector(
    "key-of-no-signature",
    "Neither the seal nor its co-signature is by the key.",
    "signature.key-mismatch",
    command=BY_COSIGNER,
    exit=4,
)
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
    run.files[SECOND] = _forged()


@vector(
    "cosignature-forged-under-a-key",
    "A co-signature under the name of the auditor's key, which made the seal and not this.",
    "signature.invalid",
)
def _(run: Run) -> None:
    run.files[SECOND] = _forged("release")


def _forged(key: str = "release-p256") -> bytes:
    """A stranger's signature under the name of a key."""
    forged = bundle(payload_of("run"), load_key("stranger"))
    forged["verificationMaterial"] = bundle(payload_of("run"), load_key(key))["verificationMaterial"]
    return rfc8785.dumps(forged)


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
