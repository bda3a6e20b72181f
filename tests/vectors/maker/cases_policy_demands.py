"""Runs under a sound policy: when they were signed, with what witness, what is revoked, and what may be asserted."""

from __future__ import annotations

from typing import Any

from maker.case import vector
from maker.forge import DEPLOYMENT, SEAL, Run, key_digest, load_key, sha256
from maker.policies import (
    VERIFY,
    WITH_ROOT,
    Policy,
    bring,
    grant_rule,
    granted,
    key_signer,
    may_assert,
    payload_of,
    policy,
    run_rule,
)
from maker.under_policy import (
    CERTIFICATE,
    ONE,
    judged,
    private,
    timed_key,
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


def authorized(*, grantors: bool = True) -> Policy:
    """Runs of the operator that a grantor authorized."""
    rules = [run_rule("operator", authorization_required=True)]
    known = [key_signer("operator")]
    if grantors:
        known.append(key_signer("grantor", "planner"))
        rules.append(grant_rule("grantor"))
    return policy(*known, rules=rules, assertions=[may_assert("operator")])


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
    authorized,
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


@vector(
    "policy-authorization-declared",
    "A run whose deployment calls itself authorized, and no grant.",
    "policy.authorization-missing",
    base=ONE,
    command=VERIFY,
    exit=3,
)
def _(run: Run) -> None:
    made = authorized()
    made["signers"][0] = key_signer("operator", "release-p256")
    made["assertions"] = [may_assert("operator", authorization_grant=True)]
    bring(run, made)
    run.set(DEPLOYMENT, "/authorization_grant", "approved.json")
    run.redo_plan()
    run.follow(after="plan")


def with_grant(
    name: str, why: str, finding: str | None, exit: int, key: str, change: Any = None, also: tuple[str, ...] = ()
) -> None:
    """A run under `authorized`, with a grant by `key`."""

    @vector(name, why, finding, command=VERIFY, exit=exit, also=also)
    def _(run: Run) -> None:
        bring(run, authorized())
        granted(run, key, change)


def terms(**changes: Any) -> Any:
    return lambda statement: statement["predicate"].update(changes)


with_grant("right-grant", "A run that the grantor authorized.", None, 0, "planner")
with_grant(
    "grant-by-nobody",
    "A grant by a key that nobody knows.",
    "policy.signer-unknown",
    4,
    "stranger",
    also=("policy.threshold-not-met",),
)
with_grant(
    "grant-by-the-operator",
    "The operator grants himself the run.",
    "policy.signer-not-allowed",
    4,
    "release",
    also=("policy.threshold-not-met",),
)
with_grant(
    "grant-for-another-deployment",
    "A grant that was given for another deployment.",
    "grant.for-another",
    1,
    "planner",
    lambda statement: statement["subject"][0]["digest"].update(sha256="ab" * 32),
)
with_grant(
    "grant-expired",
    "A grant that ended before the run can be shown to have been.",
    "grant.out-of-term",
    4,
    "planner",
    terms(not_after="2026-06-30T23:59:59Z"),
)
with_grant(
    "grant-not-yet",
    "A grant from next month on.",
    "grant.out-of-term",
    4,
    "planner",
    terms(not_before="2026-08-01T00:00:00Z"),
)
with_grant(
    "grant-approved-member",
    "A grant that also calls itself approved.",
    "grant.invalid",
    1,
    "planner",
    terms(approved=True),
)
with_grant(
    "grant-of-a-promotion-run",
    "A grant for promotion runs, where a training run is judged.",
    "policy.statement-type",
    1,
    "planner",
    terms(kind="validation"),
    also=("grant.invalid",),
)
judged(
    "policy-nobody-may-grant",
    "A policy that asks for a grant and names nobody who may give one.",
    "policy.unsatisfiable",
    lambda: authorized(grantors=False),
    2,
)
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
    authorized,
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
