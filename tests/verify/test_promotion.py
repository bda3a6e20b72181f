"""What promotes the cluster class: every gate, each by a verified chain of that class, and nothing of another class."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_verify.anchor import read_key
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain import places
from mint2m_verify.chain.lock_check import check_planned_lock
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.verify import AUTHORIZED, INPUTS, LOCKED, verify_chain
from mint2m_verify.doctor import examine_checkout
from mint2m_verify.documents.base import FileRef
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
from mint2m_verify.walk import read_tree

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
CHAIN = VECTORS / "bases" / "chain"
SOURCE = "ab" * 32


def plan() -> ValidationPlan:
    return ValidationPlan.parse((CHAIN / places.PLAN).read_bytes(), file=places.PLAN)


def gpu_chain() -> VerifiedChain:
    """What an accepted chain of the cluster class comes to; there is none, so the report is written here."""
    rows = tuple(
        Requirement(required=name, found="all", standing=Standing.CHECKED) for name in (INPUTS, AUTHORIZED, LOCKED)
    )
    made = replace(
        plan(),
        hardware_class=GPU_CLASS,
        image_digest=f"sha256:{'cd' * 32}",
        source_sha256=SOURCE,
        backend="nccl",
        runtime_lock=FileRef(path="inputs/runtime-lock.json", sha256="ef" * 32, size=1),
    )
    return VerifiedChain(report=Report(subject="chain", command="verify chain", requirements=rows), plan=made)


def test_all_gates_met_is_runnable() -> None:
    made = promotion((), gpu_chain(), source=SOURCE)
    assert [gate.met for gate in made.gates] == [True] * 5 and made.status == RUNNABLE


def without(chain: VerifiedChain, required: str) -> VerifiedChain:
    rows = tuple(row for row in chain.report.requirements if row.required != required)
    return replace(chain, report=replace(chain.report, requirements=rows))


def test_a_lock_promotes_only_where_the_plan_binds_it_and_the_chain_was_held_against_it() -> None:
    chain = gpu_chain()
    assert chain.plan is not None
    unbound = replace(chain, plan=replace(chain.plan, runtime_lock=None))
    for made in (promotion((), unbound, source=SOURCE), promotion((), without(chain, LOCKED), source=SOURCE)):
        assert [gate.name for gate in made.gates if not gate.met] == ["runtime lock"] and made.status == REVIEW_ONLY


def locked(tmp_path: Path, **changes: object) -> tuple[str, list[str]]:
    """What the check of a planned lock says where the chain's plan binds one of the identity's packages."""
    place = Path(shutil.copytree(CHAIN, tmp_path / "chain"))
    identity = json.loads((place / plan().runtime_identity.path).read_bytes())
    lock = {
        "schema": "mint2m.runtime-lock/v1",
        "name": "lock",
        "environment": "cpu",
        "base_image": {"name": "python", "digest": f"sha256:{sha256_hex(b'base')}"},
        "container_file": {"name": "cpu.Containerfile", "sha256": sha256_hex(b"file")},
        "python": identity["python"],
        "wheels": [item | {"sha256": [sha256_hex(item["name"].encode())]} for item in identity["packages"]],
        "system_packages": [],
        "drivers": None,
    } | changes
    (place / "inputs/runtime-lock.json").write_text(json.dumps(lock))
    ref = FileRef.of("inputs/runtime-lock.json", (place / "inputs/runtime-lock.json").read_bytes())
    files = {file.path: file for file in read_tree(place, keep=places.kept_bytes).files}
    findings, check = [], check_planned_lock(replace(plan(), runtime_lock=ref), files)
    while True:
        try:
            findings.append(next(check).id)
        except StopIteration as end:
            return str(end.value), findings


def test_a_planned_lock_is_held_against_itself_and_the_planned_identity(tmp_path: Path) -> None:
    words, findings = locked(tmp_path / "right")
    assert findings == [] and words.startswith("lock, cpu, ")
    assert locked(tmp_path / "half", base_image=None)[1] == ["validation-plan.lock-unresolved"]
    assert locked(tmp_path / "form", wheels=[])[1] == ["validation-plan.lock-unresolved"]
    other = {"implementation": "CPython", "version": "3.10.1"}
    assert locked(tmp_path / "python", python=other)[1] == ["validation-plan.lock-differs"]
    drivers = {"cuda_driver_minimum": "580.65.06", "nccl": "2.28.3"}
    cuda = locked(tmp_path / "class", environment="cuda13", drivers=drivers)
    assert cuda[1] == ["validation-plan.lock-differs"]


CHANGES = {
    "runtime lock": lambda chain: replace(chain, plan=replace(chain.plan, image_digest=None)),
    "authorization": lambda chain: without(chain, AUTHORIZED),
    "inputs": lambda chain: without(chain, INPUTS),
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
