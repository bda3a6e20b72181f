"""Rotation against Hugging Face's own tables and rotation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mint2m_trainer.model.position import RotaryTable
from mint2m_trainer.model.spec import parse_spec

ROPES = {
    "default": {"rope_theta": 10000.0, "rope_type": "default"},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 8e6,
        "factor": 2.5,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
        "truncate": False,
    },
    "yarn without mscale": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("kind", ROPES)
def test_cosines_sines_and_rotated_pairs_are_hugging_faces_to_the_bit(small_snapshot: Path, kind: str) -> None:
    modeling = pytest.importorskip("transformers.models.glm_moe_dsa.modeling_glm_moe_dsa")
    config: dict[str, Any] = json.loads((small_snapshot / "config.json").read_text())
    config["rope_parameters"] = ROPES[kind]
    theirs = modeling.GlmMoeDsaRotaryEmbedding(modeling.GlmMoeDsaConfig(**config))
    positions = torch.tensor([0, 1, 2, 63, 127, 128, 4097, 200_000])
    x = torch.randn(8, 3, 8, generator=torch.Generator().manual_seed(0))
    cos, sin = theirs(x, positions[None])
    want, _ = modeling.apply_rotary_pos_emb_interleave(
        x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin
    )  # [1, H, T, D]
    rotation = RotaryTable(parse_spec(config), "float32").rotation(positions, torch.float32)
    assert torch.equal(rotation.cos, cos[0, :, :4])
    assert torch.equal(rotation.sin, sin[0, :, :4])
    assert torch.equal(rotation.apply(x), want[0].transpose(0, 1))


def test_float64_angles_are_right_at_two_million(small_snapshot: Path) -> None:
    config = json.loads((small_snapshot / "config.json").read_text())
    spec = parse_spec(config)
    position = torch.tensor([2_097_151])
    exact = RotaryTable(spec, "float64").rotation(position, torch.float64)
    single = RotaryTable(spec, "float32").rotation(position, torch.float64)
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 40
    for pair in range(4):
        angle = 2_097_151 / mpmath.mpf(10000) ** (mpmath.mpf(2 * pair) / 8)
        assert float(exact.cos[0, pair]) == pytest.approx(float(mpmath.cos(angle)), abs=1e-9)
    assert float((exact.cos - single.cos).abs().max()) > 1e-4


def test_positions_of_another_type_are_refused(small_snapshot: Path) -> None:
    spec = parse_spec(json.loads((small_snapshot / "config.json").read_text()))
    with pytest.raises(TypeError, match="int64"):
        RotaryTable(spec, "float32").rotation(torch.tensor([1.0]), torch.float32)
