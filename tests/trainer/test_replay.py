"""A real run repeats on this machine; a run whose numbers were forged so that it verifies does not."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mint2m_trainer.replay import ReplayRequest, replay
from mint2m_verify.anchor import KeyAnchor, VerifyOptions, read_key
from mint2m_verify.documents import RunProfile
from mint2m_verify.finding import FindingError, Standing, Verdict
from mint2m_verify.recompute import optimizer
from mint2m_verify.run import verify_run

VECTORS = Path(__file__).resolve().parents[1] / "vectors"


@pytest.fixture(scope="module")
def anchor() -> KeyAnchor:
    return read_key(VECTORS / "test-only-keys" / "release.pub")


@pytest.fixture(scope="module")
def maker() -> Iterator[ModuleType]:
    """The vectors' forger: it remakes every binding of a run without the verifier's code."""
    sys.path.insert(0, str(VECTORS))
    try:
        yield importlib.import_module("maker.cases_step")
    finally:
        sys.path.remove(str(VECTORS))


@pytest.mark.parametrize("base", ["run", pytest.param("run-one-rank", marks=pytest.mark.slow)])
def test_a_committed_run_is_repeated_within_its_tolerance(base: str) -> None:
    key = "release" if base == "run" else "release-p256"
    anchor = read_key(VECTORS / "test-only-keys" / f"{key}.pub")
    model = None if base == "run" else VECTORS / "bases" / "run" / "inputs" / "model"
    report = replay(ReplayRequest(run=VECTORS / "bases" / base, anchor=anchor, model=model))
    assert report.verdict is Verdict.ACCEPTED, report.findings
    assert {row.standing for row in report.requirements} == {Standing.REPLAYED} and len(report.requirements) == 5


def test_a_gradient_perturbed_by_a_thousandth_verifies_and_is_refused_here(
    anchor: KeyAnchor, maker: ModuleType, tmp_path: Path
) -> None:
    forge = importlib.import_module("maker.forge")
    run = forge.Run.of("run")
    draw = np.random.default_rng(5)
    gradient = {
        name: (g * (1 + 1e-3 * draw.choice([-1.0, 1.0], size=g.shape))).astype(g.dtype)
        for name, g in run.tensors(forge.GRADIENT).items()
    }
    run.put_tensors(forge.GRADIENT, gradient)
    maker.norms(run)
    _step_again(run, forge, gradient)
    maker.adapter_digests(run)
    run.follow(after="execution")
    for path, raw in run.files.items():
        (tmp_path / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / path).write_bytes(raw)
    # Everything in it agrees, and its signer is the right one: only a repetition can tell.
    verified = verify_run(tmp_path / "run", anchor, VerifyOptions())
    assert verified.verdict is Verdict.ACCEPTED, verified.findings
    report = replay(ReplayRequest(run=tmp_path / "run", anchor=anchor))
    assert report.verdict is Verdict.FAILED
    assert {fault.id for fault in report.findings} == {"replay.differs"}
    assert any("relative L2" in (fault.pointer or "") for fault in report.findings)


def _step_again(run: object, forge: ModuleType, gradient: dict[str, np.ndarray]) -> None:
    """The one step of the forged gradient, from zero state."""
    profile = RunProfile.parse(run.files["inputs/profile.json"], file="profile", canonical_form=False)  # type: ignore[attr-defined]
    coefficient = run.json(forge.SCORES)["clip_coefficient"]  # type: ignore[attr-defined]
    after, moments = {}, {}
    for name, before in run.tensors(forge.BEFORE).items():  # type: ignore[attr-defined]
        stepped = optimizer.first_step(before, gradient[name], coefficient, profile.optimizer)
        after[name] = stepped.parameter
        moments[f"{name}.exp_avg"], moments[f"{name}.exp_avg_sq"] = stepped.exp_avg, stepped.exp_avg_sq
    run.put_tensors(forge.AFTER, after)  # type: ignore[attr-defined]
    run.put_tensors(forge.MOMENTS, moments)  # type: ignore[attr-defined]


def test_another_model_than_the_runs_is_refused_before_anything_is_computed(anchor: KeyAnchor, tmp_path: Path) -> None:
    other = shutil.copytree(VECTORS / "bases" / "run" / "inputs" / "model", tmp_path / "model")
    config = other / "config.json"
    config.write_bytes(config.read_bytes() + b"\n")
    with pytest.raises(FindingError) as caught:
        replay(ReplayRequest(run=VECTORS / "bases" / "run", anchor=anchor, model=other))
    assert caught.value.finding.id == "replay.model-mismatch"


def test_a_run_without_its_model_asks_for_it() -> None:
    anchor = read_key(VECTORS / "test-only-keys" / "release-p256.pub")
    with pytest.raises(FindingError) as caught:
        replay(ReplayRequest(run=VECTORS / "bases" / "run-one-rank", anchor=anchor))
    assert caught.value.finding.id == "replay.model-missing"


def test_evidence_that_does_not_verify_is_not_repeated(anchor: KeyAnchor, tmp_path: Path) -> None:
    run = shutil.copytree(VECTORS / "bases" / "run", tmp_path / "run")
    (run / "artifacts" / "gradient.safetensors").write_bytes(b"")
    report = replay(ReplayRequest(run=run, anchor=anchor))
    assert report.verdict is Verdict.FAILED
    assert "replayed" not in {row.standing.value for row in report.requirements}
