"""The gradient probe: the same elements everywhere, what it sees and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.instruments.probe import differing, probe_gradient, probed_positions

#: SHA-256 of `a.lora_A\0n`, first eight bytes, modulo 768, for n = 0, 1, 2.
POSITIONS = (227, 401, 470)


def gradient(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a.lora_A": (8, 96), "a.lora_B": (64, 8), "tiny": (3,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_values_and_norms_are_those_of_the_tensors() -> None:
    given = gradient()
    probe = probe_gradient(given, per_tensor=5, limit=100)
    assert [tensor.name for tensor in probe.tensors] == sorted(given)
    for tensor in probe.tensors:
        flat = given[tensor.name].flatten().tolist()
        assert tensor.elements == len(flat)
        assert list(tensor.values) == [flat[position] for position in tensor.positions]
        assert tensor.norm == pytest.approx(math.sqrt(sum(value * value for value in flat)), rel=1e-12)
    everything = [value for tensor in given.values() for value in tensor.flatten().tolist()]
    assert probe.norm == pytest.approx(math.sqrt(sum(value * value for value in everything)), rel=1e-12)
    assert (probe.elements, probe.looked_at) == (8 * 96 + 64 * 8 + 3, 5 + 5 + 3)


def test_the_elements_looked_at_follow_from_name_and_size_alone() -> None:
    """Worked out once; another choice would make two versions look at different elements and call them different."""
    assert probed_positions("a.lora_A", 768, 3) == POSITIONS
    assert probed_positions("a.lora_B", 768, 3) != POSITIONS
    assert probed_positions("t", 4, 9) == (0, 1, 2, 3)
    for count in (1, 7, 40):
        chosen = probed_positions("name", 41, count)
        assert len(set(chosen)) == count
        assert list(chosen) == sorted(chosen)
        assert 0 <= min(chosen) <= max(chosen) < 41


def test_a_tensor_that_lies_transposed_in_memory_gives_the_same_probe() -> None:
    given = gradient()
    turned = given | {"a.lora_A": given["a.lora_A"].t().contiguous().t()}
    assert not turned["a.lora_A"].is_contiguous()
    assert probe_gradient(turned, per_tensor=5, limit=100) == probe_gradient(given, per_tensor=5, limit=100)


def test_equal_gradients_do_not_differ_and_a_scaled_one_is_named() -> None:
    one = probe_gradient(gradient(), per_tensor=5, limit=100)
    assert differing(one, probe_gradient(gradient(), per_tensor=5, limit=100), relative=0.0) == ()

    scaled = gradient()
    scaled["a.lora_B"] = scaled["a.lora_B"] * 1.01
    (found,) = differing(one, probe_gradient(scaled, per_tensor=5, limit=100), relative=1e-3)
    assert found.name == "a.lora_B"
    assert found.relative == pytest.approx(0.01 / 1.01, rel=1e-3)  # of the larger norm


def test_a_swap_of_two_elements_leaves_the_norm_and_shows_in_a_value() -> None:
    given = gradient()
    one = probe_gradient(given, per_tensor=5, limit=100)
    flat = given["a.lora_A"].flatten().clone()
    at = one.tensors[0].positions[2]
    other = 0 if at else 1
    flat[[at, other]] = flat[[other, at]]
    found = differing(
        one, probe_gradient(given | {"a.lora_A": flat.view(8, 96)}, per_tensor=5, limit=100), relative=1e-6
    )
    assert [(difference.name, difference.reason) for difference in found] == [("a.lora_A", "a value")]


def test_a_tensor_in_one_probe_only_and_one_of_another_size_differ() -> None:
    one = probe_gradient(gradient(), per_tensor=5, limit=100)
    given = gradient()
    del given["tiny"]
    given["a.lora_A"] = given["a.lora_A"][:7]
    found = differing(one, probe_gradient(given, per_tensor=5, limit=100), relative=1.0)
    assert {difference.name: difference.relative for difference in found} == {"tiny": math.inf, "a.lora_A": math.inf}


def test_it_refuses_rather_than_thin_out_or_look_at_nothing() -> None:
    with pytest.raises(InstrumentError, match="13 elements, at most 12"):
        probe_gradient(gradient(), per_tensor=5, limit=12)
    with pytest.raises(InstrumentError):
        probe_gradient({}, per_tensor=5, limit=12)
    with pytest.raises(InstrumentError, match=r"tiny holds a gradient that is not finite"):
        probe_gradient(gradient() | {"tiny": torch.tensor([0.0, math.nan])}, per_tensor=5, limit=100)
    with pytest.raises(InstrumentError):
        probe_gradient({"empty": torch.zeros(0)}, per_tensor=5, limit=100)
