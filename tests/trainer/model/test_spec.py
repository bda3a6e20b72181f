"""config.json is understood whole or refused by the name of the member."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.model.spec import SpecError, parse_spec, read_spec

YARN = {
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


@pytest.fixture
def config(small_snapshot: Path) -> dict[str, Any]:
    return json.loads((small_snapshot / "config.json").read_text())


def test_the_numbers_are_those_of_the_file(config: dict[str, Any]) -> None:
    spec = parse_spec(config)
    assert (spec.hidden, spec.layers, spec.heads, spec.experts) == (32, 4, 2, 4)
    assert spec.row_width == 16 + 8
    assert spec.indexers == ("full", "shared", "full", "shared")
    assert spec.mlps == ("dense", "sparse", "sparse", "sparse")
    assert spec.softmax_scale == (12 + 8) ** -0.5


def test_yarn_scales_the_softmax_by_its_squared_magnitude(config: dict[str, Any]) -> None:
    spec = parse_spec(config | {"rope_parameters": YARN})
    assert spec.yarn is not None
    assert spec.yarn.attention_factor == 1.0  # mscale equals mscale_all_dim
    assert spec.softmax_scale == pytest.approx(20**-0.5 * 1.0693147180559945**2)  # (0.1 ln 2 + 1) squared


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"hidden_size": "32"}, "/hidden_size"),
        ({"hidden_size": True}, "/hidden_size"),
        ({"hidden_size": 0}, "/hidden_size"),
        ({"model_type": "deepseek_v3"}, "/model_type"),
        ({"tie_word_embeddings": True}, "/tie_word_embeddings"),
        ({"attention_bias": True}, "/attention_bias"),
        ({"num_nextn_predict_layers": 1}, "/num_nextn_predict_layers"),
        ({"hidden_act": "gelu"}, "/hidden_act"),
        ({"swiglu_limit": 7.0}, "/swiglu_limit"),
        ({"indexer_types": ["shared", "full", "full", "full"]}, "/indexer_types/0"),
        ({"indexer_types": ["full"]}, "/indexer_types"),
        ({"mlp_layer_types": ["dense", "moe", "dense", "dense"]}, "/mlp_layer_types"),
        ({"layer_types": ["full_attention"] * 4}, "/layer_types"),
        ({"num_key_value_heads": 1}, "/num_key_value_heads"),
        ({"head_dim": 16}, "/head_dim"),
        ({"n_group": 3}, "/n_group"),
        ({"n_group": 4}, "/n_group"),
        ({"num_experts_per_tok": 3}, "/num_experts_per_tok"),
        ({"qk_rope_head_dim": 7, "head_dim": 7, "qk_head_dim": 19}, "/qk_rope_head_dim"),
        ({"rms_norm_eps": float("nan")}, "/rms_norm_eps"),
        ({"rope_parameters": None}, "/rope_parameters"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear"}}, "/rope_parameters/rope_type"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "/rope_parameters/partial_rotary_factor",
        ),
        ({"rope_parameters": YARN | {"factor": None}}, "/rope_parameters/factor"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config: dict[str, Any], change: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(config | change)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    "name", ["vocab_size", "kv_lora_rank", "routed_scaling_factor", "norm_topk_prob", "model_type"]
)
def test_a_missing_member_is_refused_by_name(config: dict[str, Any], name: str) -> None:
    del config[name]
    with pytest.raises(SpecError) as caught:
        parse_spec(config)
    assert caught.value.pointer == f"/{name}"


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError):
        read_spec(tmp_path)
