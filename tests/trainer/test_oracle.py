"""The whole update against right values made by another implementation in float64 over full sequences.

Log-probs, loss, clip counts, gradient by tensor, norm, clip coefficient, Adam moments and the stepped adapter. The
stepped weights alone would be blind: one Adam step hides a scaled gradient below 1e-6, so the moments are compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from mint2m_trainer.parity_export import (
    Constants,
    ExportError,
    export_inputs,
    oracle_run,
    read_rollout,
    write_export,
)
from mint2m_trainer.update import RankInputs
from mint2m_verify.finding import FindingError

LABELS = ("ratio1", "active_clip")


def cases() -> list[str]:
    """Every folder of the oracle; the two that there were where it is not at hand, so that their tests skip."""
    place = Path(os.environ.get("MINT2M_SHARED") or Path(__file__).parents[3] / "shared") / "oracle"
    return sorted(path.parent.name for path in place.glob("*/expected.json")) or ["indexshare", "yarn"]


COMBINATIONS = [(case, label, ranks) for case in cases() for label in LABELS for ranks in (1, 2)]
#: One of each case and number of ranks; the rest take the same paths.
QUICK = {("indexshare", "active_clip", 2), ("yarn", "ratio1", 1)}

#: Worlds whose one cut is tried of each case without being asked for more.
QUICK_WORLDS = {("indexshare", 2), ("yarn", 4)}


Updated = Callable[[RankInputs], Any]


def given(
    oracle: Path, place: Path, label: str, ranks: int, *, mode: str = "exact", dtype: str = "float32", **constants: Any
) -> RankInputs:
    """One update of a case with the oracle's own constants, in `place / "run"`."""
    settings = json.loads((oracle / "expected.json").read_text())["case"]["grpo"]
    return export_inputs(
        oracle / "snapshot",
        oracle / "adapter",
        oracle / "rollout.json",
        label,  # type: ignore[arg-type]
        mode,  # type: ignore[arg-type]
        ranks,
        dtype,  # type: ignore[arg-type]
        place / "run",
        Constants(**settings, **constants),
    )


def export(
    updated: Updated, oracle: Path, place: Path, label: str, ranks: int, *, mode: str = "exact", dtype: str = "float32",
    **constants: Any,
) -> dict[str, Any]:  # fmt: skip
    """What the export of such an update has, read back."""
    place.mkdir()
    updated(given(oracle, place, label, ranks, mode=mode, dtype=dtype, **constants))
    write_export(place / "run", place / "out", label, mode, ranks, dtype)
    return read_export(place / "out")


def read_export(out: Path) -> dict[str, Any]:
    """What an export wrote."""
    return {
        "gradients": load_file(out / "gradients.safetensors"),
        "stepped": load_file(out / "stepped.safetensors"),
        "moments": load_file(out / "moments.safetensors"),
        "logprobs": json.loads((out / "logprobs.json").read_text())["responses"],
        "report": json.loads((out / "report.json").read_text()),
    }


def norm(tensors: Any) -> float:
    return sum(float((np.asarray(t, dtype=np.float64) ** 2).sum()) for t in tensors) ** 0.5


@pytest.mark.parametrize(
    ("case", "label", "ranks"),
    [pytest.param(*c, marks=[] if c in QUICK else [pytest.mark.slow], id="-".join(map(str, c))) for c in COMBINATIONS],
)
def test_an_exact_float32_update_is_the_oracles(
    shared: Callable[[str], Path], tmp_path: Path, case: str, label: str, ranks: int
) -> None:
    oracle, out = shared("oracle") / case, tmp_path / "out"
    settings = json.loads((oracle / "expected.json").read_text())["case"]["grpo"]
    paths = (oracle / "snapshot", oracle / "adapter", oracle / "rollout.json")
    oracle_run(*paths, label, "exact", ranks, "float32", out, Constants(**settings))  # type: ignore[arg-type]
    check(read_export(out), oracle, label)


