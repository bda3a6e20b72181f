"""The optimizer step against `torch.optim.AdamW` and `torch.nn.utils.clip_grad_norm_`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mint2m_verify.documents import OptimizerContract
from mint2m_verify.recompute import optimizer

CONTRACT = {
    "name": "adam",
    "lr": 1e-4,
    "min_lr": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.01,
    "decoupled_weight_decay": True,
    "clip_grad": 1.0,
    "schedule": "constant",
    "distributed_optimizer": False,
    "state_dtype": "float32",
}


def torch_step(
    parameter: torch.Tensor, gradient: torch.Tensor, contract: OptimizerContract, steps: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    torch.set_num_threads(1)
    held = torch.nn.Parameter(parameter.clone())
    adamw = torch.optim.AdamW(
        [held],
        lr=contract.lr,
        betas=(contract.beta1, contract.beta2),
        eps=contract.eps,
        weight_decay=contract.weight_decay,
        foreach=False,
    )
    for _ in range(steps):
        held.grad = gradient.clone()
        adamw.step()
    state = adamw.state[held]
    return held.detach().numpy(), state["exp_avg"].numpy(), state["exp_avg_sq"].numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.0},
        {"lr": 1e-2, "beta1": 0.3, "beta2": 0.5},
        {"beta1": 0.0},
        {"eps": 1e-3},
    ],
)
def test_weights_and_moments_are_torchs(dtype: torch.dtype, scale: float, changes: dict[str, float]) -> None:
    contract = OptimizerContract(**{**CONTRACT, **changes})
    torch.manual_seed(5)
    parameter, gradient = torch.randn(64, 33, dtype=dtype), torch.randn(64, 33, dtype=dtype) * scale
    parameter[::2] = 0  # half of a fresh adapter
    after, average, square = torch_step(parameter, (gradient * 0.37).to(dtype), contract)
    stepped = optimizer.first_step(parameter.numpy(), gradient.numpy(), 0.37, contract)
    assert optimizer.within_rounding(stepped.parameter, after, parameter.numpy())
    assert optimizer.relative_difference(stepped.exp_avg, average) < 1e-6
    assert optimizer.relative_difference(stepped.exp_avg_sq, square) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 2, 9, 400])
@pytest.mark.parametrize("changes", [{}, {"beta1": 0.3, "beta2": 0.5, "lr": 1e-2}, {"beta1": 0.0}])
def test_a_later_step_goes_on_from_torchs_moments(dtype: torch.dtype, steps: int, changes: dict[str, float]) -> None:
    contract = OptimizerContract(**{**CONTRACT, **changes})
    generator = torch.Generator().manual_seed(steps)
    parameter = torch.randn(64, 33, dtype=dtype, generator=generator)
    held = torch.nn.Parameter(parameter.clone())
    adamw = torch.optim.AdamW(
        [held], lr=contract.lr, betas=(contract.beta1, contract.beta2), eps=contract.eps,
        weight_decay=contract.weight_decay, foreach=False,
    )  # fmt: skip
    for _ in range(steps):
        held.grad = torch.randn(64, 33, dtype=dtype, generator=generator)
        adamw.step()
    state, before = adamw.state[held], held.detach().numpy().copy()
    given = optimizer.State(
        exp_avg=state["exp_avg"].numpy().copy(), exp_avg_sq=state["exp_avg_sq"].numpy().copy(), steps=steps
    )
    gradient = torch.randn(64, 33, dtype=dtype, generator=generator)
    # Half of them nearly cancel what was gathered: then the sum is all rounding.
    gradient[::2] = -state["exp_avg"][::2] * contract.beta1 / (1 - contract.beta1) * (1 + 1e-6 * gradient[::2])
    held.grad = gradient.clone()
    adamw.step()
    stepped = optimizer.adamw(before, gradient.numpy(), 1.0, contract, state=given)
    after = held.detach().numpy()
    assert optimizer.within_rounding(stepped.parameter, after, before, stepped.reach)
    assert optimizer.relative_difference(stepped.exp_avg, state["exp_avg"].numpy(), stepped.terms) < 1e-6
    assert optimizer.relative_difference(stepped.exp_avg_sq, state["exp_avg_sq"].numpy()) < 1e-6
    for other in (None, optimizer.State(exp_avg=given.exp_avg, exp_avg_sq=given.exp_avg_sq, steps=steps + 1)):
        wrong = optimizer.adamw(before, gradient.numpy(), 1.0, contract, state=other)
        if other is None or steps < 100:  # after many steps one more is below rounding
            assert not optimizer.within_rounding(wrong.parameter, after, before, wrong.reach) or contract.beta1 == 0


def _stepped() -> tuple[np.ndarray, np.ndarray, OptimizerContract]:
    torch.manual_seed(6)
    contract = OptimizerContract(**CONTRACT)
    return torch.randn(50, 50).numpy(), torch.randn(50, 50).numpy(), contract


@pytest.mark.parametrize("changes", [{"lr": 2e-4}, {"weight_decay": 0.0}, {"weight_decay": 0.02}, {"eps": 1e-2}])
def test_another_step_is_not_within_rounding(changes: dict[str, float]) -> None:
    parameter, gradient, contract = _stepped()
    right = optimizer.first_step(parameter, gradient, 0.5, contract)
    other, _, _ = torch_step(
        torch.from_numpy(parameter), torch.from_numpy(gradient) * 0.5, OptimizerContract(**{**CONTRACT, **changes})
    )
    assert not optimizer.within_rounding(right.parameter, other, parameter)


def test_two_steps_are_not_one() -> None:
    parameter, gradient, contract = _stepped()
    right = optimizer.first_step(parameter, gradient, 0.5, contract)
    after, average, _ = torch_step(torch.from_numpy(parameter), torch.from_numpy(gradient) * 0.5, contract, steps=2)
    assert not optimizer.within_rounding(right.parameter, after, parameter)
    assert optimizer.relative_difference(right.exp_avg, average) > 0.5


def test_weights_alone_are_blind_to_a_scaled_gradient_and_moments_are_not() -> None:
    """Why both are compared: the first Adam step is nearly lr * sign(g)."""
    parameter, gradient, contract = _stepped()
    once = optimizer.first_step(parameter, gradient, 1.0, contract)
    twice = optimizer.first_step(parameter, gradient, 2.0, contract)
    assert optimizer.within_rounding(once.parameter, twice.parameter, parameter)
    assert optimizer.relative_difference(once.exp_avg, twice.exp_avg) == pytest.approx(1.0)


def test_norm_and_coefficient_are_those_of_clip_grad_norm() -> None:
    tensors = [np.array([[3.0, 0.0]], dtype=np.float32), np.array([[4.0]], dtype=np.float32)]
    assert optimizer.gradient_norm(tensors) == 5.0
    held = [torch.nn.Parameter(torch.zeros(1, 2)), torch.nn.Parameter(torch.zeros(1, 1))]
    for parameter, tensor in zip(held, tensors, strict=True):
        parameter.grad = torch.from_numpy(tensor.copy())
    torch.nn.utils.clip_grad_norm_(held, 1.0)
    clipped = held[1].grad
    assert clipped is not None
    assert optimizer.clip_coefficient(5.0, 1.0) * 4.0 == pytest.approx(float(clipped), rel=1e-7)
    assert optimizer.clip_coefficient(0.5, 1.0) == 1.0  # inactive


def test_a_norm_is_summed_in_doubles() -> None:
    many = np.full((1000, 1000), 1e-4, dtype=np.float32)
    exact = math.sqrt(1e6 * float(np.float32(1e-4)) ** 2)
    assert optimizer.gradient_norm([many]) == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("case", ["indexshare", "yarn"])
@pytest.mark.parametrize("label", ["ratio1", "active_clip"])
def test_the_oracles_stepped_adapter_follows_from_its_gradient(
    shared: Callable[[str], Path], case: str, label: str
) -> None:
    """Weights after one clipped AdamW step, from an independent implementation in float64."""
    from safetensors.numpy import load_file

    folder = shared("oracle") / case
    expected = load_file(folder / "expected.safetensors")
    before = load_file(folder / "adapter/adapter_model.safetensors")
    report = json.loads((folder / "expected.json").read_text())
    constants = report["case"]["optimizer"]
    contract = OptimizerContract(**{**CONTRACT, **{k: v for k, v in constants.items() if k in CONTRACT}})
    start = f"{label}.grad."
    gradients = {name.removeprefix(start): g for name, g in expected.items() if name.startswith(start)}
    norm = optimizer.gradient_norm(gradients.values())
    assert norm == pytest.approx(report[label]["grad_norm"], rel=1e-6)
    coefficient = optimizer.clip_coefficient(norm, contract.clip_grad)
    for name, gradient in gradients.items():
        stepped = optimizer.first_step(before[name].astype(gradient.dtype), gradient, coefficient, contract)
        want = expected[f"{label}.stepped.{name}"]
        assert np.max(np.abs(stepped.parameter.astype(np.float64) - want.astype(np.float64))) < 1e-9
