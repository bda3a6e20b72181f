"""Online trainings under a policy: who may say that steps are a training, of what class, and beside whose seals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maker.case import vector
from maker.cases_training import of
from maker.forge import Run
from maker.policies import AT, Policy, bring, key_signer, may_assert, policy, run_rule

VERIFY = ("verify", "training", "{run}", "--policy", "{outside}/policy.json", "--at", AT)
TYPE = "urn:mint2m:predicate:training:v1"


def training_rule(*signers: str, **changes: Any) -> Policy:
    return run_rule(*signers, **{"name": "training", "predicate_type": TYPE, "kind": None, "stage": None, **changes})


def both(*signers: Policy, **changes: Any) -> Policy:
    """A policy by which the operator may seal runs and sign trainings."""
    return policy(*signers, **{"rules": [run_rule("operator"), training_rule("operator")], **changes})


def under(
    name: str,
    why: str,
    finding: str | None,
    make: Callable[[], Policy],
    exit: int,
    *,
    change: Callable[[Run], None] = lambda _run: None,
    also: tuple[str, ...] = (),
) -> None:
    @vector(f"training-policy-{name}", why, finding, base="training", command=VERIFY, exit=exit, also=also)
    def _(run: Run) -> None:
        bring(run, make())
        change(run)


under("right", "A training whose steps and statement the policy's operator signed.", None, both, 0)
under(
    "right-with-its-runs",
    "A training that counts only together with its runs, and does.",
    None,
    lambda: both(
        rules=[
            run_rule("operator", hardware_classes=["reference-cpu"]),
            training_rule("operator", hardware_classes=["reference-cpu"], requires=["run"]),
        ]
    ),
    0,
)
under(
    "no-rule",
    "The policy lets the operator seal runs and says nothing of trainings.",
    "policy.no-rule",
    policy,
    4,
)
under(
    "no-rule-for-runs",
    "The policy lets the operator sign trainings and says nothing of their runs.",
    "policy.no-rule",
    lambda: policy(rules=[training_rule("operator")]),
    4,
)
under(
    "of-a-stranger",
    "Somebody else signed the statement over steps that the operator sealed.",
    "policy.signer-unknown",
    both,
    4,
    change=lambda run: of(run).redo_statement(key="stranger"),
    also=("policy.threshold-not-met",),
)
under(
    "signed-by-who-seals",
    "Whoever may seal runs signed the training too, which another should.",
    "policy.signer-not-allowed",
    lambda: policy(
        key_signer(),
        key_signer("lead", "release-p256"),
        rules=[run_rule("operator"), training_rule("lead")],
        assertions=[may_assert("operator", "lead")],
    ),
    4,
    also=("policy.threshold-not-met",),
)
under(
    "two-of-two",
    "Two must sign a training, and one did.",
    "policy.threshold-not-met",
    lambda: policy(
        key_signer(),
        key_signer("lead", "release-p256"),
        rules=[run_rule("operator"), training_rule("operator", "lead", threshold=2)],
        assertions=[may_assert("operator", "lead")],
    ),
    4,
)
under(
    "of-another-class",
    "The policy asks for trainings on another hardware class.",
    "policy.hardware-class",
    lambda: both(
        rules=[run_rule("operator"), training_rule("operator", hardware_classes=["h20-4x8"])],
        assertions=[
            may_assert(
                "operator",
                hardware_classes=["reference-cpu", "h20-4x8"],
                claim_scopes=["reference_cpu_execution", "2m_execution_only_not_numerical_correctness"],
            )
        ],
    ),
    3,
    also=(),
)
under(
    "asks-for-a-grant",
    "A policy asks a training for a grant, which deployments have.",
    "policy.unsatisfiable",
    lambda: both(rules=[run_rule("operator"), training_rule("operator", authorization_required=True)]),
    2,
)
under(
    "kind-of-a-training",
    "A policy's rule names a kind, which statements over trainings do not have.",
    "policy.unsatisfiable",
    lambda: both(rules=[run_rule("operator"), training_rule("operator", kind="training")]),
    2,
)
under(
    "beside-what-is-not-here",
    "A training counts only together with a release, which is not here.",
    "policy.required-missing",
    lambda: both(
        rules=[
            run_rule("operator"),
            run_rule(
                "operator", name="release", predicate_type="urn:mint2m:predicate:release:v1", kind="release", stage=None
            ),
            training_rule("operator", requires=["release"]),
        ]
    ),
    3,
)
