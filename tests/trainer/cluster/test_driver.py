"""What the driver refuses before anything starts, and what it looks at again when all phases are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_trainer.cluster import driver
from mint2m_verify.deployment_files import PlannedInputs, gather
from mint2m_verify.documents.plan import Plan
from mint2m_verify.finding import FindingError
from mint2m_verify.plan import build_plan


@pytest.fixture
def inputs(tmp_path: Path, tiny_deployment: Callable[..., Path]) -> PlannedInputs:
    made = gather(tiny_deployment(tmp_path / "run")).inputs
    assert made is not None
    return made


@pytest.fixture
def plan(inputs: PlannedInputs) -> Plan:
    return build_plan(inputs, run_id="r", instance_nonce="n")


def test_a_plan_without_an_image_is_never_run_on_accelerators(inputs: PlannedInputs, plan: Plan) -> None:
    driver.check_plan(plan, inputs, file="plan.json")  # in the reference class there are no containers
    review = replace(plan, deployment=replace(plan.deployment, hardware_class="h20-4x8")).addressed()
    with pytest.raises(FindingError) as refused:
        driver.check_plan(review, inputs, file="plan.json")
    assert refused.value.finding.id == "plan.review-only"


def test_source_that_changed_under_a_run_is_drift(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(driver.drift(plan)) == []
    monkeypatch.setattr(driver, "observed_sha256", lambda: "5" * 64)
    faults = list(driver.drift(plan))
    assert [(fault.id, fault.pointer) for fault in faults] == [
        ("run.identity-drift", "source"),
        ("run.identity-drift", "runtime identity"),  # which names the source
    ]
    assert (faults[0].expected, faults[0].actual) == (plan.source_sha256, "5" * 64)
