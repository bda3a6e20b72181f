"""A stage of a committed promotion run repeats on this machine; one whose shards were copied verifies and does not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m_trainer.replay import Tolerance
from mint2m_trainer.stages.replay_stage import Repeatable, StageReplayRequest, replay_stage, stage_request
from mint2m_verify.anchor import read_key
from mint2m_verify.chain import places
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.recompute.evidence import Evidence
from mint2m_verify.chain.recomputing import recompute
from mint2m_verify.chain.verify import verify_chain
from mint2m_verify.documents.validation import StageRanks, ValidationPlan
from mint2m_verify.finding import FindingError, Standing, Verdict
from mint2m_verify.findings import drain
from mint2m_verify.walk import read_tree

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
KEYS = VECTORS / "test-only-keys"


def request(evidence: Path, stage: Repeatable) -> StageReplayRequest:
    return StageReplayRequest(
        evidence=evidence,
        stage=stage,
        anchor=read_key(KEYS / "release.pub"),
        plan_anchor=read_key(KEYS / "planner.pub"),
        model=None,
        tolerance=Tolerance(),
    )


@pytest.fixture(scope="module")
def forge() -> Iterator[ModuleType]:
    """The vectors' forger: it remakes every binding of a chain without the verifier's code."""
    sys.path.insert(0, str(VECTORS))
    try:
        yield importlib.import_module("maker.chain_forge")
    finally:
        sys.path.remove(str(VECTORS))


def lay(chain: object, place: Path) -> Path:
    for path, raw in chain.files.items():  # type: ignore[attr-defined]
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(raw)
    return place


def copy_side(chain: Any, case: str, scratch: Path) -> None:
    """The conventional side's numbers as the exact side's, with everything that binds or repeats them made right."""
    names = ("rank-0.safetensors", "rank-1.safetensors", "scores.json", "stepped.safetensors")
    for name in names:
        chain.files[f"{case}exact/{name}"] = chain.files[f"{case}conventional/{name}"]
    for rank in (0, 1):
        step = f"rank-{rank}.step.json"
        stepped = chain.json(f"{case}conventional/{step}")["phases"][0]["evidence"]["adapter_sha256"]
        record = chain.json(f"{case}exact/{step}")
        record["phases"][0]["evidence"]["adapter_sha256"] = stepped
        chain.put(f"{case}exact/{step}", record)
    where = places.PLACES["parity-32k"]
    lay(chain, scratch)
    plan = ValidationPlan.parse(chain.files[places.PLAN], file=places.PLAN)
    planned = plan.stage("parity-32k")
    assert planned is not None
    held = Evidence(
        plan=plan,
        planned=planned,
        execution_id=chain.execution("parity-32k"),
        ranks=StageRanks.parse(chain.files[where.ranks], file=where.ranks),
        files={file.path: file for file in read_tree(scratch, keep=places.kept_bytes).files},
        roots=(scratch,),
    )
    faults, judged = drain(recompute(held, scratch))
    assert faults == ()
    for number in judged.numbers:
        chain.number("parity-32k", number.name, number.value)
    chain.follow(after="parity-32k")


def test_the_actor_stage_is_repeated_tensor_by_tensor() -> None:
    report = replay_stage(request(VECTORS / "bases" / "chain", "actor"))
    assert report.verdict is Verdict.ACCEPTED, report.findings
    assert {row.standing for row in report.requirements} == {Standing.REPLAYED}


@pytest.mark.slow
def test_a_parity_stage_is_repeated_on_both_sides_of_both_cases() -> None:
    report = replay_stage(request(VECTORS / "bases" / "chain", "parity-32k"))
    assert report.verdict is Verdict.ACCEPTED, report.findings
    assert {row.standing for row in report.requirements} == {Standing.REPLAYED}
    assert len(report.requirements) == 4 * 5 + 2


@pytest.mark.slow
def test_shards_copied_from_the_conventional_side_verify_and_are_refused_here(
    forge: ModuleType, tmp_path: Path
) -> None:
    chain = forge.Chain.of("chain")
    copy_side(chain, f"{forge.tree_of('parity-32k')}active_clip/", tmp_path / "copied")
    place = lay(chain, tmp_path / "chain")
    options = ChainOptions(plan_anchor=read_key(KEYS / "planner.pub"))
    verified = verify_chain(place, read_key(KEYS / "release.pub"), options)
    assert verified.verdict is Verdict.ACCEPTED, verified.findings
    report = replay_stage(request(place, "parity-32k"))
    assert report.verdict is Verdict.FAILED
    assert {fault.id for fault in report.findings} == {"replay.differs"}
    assert any("exact against conventional" in (fault.pointer or "") for fault in report.findings)


def test_evidence_that_does_not_verify_is_not_repeated(tmp_path: Path, forge: ModuleType) -> None:
    chain = forge.Chain.of("chain")
    chain.files["actor.json"] += b" "
    report = replay_stage(request(lay(chain, tmp_path / "chain"), "actor"))
    assert report.verdict is not Verdict.ACCEPTED
    assert "replayed" not in {row.standing.value for row in report.requirements}


@pytest.mark.parametrize("word", ["scale-2m", "doctor", "", None])
def test_a_stage_that_cannot_be_repeated_is_wrong_usage(word: str | None) -> None:
    made = request(VECTORS / "bases" / "chain", "actor")
    with pytest.raises(FindingError) as caught:
        stage_request(
            made.evidence, word, anchor=made.anchor, plan_key=None, model=None, tolerance=replace(made.tolerance)
        )
    assert caught.value.finding.id == "usage.invalid"
