"""The backend without a model: its lifecycle is whole, and no update can be made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mint2m_trainer.cluster.journal import read
from mint2m_trainer.deployments import PACKAGED, packaged_profile
from mint2m_trainer.instruments.fake_backend import VOCABULARY, FakeUpdate, Lifecycle
from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.rank_inputs import RankInputs
from mint2m_verify import phases, schema
from mint2m_verify.documents import Rollout, RunProfile

HERE = Path(__file__).parent
PROMPT, RESPONSES = 21, ((3, 1, 2), (5,))


def profile(world: int, gradient: str = "exact") -> RunProfile:
    made = packaged_profile(PACKAGED["local"])
    return replace(
        made,
        topology=replace(made.topology, world_size=world, context_parallel=world, expert_parallel=world),
        context=replace(made.context, prompt_tokens=PROMPT),
        prefix=replace(made.prefix, chunk_tokens=6, gradient=gradient),  # type: ignore[arg-type]
    )


def fake(rank: int = 0, world: int = 1, gradient: str = "exact") -> FakeUpdate:
    return FakeUpdate(
        RankInputs(
            rank=rank,
            world_size=world,
            master_address="127.0.0.1",
            master_port=1,
            run_dir=Path("/nowhere"),
            snapshot=Path("/nowhere"),
            adapter=None,
            profile=profile(world, gradient),
            rollout=Rollout(
                prompt_tokens=tuple(range(PROMPT)),
                responses=RESPONSES,
                rewards=(1.0, -1.0),
                old_logprobs=None,
                ref_logprobs=None,
            ),
            plan_sha256="1" * 64,
            execution_id="2" * 64,
            image_digest=None,
        )
    )


def through(update: FakeUpdate) -> Lifecycle:
    for phase in update.phases:
        assert update.run(phase).files == ()
    return update.lifecycle


@pytest.mark.parametrize("world", [1, 2, 8])
def test_every_rank_goes_through_all_phases_once(world: int) -> None:
    for rank in range(world):
        seen = through(fake(rank, world))
        # 20 prefix tokens in chunks of 6
        assert (seen.appends_undone, seen.chunks_captured, seen.chunks_released) == (1, 4, 4)
        assert seen.backward_events == (1, 1)
        assert (seen.finalized, seen.stepped) == (1, 1)
        assert seen.probe is not None
        assert seen.probe.looked_at == 8


def test_its_gradient_is_that_of_the_formula_in_its_docstring() -> None:
    """d(-reward sum log p)/dW over both responses: sum_t x_t (softmax - onehot)^T, at W = 0 all logits are equal."""
    update = fake()
    for phase in update.phases[: update.phases.index(phases.FINALIZE) + 1]:
        update.run(phase)
    table = update._rows.double()
    context = table[torch.arange(PROMPT - 1) % VOCABULARY].mean(0)
    gradient = torch.zeros(4, VOCABULARY, dtype=torch.float64)
    for reward, response in zip((1.0, -1.0), RESPONSES, strict=True):
        for token, after in zip((PROMPT - 1, *response), response, strict=False):
            slope = torch.full((VOCABULARY,), 1 / VOCABULARY, dtype=torch.float64)
            slope[after] -= 1
            gradient += reward * torch.outer(table[token % VOCABULARY] + context, slope)
    probe = update.lifecycle.probe
    assert probe is not None
    assert probe.norm == pytest.approx(float(gradient.norm()), rel=1e-5)
    (tensor,) = probe.tensors
    assert list(tensor.values) == pytest.approx([float(gradient.flatten()[p]) for p in tensor.positions], abs=1e-6)


def test_a_detached_profile_has_no_reverse_and_releases_at_the_end() -> None:
    update = fake(gradient="detached")
    assert phases.PREFIX_BACKWARD not in update.phases
    assert through(update).chunks_released == 0
    update.close()
    update.close()


@pytest.mark.parametrize("skipped", range(1, 9))
def test_a_phase_out_of_order_is_refused_and_ends_nothing_else(skipped: int) -> None:
    update = fake()
    for phase in update.phases[:skipped]:
        update.run(phase)
    for phase in update.phases:
        if phase != update.phases[skipped]:
            with pytest.raises(InstrumentError, match=f"{update.phases[skipped]} is"):
                update.run(phase)
    update.run(update.phases[skipped])


def test_after_a_failure_or_close_no_phase_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    update = fake()
    update.run(phases.BIND)
    monkeypatch.setattr(update, "_seen", lambda _phase: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        update.run(phases.INITIALIZE)
    monkeypatch.undo()
    with pytest.raises(InstrumentError, match="nothing is"):
        update.run(phases.INITIALIZE)
    closed = fake()
    closed.close()
    with pytest.raises(InstrumentError):
        closed.run(phases.BIND)


def test_its_evidence_is_what_no_schema_allows_and_lacks_what_an_update_must_have() -> None:
    update = fake()
    seen = {phase: update.run(phase).evidence for phase in update.phases}
    assert seen[phases.INITIALIZE].backend == "fake"
    text = schema.schema_text("rank-sessions")
    assert '"gloo"' in text
    assert '"fake"' not in text
    for phase in update.phases:
        missing = [name for name in phases.required_evidence(phase) if getattr(seen[phase], name) is None]
        assert missing, phase


@pytest.mark.ray
def test_a_whole_run_of_it_leaves_no_receipt_and_nothing_running(
    tmp_path: Path, tiny_profile: Callable[..., Path]
) -> None:
    root = tmp_path / "out"
    backend = "mint2m_trainer.instruments.fake_backend:FakeUpdate"
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "drive_run.py"), backend),
            *("run", "--deployment", "local", "--profile", str(tiny_profile()), "--output", str(root)),
            *("--format", "json"),
        ],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode != 0
    report = json.loads(done.stdout)
    assert [finding["id"] for finding in report["findings"]] == ["file.missing"]
    assert not (root / "receipt.json").exists()
    assert not (root / "attestations").exists()
    ledger = read(root / "ownership.jsonl")
    assert ledger.closed
    assert ledger.events[-1].detail == "complete"  # the lifecycle was; the update was none
    assert not ledger.owned
