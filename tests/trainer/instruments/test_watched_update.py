"""Instruments on whole updates of the oracle's model: they change no byte; two layouts run one function."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_trainer.instruments.divergence import compare
from mint2m_trainer.instruments.routing import read_routing, routing_consensus
from mint2m_trainer.instruments.trace_file import read_traces
from mint2m_trainer.model.spec import read_spec
from mint2m_trainer.parity_export import Constants, export_inputs, run_local
from mint2m_verify import layout


def run(oracle: Path, folder: Path, *, ranks: int, chunk: int, mode: str = "exact", watched: bool = True) -> bytes:
    """One update; its instruments' files go to `folder`. The gradient's bytes come back."""
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    inputs = export_inputs(
        oracle / "snapshot",
        oracle / "adapter",
        oracle / "rollout.json",
        "ratio1",
        mode,  # type: ignore[arg-type]
        ranks,
        "float32",
        run_dir,
        Constants(chunk_tokens=chunk),
    )
    run_local(replace(inputs, instruments=folder if watched else None))
    return (run_dir / layout.GRADIENT).read_bytes()


@pytest.mark.slow
def test_two_layouts_choose_alike_and_part_nowhere(shared: Callable[[str], Path], tmp_path: Path) -> None:
    oracle = shared("oracle") / "indexshare"
    one, two, plain = tmp_path / "one", tmp_path / "two", tmp_path / "plain"
    watched = run(oracle, one, ranks=1, chunk=50)
    run(oracle, two, ranks=2, chunk=16)
    assert run(oracle, plain, ranks=1, chunk=50, watched=False) == watched
    assert not list(plain.glob("trace-*"))

    result = compare(read_traces(one), read_traces(two), relative=1e-4)  # float32, sums in two orders
    assert result.first is None, str(result.first)
    assert result.tokens > 1000

    consensus = [
        routing_consensus(
            [
                read_routing(
                    place / f"routing-{rank:04d}.safetensors", rank=rank, world_size=ranks, limit_bytes=1 << 26
                )
                for rank in range(ranks)
            ],
            experts=json.loads((oracle / "snapshot" / "config.json").read_text())["n_routed_experts"],
        )
        for place, ranks in ((one, 1), (two, 2))
    ]
    assert consensus[0].expert_tokens == consensus[1].expert_tokens
    assert [(found.repeated > 0, found.repeated_differently) for found in consensus] == [(True, 0), (True, 0)]
    for rank in range(2):
        audit = json.loads((two / f"watch-{rank:04d}.json").read_text())["audit"]
        assert audit["tokens"] > 0
        assert audit["worst"] < 1e-5


@pytest.mark.slow
def test_replays_and_whole_sequences_are_one_function(shared: Callable[[str], Path], tmp_path: Path) -> None:
    oracle = shared("oracle") / "yarn"
    exact, whole = tmp_path / "exact", tmp_path / "whole"
    run(oracle, exact, ranks=1, chunk=50)
    run(oracle, whole, ranks=1, chunk=50, mode="conventional")
    result = compare(read_traces(exact), read_traces(whole), relative=1e-4, common_only=True)
    assert result.first is None, str(result.first)
    spec = read_spec(oracle / "snapshot")
    places = spec.layers + spec.indexers.count("full") + spec.mlps.count("sparse")  # hidden states, rows, experts
    responses = json.loads((oracle / "rollout.json").read_text())["responses"]
    # Scoring of old log-probs and replay each have every response token once.
    assert result.tokens == 2 * places * sum(map(len, responses))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2])
def test_the_detached_update_parts_nowhere_although_its_gradient_is_another(
    shared: Callable[[str], Path], tmp_path: Path, ranks: int
) -> None:
    """Forward traces cannot tell a detached prefix from an exact one: only the gradient's probe can."""
    oracle = shared("oracle") / "indexshare"
    exact, detached = tmp_path / "exact", tmp_path / "detached"
    run(oracle, exact, ranks=ranks, chunk=50)
    run(oracle, detached, ranks=ranks, chunk=50, mode="detached")
    assert compare(read_traces(exact), read_traces(detached), relative=1e-4, common_only=True).first is None
    norms = [
        {
            tensor["name"]: tensor["norm"]
            for tensor in json.loads((place / "watch-0000.json").read_text())["probe"]["tensors"]
        }
        for place in (exact, detached)
    ]
    apart = [abs(a - norms[1][name]) / a for name, a in norms[0].items() if a > 0]
    assert max(apart) > 0.05
