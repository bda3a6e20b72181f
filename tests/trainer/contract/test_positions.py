"""The long-position payload: its numbers, what it may be put on, and that it stretches as YaRN's paper says."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch

from mint2m_trainer.contract.positions import (
    LONG_POSITIONS,
    PositionsError,
    apply_to_file,
    parse_positions,
    read_positions,
)
from mint2m_trainer.model.init_tiny import init_tiny
from mint2m_trainer.model.position import inverse_frequencies
from mint2m_trainer.model.spec import read_spec

NATIVE = {"max_position_embeddings": 1_048_576, "rope_parameters": {"rope_theta": 8e6, "rope_type": "default"}}


def payload() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(LONG_POSITIONS.read_text())
    return value


def test_the_packaged_payload_reaches_two_million_tokens_and_sixteen_of_a_response() -> None:
    positions = read_positions(LONG_POSITIONS)
    assert positions.max_position_embeddings == 2_097_152 + 16
    assert positions.factor == (2_097_152 + 16) / 1_048_576 == 2.0000152587890625


def test_it_changes_two_members_and_nothing_else() -> None:
    config = {**NATIVE, "hidden_size": 64, "vocab_size": 256}
    before = copy.deepcopy(config)
    made = read_positions(LONG_POSITIONS).applied(config)
    assert config == before
    assert made == {**config, **payload()}


def test_the_trainer_reads_the_result_as_yarn(tmp_path: Any) -> None:
    init_tiny(tmp_path / "model", 0, NATIVE)
    native = read_spec(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_bytes(apply_to_file(config, read_positions(LONG_POSITIONS)))
    spec = read_spec(tmp_path / "model")

    assert native.yarn is None
    assert spec.yarn is not None
    assert spec.yarn.factor == 2.0000152587890625
    # mscale and mscale_all_dim are equal, so their quotient leaves the rotation's magnitude alone (HF's rule) ...
    assert spec.yarn.attention_factor == 1.0
    # ... and the softmax carries (0.1 ln s + 1)^2, arXiv 2309.00071 section 3.4.
    stretch = (0.1 * math.log(2.0000152587890625) + 1) ** 2
    assert spec.softmax_scale == pytest.approx(native.softmax_scale * stretch, rel=1e-15)


def test_the_fastest_pair_is_kept_and_the_slowest_is_stretched_by_the_factor(tmp_path: Any) -> None:
    """arXiv 2309.00071 section 3.2: many rotations within the native length keep their frequency, few are divided."""
    width = 64
    init_tiny(tmp_path / "model", 0, {**NATIVE, "qk_rope_head_dim": width, "index_head_dim": 128})
    native = inverse_frequencies(read_spec(tmp_path / "model"), torch.float64)
    config = tmp_path / "model" / "config.json"
    config.write_bytes(apply_to_file(config, read_positions(LONG_POSITIONS)))
    made = inverse_frequencies(read_spec(tmp_path / "model"), torch.float64)

    rotations = 1_048_576 * native / (2 * math.pi)
    ratio = native / made
    assert torch.all(ratio[rotations > 2 * 32] == 1)
    assert torch.all((ratio[rotations < 0.5] - 2.0000152587890625).abs() < 1e-12)
    assert torch.all(ratio.diff() > -1e-12)
    assert float(native[0]) == 1.0


CHANGES = {
    "factor 2": (lambda p: p["rope_parameters"].update(factor=2.0), "/rope_parameters/factor"),
    "no stretch": (
        lambda p: (p.update(max_position_embeddings=1_048_576), p["rope_parameters"].update(factor=1.0)),
        "/rope_parameters/factor",
    ),
    "another kind": (lambda p: p["rope_parameters"].update(rope_type="linear"), "/rope_parameters/rope_type"),
    "a member missing": (lambda p: p["rope_parameters"].pop("mscale"), "/rope_parameters"),
    "a member too many": (lambda p: p["rope_parameters"].update(long_factor=[1.0]), "/rope_parameters"),
    "another member": (lambda p: p.update(hidden_size=64), ""),
    "no number": (lambda p: p["rope_parameters"].update(beta_fast="32"), "/rope_parameters/beta_fast"),
    "a flag": (lambda p: p["rope_parameters"].update(truncate=1), "/rope_parameters/truncate"),
    "no integer": (lambda p: p.update(max_position_embeddings=2097168.0), "/max_position_embeddings"),
    "betas": (lambda p: p["rope_parameters"].update(beta_slow=64.0), "/rope_parameters/beta_slow"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_payload_that_is_not_whole_is_refused(name: str) -> None:
    edit, pointer = CHANGES[name]
    value = payload()
    edit(value)
    with pytest.raises(PositionsError) as fault:
        parse_positions(value)
    assert fault.value.pointer == pointer


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({**NATIVE, "max_position_embeddings": 202_752}, "/max_position_embeddings"),
        ({**NATIVE, "rope_parameters": {"rope_theta": 1e6}}, "/rope_parameters/rope_theta"),
        ({**NATIVE, "rope_parameters": payload()["rope_parameters"]}, "/rope_parameters/rope_type"),
        ({"max_position_embeddings": 1_048_576}, "/rope_parameters/rope_theta"),
    ],
)
def test_a_checkpoint_that_it_was_not_made_for_is_refused(config: dict[str, Any], pointer: str) -> None:
    with pytest.raises(PositionsError) as fault:
        read_positions(LONG_POSITIONS).applied(config)
    assert fault.value.pointer == pointer
