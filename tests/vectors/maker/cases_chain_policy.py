"""A promotion chain under a policy: who may sign the plan, seal each stage, and grant the run."""

from __future__ import annotations

from typing import Any

from maker.cases_chain import chain, of
from maker.chain_forge import (
    ORDER,
)
from maker.forge import Run
from maker.policies import bring, grant_rule, granted, key_signer, may_assert, policy, run_rule

AT = "2026-07-01T00:00:00Z"
BY_POLICY = ("verify", "chain", "{run}", "--policy", "{outside}/policy.json", "--at", AT)
SCOPE = "reference_cpu_numerical_correctness"


def by_policy(run: Run, change: Any = None) -> None:
    """A policy of two people: the planner signs plans, the operator seals every stage."""
    people = [key_signer("operator", "release"), key_signer("planner", "planner")]
    rules = [
        run_rule("planner", name="plan", predicate_type="urn:mint2m:predicate:plan:v1", kind=None, stage=None),
        *(run_rule("operator", name=stage, kind="validation", stage=stage) for stage in ORDER),
    ]
    asserted = [may_assert("operator", claim_scopes=[SCOPE])]
    made = policy(*people, rules=rules, assertions=asserted)
    if change is not None:
        change(made)
    bring(run, made)


@chain("by-policy", "Planner and operator are those that the policy names.", None, exit=0, command=BY_POLICY)
def _(run: Run) -> None:
    by_policy(run)


@chain(
    "policy-names-another-planner",
    "The plan is signed by the operator, where the policy names another planner.",
    "policy.signer-not-allowed",
    exit=4,
    command=BY_POLICY,
    also=("policy.threshold-not-met",),
)
def _(run: Run) -> None:
    by_policy(run)
    of(run).sign_plan("release")
    of(run).follow()


@chain(
    "policy-without-a-stage",
    "A policy without a rule for the last stage.",
    "policy.no-rule",
    exit=4,
    command=BY_POLICY,
)
def _(run: Run) -> None:
    by_policy(run, lambda made: made["rules"].pop())


@chain(
    "policy-scope-not-asserted",
    "The operator may not assert numerical correctness.",
    "policy.assertion-not-allowed",
    exit=4,
    command=BY_POLICY,
)
def _(run: Run) -> None:
    by_policy(run, lambda made: made["assertions"][0].update(claim_scopes=["reference_cpu_execution"]))


@chain(
    "policy-wants-gpu",
    "The reference class where the policy asks for a GPU class.",
    "policy.hardware-class",
    exit=3,
    command=BY_POLICY,
)
def _(run: Run) -> None:
    def change(made: Any) -> None:
        made["assertions"][0]["hardware_classes"] = ["reference-cpu", "h20-4x8"]
        made["assertions"][0]["claim_scopes"] = [SCOPE, "gradient_parity"]
        made["rules"][-1]["hardware_classes"] = ["h20-4x8"]

    by_policy(run, change)


def authorized(made: Any) -> None:
    """Every stage asks for a grant, and a third person gives them."""
    made["signers"].append(key_signer("grantor", "release-p256"))
    for rule in made["rules"][1:]:
        rule["authorization_required"] = True
    made["rules"].append(grant_rule("grantor", kind="validation"))


def promotion_granted(name: str, why: str, finding: str | None, exit: int, key: str, change: Any = None) -> None:
    """A promotion run under `authorized`, with a grant by `key`."""

    @chain(name, why, finding, exit=exit, command=BY_POLICY)
    def _(run: Run) -> None:
        by_policy(run, authorized)
        granted(run, key, change, kind="validation")


@chain(
    "authorization-missing",
    "A promotion run that nobody authorized, where somebody must have.",
    "policy.authorization-missing",
    exit=3,
    command=BY_POLICY,
)
def _(run: Run) -> None:
    by_policy(run, authorized)


promotion_granted("granted", "A promotion run that the grantor authorized.", None, 0, "release-p256")
promotion_granted(
    "grant-by-nobody", "A promotion run granted by a key that nobody knows.", "policy.signer-unknown", 4, "stranger"
)
promotion_granted(
    "grant-by-the-planner", "The planner grants what he planned.", "policy.signer-not-allowed", 4, "planner"
)
promotion_granted(
    "grant-for-another-plan",
    "A grant that was given for another plan.",
    "grant.for-another",
    1,
    "release-p256",
    lambda statement: statement["subject"][0]["digest"].update(sha256="ab" * 32),
)
promotion_granted(
    "grant-expired",
    "A grant that has ended.",
    "grant.out-of-term",
    4,
    "release-p256",
    lambda statement: statement["predicate"].update(not_after="2026-06-30T23:59:59Z"),
)