def check(found: dict[str, Any], oracle: Path, label: str) -> None:
    """An update's numbers are the oracle's, within what float32 can do."""
    right = load_file(oracle / "expected.safetensors")
    expected = json.loads((oracle / "expected.json").read_text())
    report, settings = found["report"], expected["case"]

    for response, logp in enumerate(found["logprobs"]):
        assert np.abs(np.array(logp) - right[f"{label}.logprobs.{response}"]).max() <= 1e-4
    assert abs(report["loss"] - expected[label]["loss"]) <= 1e-5
    assert report["advantages"] == pytest.approx(expected["advantages"], abs=1e-12)
    assert report["clipped_low"] == expected[label]["clipped_low_tokens"]
    assert report["clipped_high"] == expected[label]["clipped_high_tokens"]
    assert report["scored_tokens"] == expected["tokens_scored"]
    if report["kl"] is not None:
        assert report["kl"] == pytest.approx(expected[label]["kl_k3_token_mean"], rel=1e-5)

    stem = f"{label}.grad."
    want = {name.removeprefix(stem): value for name, value in right.items() if name.startswith(stem)}
    assert found["gradients"].keys() == want.keys()
    whole = norm(want.values())
    assert whole == pytest.approx(expected[label]["grad_norm"], rel=1e-12)
    assert norm(found["gradients"][name] - want[name] for name in want) <= 1e-4 * whole
    compared = 0
    for name, value in want.items():
        if norm([value]) > 1e-6 * whole:
            assert norm([found["gradients"][name] - value]) <= 1e-3 * norm([value]), name
            compared += 1
    assert compared > 0.9 * len(want)
    assert report["gradient_norm"] == pytest.approx(whole, rel=1e-5)
    coefficient = min(1.0, settings["optimizer"]["clip_grad"] / (whole + 1e-6))
    assert report["clip_coefficient"] == pytest.approx(coefficient, rel=1e-5)

    for kind, moment in (
        ("exp_avg", lambda g: 0.1 * coefficient * g),
        ("exp_avg_sq", lambda g: 0.001 * (coefficient * g) ** 2),
    ):
        made = {name: found["moments"][f"{name}.{kind}"].astype(np.float64) for name in want}
        due = {name: moment(value) for name, value in want.items()}
        assert norm(made[name] - due[name] for name in want) <= 1e-4 * norm(due.values())
    for name in want:
        assert np.abs(found["stepped"][name] - right[f"{label}.stepped.{name}"]).max() <= 1e-5, name
    before = load_file(oracle / "adapter" / "adapter_model.safetensors")
    for name, gradient in found["gradients"].items():
        due = torch_step(before[name], gradient * np.float32(report["clip_coefficient"]), settings["optimizer"])
        assert (np.abs(found["stepped"][name] - due) <= np.spacing(np.abs(due))).all(), f"{name} by more than an ulp"


def torch_step(before: np.ndarray, gradient: np.ndarray, settings: dict[str, float]) -> np.ndarray:
    """One step of torch's own AdamW from zero state, on a clipped gradient."""
    parameter = torch.nn.Parameter(torch.from_numpy(before.copy()))
    parameter.grad = torch.from_numpy(gradient)
    optimizer = torch.optim.AdamW([parameter], lr=settings["lr"], weight_decay=settings["weight_decay"], foreach=False)
    optimizer.step()
    return parameter.detach().numpy()


#: Chunk, page rows, route; a chunk of 4,096 is the whole prompt.
CUTS = [(chunk, page, "fetch") for chunk in (16, 50, 4096) for page in (8, 64)] + [(16, 8, "lse"), (4096, 64, "lse")]
SOME_CUTS = {1: (50, 64, "fetch"), 2: (50, 64, "lse"), 4: (16, 8, "fetch")}


