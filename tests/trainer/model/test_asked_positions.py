"""YaRN where the profile asks for it: the oracle's own numbers on a checkpoint that knows nothing of YaRN."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mint2m_trainer.contract.positions import LongPositions, PositionsError, of_profile
from mint2m_trainer.model.position import inverse_frequencies
from mint2m_trainer.model.spec import parse_spec, read_spec
from mint2m_trainer.parity_export import Constants, export_inputs, run_local
from mint2m_trainer.update import RankInputs
from mint2m_verify import documents, layout
from mint2m_verify.deployment_checks import _positions
from mint2m_verify.documents.inputs import LongPositions as Asked
from mint2m_verify.documents.inputs import YarnParameters
from mint2m_verify.finding import FindingError


def asked(**change: Any) -> Asked:
    """What the oracle's own config says."""
    rope: dict[str, Any] = {
        "rope_type": "yarn",
        "rope_theta": 8e6,
        "factor": 2.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "truncate": True,
    }
    return Asked(max_position_embeddings=256, rope_parameters=YarnParameters(**{**rope, **change}))


def native(oracle: Path, place: Path) -> Path:
    """The oracle's snapshot as it was before anybody stretched it."""
    shutil.copytree(oracle / "snapshot", place, copy_function=shutil.copyfile)
    config = json.loads((place / "config.json").read_text())
    config["max_position_embeddings"] = 128
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 8e6}
    (place / "config.json").write_text(json.dumps(config))
    return place


def given(oracle: Path, snapshot: Path, run_dir: Path, positions: Asked | None) -> RankInputs:
    run_dir.mkdir()
    inputs = export_inputs(
        snapshot, oracle / "adapter", oracle / "rollout.json", "ratio1", "exact", 1, "float32", run_dir,
        Constants(chunk_tokens=50),
    )  # fmt: skip
    profile = replace(inputs.profile, model=replace(inputs.profile.model, positions=positions))
    assert documents.RunProfile.parse(profile.encode(), file="profile.json") == profile
    return replace(inputs, profile=profile)


def test_a_profile_that_asks_gets_the_oracles_numbers_and_one_that_does_not_gets_others(
    shared: Callable[[str], Path], tmp_path: Path, updated: Callable[[RankInputs], Any]
) -> None:
    def update(oracle: Path, snapshot: Path, run_dir: Path, positions: Asked | None) -> documents.Scores:
        updated(given(oracle, snapshot, run_dir, positions))
        return documents.Scores.parse((run_dir / layout.SCORES).read_bytes(), file="scores")

    oracle = shared("oracle") / "yarn"
    plain = native(oracle, tmp_path / "native")
    expected = load_file(oracle / "expected.safetensors")
    scores = update(oracle, plain, tmp_path / "asked", asked())
    for g, response in enumerate(scores.responses):
        want = expected[f"ratio1.logprobs.{g}"].double()
        assert float((torch.tensor(response.policy, dtype=torch.float64) - want).abs().max()) < 2e-4
    own = update(oracle, oracle / "snapshot", tmp_path / "own", None)
    assert [r.policy for r in own.responses] == [r.policy for r in scores.responses], "the same function, bit for bit"
    gradients = [(tmp_path / name / layout.GRADIENT).read_bytes() for name in ("asked", "own")]
    assert gradients[0] == gradients[1]
    unasked = update(oracle, plain, tmp_path / "unasked", None)
    apart = max(
        float((torch.tensor(r.policy).double() - expected[f"ratio1.logprobs.{g}"].double()).abs().max())
        for g, r in enumerate(unasked.responses)
    )
    assert apart > 1e-2, "by default the checkpoint's positions are used as they are"


def test_the_frequencies_are_those_of_the_paper_outside_the_blend_and_between_them_inside(
    small_snapshot: Path,
) -> None:
    """arXiv 2309.00071, section 3.2: with r(d) = L / lambda_d rotations over the native length L, a pair that turns
    more than beta_fast times is kept, one that turns less than beta_slow times is divided by the factor s."""
    width, theta, length, factor = 64, 8e6, 1_048_576, 2.0000152587890625
    positions = of_profile(
        Asked(
            max_position_embeddings=2_097_168,
            rope_parameters=replace(
                asked().rope_parameters,
                original_max_position_embeddings=length,
                factor=factor,
                truncate=False,
            ),
        )
    )
    config = json.loads((small_snapshot / "config.json").read_text())
    config |= {
        "qk_rope_head_dim": width,
        "qk_head_dim": config["qk_nope_head_dim"] + width,
        "head_dim": width,
        "index_head_dim": width,
        "max_position_embeddings": length,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }
    spec = parse_spec(positions.applied(config))
    found = inverse_frequencies(spec, torch.float64)
    kinds = set()
    for pair in range(width // 2):
        base = theta ** (-2 * pair / width)
        turns = length * base / (2 * math.pi)
        if turns > 32:
            kinds.add("kept")
            assert float(found[pair]) == pytest.approx(base, rel=1e-6)
        elif turns < 1:
            kinds.add("stretched")
            assert float(found[pair]) == pytest.approx(base / factor, rel=1e-6)
        else:
            kinds.add("blended")
            assert base / factor < float(found[pair]) < base
    assert kinds == {"kept", "stretched", "blended"}
    # Section 3.4: attention logits are scaled by (0.1 ln s + 1)^2.
    plain = replace(spec, yarn=None).softmax_scale
    assert spec.softmax_scale == pytest.approx(plain * (0.1 * math.log(factor) + 1) ** 2, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"factor": 2.5}, "/rope_parameters/factor"),
        ({"beta_slow": 40.0}, "/rope_parameters/beta_slow"),
    ],
)
def test_positions_that_contradict_themselves_are_refused_by_doctor_and_trainer(
    change: dict[str, Any], pointer: str, shared: Callable[[str], Path]
) -> None:
    wrong = asked(**change)
    with pytest.raises(PositionsError, match=pointer):
        of_profile(wrong)
    profile = export_inputs(
        shared("oracle") / "yarn/snapshot", shared("oracle") / "yarn/adapter", shared("oracle") / "yarn/rollout.json",
        "ratio1", "exact", 1, "float32", Path(), Constants(),
    ).profile  # fmt: skip
    (fault,) = _positions(replace(profile, model=replace(profile.model, positions=wrong)), "profile.json")
    assert (fault.id, fault.pointer) == ("profile.unsupported", f"/model/positions{pointer}")
    short = replace(asked(), max_position_embeddings=64)
    pointers = [
        fault.pointer for fault in _positions(replace(profile, model=replace(profile.model, positions=short)), "p")
    ]
    assert "/model/positions/max_position_embeddings" in pointers


def test_a_checkpoint_that_is_stretched_already_or_of_another_length_is_refused(
    shared: Callable[[str], Path], tmp_path: Path
) -> None:
    oracle = shared("oracle") / "yarn"
    positions: LongPositions = of_profile(asked())
    with pytest.raises(PositionsError, match="/max_position_embeddings"):
        read_spec(oracle / "snapshot", positions)
    with pytest.raises(FindingError) as caught:
        run_local(given(oracle, oracle / "snapshot", tmp_path / "twice", asked()))
    assert caught.value.finding.id == "rank.input-refused"
    assert "/max_position_embeddings" in (caught.value.finding.actual or "")
