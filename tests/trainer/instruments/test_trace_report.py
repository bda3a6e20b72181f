"""`parity trace`: two watched updates of one model agree, and a perturbed weight is found in its layer and rank."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from mint2m.__main__ import run as command_line
from mint2m_trainer.parity_export import Constants, export_inputs, run_local
from mint2m_trainer.update import RankInputs

EXPERT = "model.layers.2.mlp.experts.5.down_proj.weight"


def given(oracle: Path, snapshot: Path, folder: Path, *, ranks: int) -> RankInputs:
    """A watched update of `snapshot`; its instruments' files go to `folder`."""
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    inputs = export_inputs(
        snapshot, oracle / "adapter", oracle / "rollout.json", "ratio1", "exact", ranks, "float32", run_dir,
        Constants(chunk_tokens=50),
    )  # fmt: skip
    return replace(inputs, instruments=folder)


@pytest.fixture
def watched(updated: Callable[[RankInputs], Any]) -> Callable[..., Path]:
    """Runs what is `given` and returns the directory of its instruments' files."""

    def run(oracle: Path, snapshot: Path, folder: Path, *, ranks: int) -> Path:
        updated(given(oracle, snapshot, folder, ranks=ranks))
        return folder

    return run


def perturbed(oracle: Path, place: Path, name: str) -> Path:
    """The snapshot with one weight made larger by a hundredth."""
    shutil.copytree(oracle / "snapshot", place, copy_function=shutil.copyfile)
    index = place / "model.safetensors.index.json"
    shards = [json.loads(index.read_text())["weight_map"][name]] if index.exists() else ["model.safetensors"]
    tensors = load_file(place / shards[0])
    tensors[name] = tensors[name] * 1.01
    save_file(tensors, place / shards[0], metadata={"format": "pt"})
    return place


def compare(*words: object) -> tuple[int, dict[str, Any]]:
    done = command_line(["parity", "trace", *map(str, words), "--format", "json"])
    return int(done.verdict), json.loads(done.text)


@pytest.fixture(scope="module")
def plain(shared: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A watched update of the oracle's own model on one rank."""
    oracle = shared("oracle") / "indexshare"
    folder = tmp_path_factory.mktemp("traces") / "plain"
    run_local(given(oracle, oracle / "snapshot", folder, ranks=1))
    return folder


def test_a_perturbed_expert_is_found_in_its_layer_and_on_its_rank(
    shared: Callable[[str], Path], watched: Callable[..., Path], plain: Path, tmp_path: Path
) -> None:
    oracle = shared("oracle") / "indexshare"
    other = watched(oracle, perturbed(oracle, tmp_path / "snapshot", EXPERT), tmp_path / "other", ranks=2)
    code, report = compare(plain, other)
    assert code == 1
    (finding,) = report["findings"]
    assert finding["id"] == "parity.trace-diverged"
    assert finding["stage"] == "policy.capture"
    assert finding["pointer"].startswith("layer 2, hidden, position ")
    assert finding["expected"].startswith("rank 0: ")
    assert finding["actual"].startswith(("rank 0: ", "rank 1: ", "ranks 0, 1: "))


def test_two_layouts_of_one_model_part_nowhere(
    shared: Callable[[str], Path], watched: Callable[..., Path], plain: Path, tmp_path: Path
) -> None:
    oracle = shared("oracle") / "indexshare"
    two = watched(oracle, oracle / "snapshot", tmp_path / "two", ranks=2)
    code, report = compare(plain, two)
    assert (code, report["findings"], report["summary"]) == (0, [], "the runs part nowhere")
    assert compare(plain, two, "--max-relative", "0")[0] == 1, "sums in two orders are not the same bits"


@pytest.mark.parametrize("spoil", ["no directory", "no trace", "a rank short", "no JSON"])
def test_what_is_no_trace_is_refused(tmp_path: Path, spoil: str) -> None:
    place = tmp_path / "traces"
    if spoil != "no directory":
        place.mkdir()
    if spoil == "a rank short":
        trace = {"format": "layer-trace/1", "points": [], "rank": 0, "stride": 1, "world_size": 2}
        (place / "trace-0000.json").write_text(json.dumps(trace, separators=(",", ":"), sort_keys=True))
    if spoil == "no JSON":
        (place / "trace-0000.json").write_text("{")
    code, report = compare(place, place)
    wanted = {"no directory": "input.missing", "no JSON": "json.malformed"}.get(spoil, "parity.trace-invalid")
    assert [finding["id"] for finding in report["findings"]] == [wanted]
    assert code == (1 if spoil == "no JSON" else 2)