@pytest.mark.parametrize(
    ("every", "case", "world"),
    [
        pytest.param(
            every,
            case,
            world,
            id=f"{'every' if every else 'some'}-{case}-{world}",
            marks=[] if not every and (case, world) in QUICK_WORLDS else [pytest.mark.slow],
        )
        for every in (False, True)
        for case in cases()
        for world in (1, 2, 4)
    ],
)
def test_any_ranks_chunks_pages_and_route_give_the_oracles_update(
    shared: Callable[[str], Path],
    tmp_path: Path,
    updated: Updated,
    case: str,
    world: int,
    every: bool,
) -> None:
    oracle = shared("oracle") / case
    experts = json.loads((oracle / "snapshot/config.json").read_text())["n_routed_experts"]
    if experts % world:
        pytest.skip(f"{experts} experts do not divide over {world} ranks")
    cuts, labels = (CUTS, LABELS) if every else ([SOME_CUTS[world]], LABELS[world // 4 :][:1])
    for number, (label, (chunk, page, route)) in enumerate((label, cut) for label in labels for cut in cuts):
        cut = {"chunk_tokens": chunk, "page_rows": page, "route": route}
        check(export(updated, oracle, tmp_path / str(number), label, world, **cut), oracle, label)


def test_a_reference_scored_here_is_the_one_that_the_oracle_recorded(
    shared: Callable[[str], Path], tmp_path: Path, updated: Updated
) -> None:
    """The drift term from the base model's own pages, chunks of another size and choices made again."""
    oracle = shared("oracle") / "indexshare"
    right = load_file(oracle / "expected.safetensors")
    cut = {"ref_source": "recompute", "decisions": "rescore", "chunk_tokens": 50}
    found = export(updated, oracle, tmp_path / "here", "active_clip", 1, **cut)
    expected = json.loads((oracle / "expected.json").read_text())["active_clip"]
    assert found["report"]["kl"] == pytest.approx(expected["kl_k3_token_mean"], rel=1e-5)
    assert abs(found["report"]["loss"] - expected["loss"]) <= 1e-5
    want = {name: right[f"active_clip.grad.{name}"] for name in found["gradients"]}
    assert norm(found["gradients"][name] - want[name] for name in want) <= 1e-4 * norm(want.values())


@pytest.mark.parametrize("case", ["indexshare", pytest.param("yarn", marks=pytest.mark.slow)])
def test_in_float64_exact_is_conventional_and_detached_is_not(
    shared: Callable[[str], Path], tmp_path: Path, updated: Updated, case: str
) -> None:
    oracle = shared("oracle") / case
    found = {
        mode: export(updated, oracle, tmp_path / mode, "active_clip", ranks, mode=mode, dtype="float64")
        for mode, ranks in (("conventional", 1), ("exact", 2), ("detached", 1))
    }
    right = found["conventional"]["gradients"]
    assert all(value.dtype == np.float64 for value in right.values())
    whole = norm(right.values())
    assert norm(found["exact"]["gradients"][name] - right[name] for name in right) < 1e-12 * whole
    assert norm(found["detached"]["gradients"][name] - right[name] for name in right) > 0.1 * whole
    for mode in ("exact", "detached"):  # no log-prob gate can tell the two apart
        for a, b in zip(found[mode]["logprobs"], found["conventional"]["logprobs"], strict=True):
            assert a == pytest.approx(b, abs=1e-12)
        assert found[mode]["report"]["loss"] == pytest.approx(found["conventional"]["report"]["loss"], abs=1e-13)


def test_an_export_overwrites_nothing_and_refuses_what_it_does_not_know(
    shared: Callable[[str], Path], tmp_path: Path
) -> None:
    oracle = shared("oracle") / "yarn"
    paths = (oracle / "snapshot", oracle / "adapter", oracle / "rollout.json")
    with pytest.raises(ExportError):
        oracle_run(*paths, "ratio2", "exact", 1, "float32", tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(ExportError):
        oracle_run(*paths, "ratio1", "exact", 0, "float32", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("kept")
    with pytest.raises(FileExistsError):
        oracle_run(*paths, "ratio1", "exact", 1, "float32", tmp_path / "full")
    assert (tmp_path / "full/file").read_text() == "kept"


def test_an_engines_rollout_without_schema_is_read_strictly(shared: Callable[[str], Path], tmp_path: Path) -> None:
    rollout = read_rollout(shared("oracle") / "yarn/rollout.json")
    assert (len(rollout.prompt_tokens), [len(r) for r in rollout.responses]) == (200, [3, 3])
    value = json.loads((shared("oracle") / "yarn/rollout.json").read_text())
    (tmp_path / "bad.json").write_text(json.dumps(value | {"extra": 1}))
    with pytest.raises(FindingError, match="schema"):
        read_rollout(tmp_path / "bad.json")
