"""What promotes the cluster class: every gate, each by a verified chain of that class, and nothing of another class."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_verify.anchor import read_key
from mint2m_verify.chain import places
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.verify import AUTHORIZED, INPUTS, verify_chain
from mint2m_verify.doctor import examine_checkout
from mint2m_verify.documents.validation import ValidationPlan
from mint2m_verify.finding import FindingError, Report, Requirement, Standing, Verdict, found
from mint2m_verify.promotion import (
    GPU_CLASS,
    REVIEW_ONLY,
    RUNNABLE,
    Promoting,
    VerifiedChain,
    promotion,
    read_promoting,
)

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
CHAIN = VECTORS / "bases" / "chain"
SOURCE = "ab" * 32


def plan() -> ValidationPlan:
    return ValidationPlan.parse((CHAIN / places.PLAN).read_bytes(), file=places.PLAN)


def gpu_chain() -> VerifiedChain:
    """What an accepted chain of the cluster class comes to; there is none, so the report is written here."""
    rows = tuple(Requirement(required=name, found="all", standing=Standing.CHECKED) for name in (INPUTS, AUTHORIZED))
    made = replace(
        plan(), hardware_class=GPU_CLASS, image_digest=f"sha256:{'cd' * 32}", source_sha256=SOURCE, backend="nccl"
    )
    return VerifiedChain(report=Report(subject="chain", command="verify chain", requirements=rows), plan=made)


def test_all_gates_met_is_runnable() -> None:
    made = promotion((), gpu_chain(), source=SOURCE)
    assert [gate.met for gate in made.gates] == [True] * 5 and made.status == RUNNABLE


CHANGES = {
    "runtime lock": lambda chain: replace(chain, plan=replace(chain.plan, image_digest=None)),
    "authorization": lambda chain: replace(
        chain, report=replace(chain.report, requirements=chain.report.requirements[:1])
    ),
    "inputs": lambda chain: replace(chain, report=replace(chain.report, requirements=chain.report.requirements[1:])),
    "validation": lambda chain: replace(chain, plan=replace(chain.plan, source_sha256="cd" * 32)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_gate_that_is_not_met_leaves_the_class_for_review_only(name: str) -> None:
    made = promotion((), CHANGES[name](gpu_chain()), source=SOURCE)
    assert [gate.name for gate in made.gates if not gate.met] == [name]
    assert made.status == REVIEW_ONLY and name in made.words


def test_a_fault_of_the_source_tree_is_the_first_gate() -> None:
    fault = found("checkout.package-missing", file="mint2m")
    made = promotion((fault,), gpu_chain(), source=SOURCE)
    assert [gate.name for gate in made.gates if not gate.met] == ["implementation"] and made.status == REVIEW_ONLY


def test_stages_that_were_left_out_of_the_plan_promote_nothing() -> None:
    short = gpu_chain()
    assert short.plan is not None
    made = promotion((), replace(short, plan=replace(short.plan, required_stages=places.ORDER[:3])), source=SOURCE)
    assert [gate.name for gate in made.gates if not gate.met] == ["validation"]


def test_a_chain_that_was_not_accepted_meets_no_gate() -> None:
    refused = gpu_chain()
    report = replace(refused.report, findings=(found("chain.stage-missing"),))
    made = promotion((), replace(refused, report=report), source=SOURCE)
    assert [gate.met for gate in made.gates] == [True, False, False, False, False]


def test_an_accepted_chain_of_the_reference_class_meets_no_gate_of_the_cluster_class() -> None:
    options = ChainOptions(plan_anchor=read_key(VECTORS / "test-only-keys" / "planner.pub"))
    report = verify_chain(CHAIN, read_key(VECTORS / "test-only-keys" / "release.pub"), options)
    assert report.verdict is Verdict.ACCEPTED
    made = promotion((), VerifiedChain(report=report, plan=plan()), source=plan().source_sha256)
    assert made.status == REVIEW_ONLY
    assert all("reference-cpu" in gate.found and not gate.met for gate in made.gates[1:])


def test_the_doctor_says_of_this_checkout_that_the_class_may_only_be_reviewed() -> None:
    examined = examine_checkout(ROOT)
    row = next(check for check in examined.doctor.checks if check.id == "promotion")
    assert row.actual is not None and row.actual.startswith(f"{GPU_CLASS} {REVIEW_ONLY}; not met: runtime lock")


def test_a_chain_under_the_auditors_policy_is_verified_when_the_doctor_asks() -> None:
    case = VECTORS / "promotion-by-policy"
    at = json.loads((case / "case.json").read_bytes())["command"][-1]
    promoting = read_promoting(chain=CHAIN, policy=case / "outside" / "policy.json", trusted_root=None, at=at)
    assert isinstance(promoting, Promoting)
    assert promoting.verified().report.verdict is Verdict.ACCEPTED
    examined = examine_checkout(ROOT, promoting)
    assert any(REVIEW_ONLY in (check.actual or "") for check in examined.doctor.checks)


def test_a_chain_without_a_policy_is_wrong_usage() -> None:
    with pytest.raises(FindingError) as caught:
        read_promoting(chain=CHAIN, policy=None, trusted_root=None, at=None)
    assert caught.value.finding.id == "usage.invalid"
