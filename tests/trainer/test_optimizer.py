"""The one step against AdamW written out by hand, torch's own clipping, the oracle's stepped weights; and refusals."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from mint2m_trainer.optimizer import STANDARD_CONTRACT, AdamWStep, OptimizerError
from mint2m_verify.documents import OptimizerContract

Named = list[tuple[str, nn.Parameter]]


def a_model(seed: int = 0, *, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Named:
    """Three parameters of unlike sizes with gradients in `main_grad`."""
    generator = torch.Generator().manual_seed(seed)
    named: Named = []
    for name, shape in (("a", (4, 9)), ("b", (7, 4)), ("c", (33,))):
        p = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        p.main_grad = scale * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        named.append((name, p))
    return named


def contract(**changes: object) -> OptimizerContract:
    return dataclasses.replace(STANDARD_CONTRACT, **changes)  # type: ignore[arg-type]


def adamw_by_hand(
    p: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    *,
    step: int,
    lr: float,
    decay: float,
    coefficient: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loshchilov and Hutter, arXiv 1711.05101, algorithm 2 (AdamW), in the arrays' own dtype: float64 shows the
    formula, float32 what rounding after each operation leaves of it."""
    t = p.dtype.type
    b1, b2, eps = 0.9, 0.999, 1e-8
    g = g * t(coefficient)
    p = p * t(1 - lr * decay)
    m = m + t(1 - b1) * (g - m)
    v = v * t(b2) + t(1 - b2) * g * g
    denominator = np.sqrt(v) / t((1 - b2**step) ** 0.5) + t(eps)
    return p - t(lr / (1 - b1**step)) * m / denominator, m, v


def assert_rounded_alike(actual: torch.Tensor, right: np.ndarray, before: np.ndarray) -> None:
    """One ulp for the final sum and four for the update itself: sqrt (torch's vectorized one is not correctly rounded),
    two divisions and a product. Any dropped or scaled term is thousands of these."""
    have = actual.detach().numpy()
    assert have.dtype == right.dtype
    bound = np.spacing(np.maximum(np.abs(right), np.abs(before))) + 4 * np.spacing(np.abs(right - before))
    assert (np.abs(have - right) <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("scale", "decay", "clipped"), [(1e-3, 0.1, False), (5.0, 0.01, True), (1e-3, 0.0, False)])
def test_two_steps_are_adamw_to_the_rounding_of_each_operation(
    dtype: torch.dtype, scale: float, decay: float, clipped: bool
) -> None:
    lr = 0.05  # large, so that decay and gradient both move every weight by many ulps
    named = a_model(scale=scale, dtype=dtype)
    terms = contract(lr=lr, weight_decay=decay, state_dtype=str(dtype).removeprefix("torch."))
    optimizer = AdamWStep(named, terms, expert_group=None)
    right = [(p.detach().numpy().copy(), *(np.zeros_like(p.detach().numpy()) for _ in range(2))) for _, p in named]
    for step in (1, 2):
        gradients = [p.main_grad.numpy().copy() for _, p in named]
        before = [p.detach().numpy().copy() for _, p in named]
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))
        coefficient = min(1.0, 1.0 / (norm + 1e-6))
        right = [
            adamw_by_hand(p, g, m, v, step=step, lr=lr, decay=decay, coefficient=coefficient)
            for (p, m, v), g in zip(right, gradients, strict=True)
        ]

        report = optimizer.step()

        assert (report.clip_coefficient < 1) is clipped
        assert report.clip_coefficient == pytest.approx(coefficient, rel=1e-12)
        assert report.steps == step
        state = optimizer.state_tensors()
        for (name, p), old, (want, m, v) in zip(named, before, right, strict=True):
            assert_rounded_alike(p, want, old)
            np.testing.assert_allclose(state[f"{name}.exp_avg"].numpy(), m, rtol=1e-6, atol=1e-7 * np.abs(m).max())
            np.testing.assert_allclose(state[f"{name}.exp_avg_sq"].numpy(), v, rtol=1e-6)
            p.main_grad.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(step)) * scale)
        # The second step starts from what the optimizer has, not from our rounding of it.
        right = [
            (p.detach().numpy().copy(), state[f"{n}.exp_avg"].numpy(), state[f"{n}.exp_avg_sq"].numpy())
            for n, p in named
        ]
        optimizer.begin()


@pytest.mark.parametrize("scale", [1e-3, 5.0])
def test_norm_and_clipped_gradient_are_those_of_torch(scale: float) -> None:
    named = a_model(scale=scale)
    peers = [nn.Parameter(p.detach().clone()) for _, p in named]
    for (_, p), peer in zip(named, peers, strict=True):
        peer.grad = p.main_grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(peers, 1.0)
    peer_optimizer = torch.optim.AdamW(peers, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    peer_optimizer.step()

    report = AdamWStep(named, contract(), expert_group=None).step()

    assert report.gradient_norm == pytest.approx(norm.item(), rel=1e-6)
    for (_, p), peer in zip(named, peers, strict=True):
        torch.testing.assert_close(p, peer, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", ["indexshare", "yarn"])
@pytest.mark.parametrize("label", ["ratio1", "active_clip"])
def test_step_from_the_oracles_gradient_gives_the_oracles_weights(
    shared: Callable[[str], Path], case: str, label: str
) -> None:
    folder = shared("oracle") / case
    expected = json.loads((folder / "expected.json").read_text())
    tensors = load_file(folder / "expected.safetensors")
    named: Named = []
    for name, start in load_file(folder / "adapter" / "adapter_model.safetensors").items():
        p = nn.Parameter(start.double())
        p.main_grad = tensors[f"{label}.grad.{name}"].clone()
        named.append((name, p))
    settings = expected["case"]["optimizer"]
    terms = contract(
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
        clip_grad=settings["clip_grad"],
        state_dtype="float64",
    )

    report = AdamWStep(named, terms, expert_group=None).step()

    assert report.gradient_norm == pytest.approx(expected[label]["grad_norm"], rel=1e-13)
    for name, p in named:
        torch.testing.assert_close(p.detach(), tensors[f"{label}.stepped.{name}"], rtol=0, atol=1e-12)


def _live(name: str) -> Callable[[AdamWStep], None]:
    def change(optimizer: AdamWStep) -> None:
        group = optimizer.optimizer.param_groups[0]
        match name:
            case "lr":
                group["lr"] = 2e-4
            case "min_lr":
                group["min_lr"] = 1e-5
            case "beta1":
                group["betas"] = (0.8, 0.999)
            case "beta2":
                group["betas"] = (0.9, 0.95)
            case "eps":
                group["eps"] = 1e-6
            case "weight_decay":
                group["weight_decay"] = 0.0
            case "schedule":
                torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda _: 1.0)
            case "amsgrad" | "maximize":
                group[name] = True
            case "parameters":
                group["params"].pop()
            case "name":
                optimizer._optimizer = torch.optim.SGD(group["params"], lr=1e-4)  # type: ignore[assignment]

    return change


@pytest.mark.parametrize(
    "field",
    ["lr", "min_lr", "beta1", "beta2", "eps", "weight_decay", "schedule", "amsgrad", "maximize", "parameters", "name"],
)
def test_a_live_optimizer_that_differs_from_its_contract_does_not_step(field: str) -> None:
    named = a_model()
    before = [p.detach().clone() for _, p in named]
    optimizer = AdamWStep(named, contract(), expert_group=None)
    _live(field)(optimizer)

    with pytest.raises(OptimizerError) as fault:
        optimizer.step()

    assert fault.value.field == field
    assert fault.value.expected != fault.value.actual
    assert all(torch.equal(p, old) for (_, p), old in zip(named, before, strict=True))


def test_the_contract_observed_is_the_one_given() -> None:
    terms = contract(lr=3e-4, beta1=0.8, weight_decay=0.2, clip_grad=0.5)
    assert AdamWStep(a_model(), terms, expert_group=None).observe() == terms
    double = contract(state_dtype="float64")
    assert AdamWStep(a_model(dtype=torch.float64), double, expert_group=None).observe() == double


def test_moments_of_another_dtype_than_promised_are_refused() -> None:
    optimizer = AdamWStep(a_model(), contract(state_dtype="float64"), expert_group=None)
    with pytest.raises(OptimizerError, match=r"state_dtype: expected 'float64', got 'float32'"):
        optimizer.step()


def test_a_second_step_in_one_transaction_is_refused_and_changes_nothing() -> None:
    named = a_model()
    optimizer = AdamWStep(named, contract(), expert_group=None)
    optimizer.step()
    after = [p.detach().clone() for _, p in named]

    with pytest.raises(OptimizerError, match="steps in a transaction"):
        optimizer.step()

    assert all(torch.equal(p, old) for (_, p), old in zip(named, after, strict=True))


def test_no_gradient_is_left_after_the_step() -> None:
    named = a_model()
    AdamWStep(named, contract(), expert_group=None).step()
    assert all(p.grad is None and not p.main_grad.any() for _, p in named)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_leaves_weights_and_state_as_they_were(bad: float) -> None:
    named = a_model()
    before = [p.detach().clone() for _, p in named]
    named[1][1].main_grad[0, 0] = bad
    optimizer = AdamWStep(named, contract(), expert_group=None)

    with pytest.raises(OptimizerError, match="gradient norm: expected finite"):
        optimizer.step()

    assert all(torch.equal(p, old) for (_, p), old in zip(named, before, strict=True))
    assert optimizer.steps_taken == 0
    assert not any(moment.any() for moment in optimizer.state_tensors().values())


def test_a_gradient_left_in_grad_or_missing_from_main_grad_is_refused() -> None:
    named = a_model()
    named[0][1].grad = torch.zeros(4, 9)
    with pytest.raises(OptimizerError, match="grad of a"):
        AdamWStep(named, contract(), expert_group=None).step()
    named = a_model()
    del named[2][1].main_grad
    with pytest.raises(OptimizerError, match="main_grad of c"):
        AdamWStep(named, contract(), expert_group=None).step()


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdamWStep([], contract(), expert_group=None),
        lambda: AdamWStep(a_model() + a_model(), contract(), expert_group=None),
        lambda: AdamWStep(a_model(), contract(clip_grad=0.0), expert_group=None),
        lambda: AdamWStep(a_model(), contract(), expert_group=None, dense_is_replicated=False),
        lambda: AdamWStep([("a", nn.Parameter(torch.ones(1), requires_grad=False))], contract(), expert_group=None),
    ],
)
def test_what_cannot_be_done_right_is_refused_before_training(make: Callable[[], object]) -> None:
    with pytest.raises(OptimizerError):
        make()


def test_restored_state_steps_bit_for_bit_like_the_state_it_was_taken_from() -> None:
    named = a_model()
    optimizer = AdamWStep(named, contract(), expert_group=None)
    optimizer.step()
    copies: Named = []
    for name, p in named:
        copy = nn.Parameter(p.detach().clone())
        copies.append((name, copy))
    restored = AdamWStep(copies, contract(), expert_group=None)
    restored.load_state(optimizer.state_tensors(), steps=optimizer.steps_taken)
    for (_, p), (_, copy) in zip(named, copies, strict=True):
        p.main_grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(9))
        copy.main_grad = p.main_grad.clone()

    optimizer.begin()
    assert optimizer.step().steps == restored.step().steps == 2

    assert all(torch.equal(p, copy) for (_, p), (_, copy) in zip(named, copies, strict=True))


def _experts(rank: int, ranks: int) -> Named:
    """Three replicated parameters on every rank and four experts spread over the ranks."""
    generator = torch.Generator().manual_seed(4)
    named: Named = []
    for name in ("dense", "dense.1", "dense.2", "expert.0", "expert.1", "expert.2", "expert.3"):
        value, grad = (torch.randn(3, 5, generator=generator) for _ in range(2))
        expert = name.startswith("expert")
        if expert and int(name[-1]) * ranks // 4 != rank:
            continue
        p = nn.Parameter(value)
        p.main_grad, p.allreduce = grad, not expert  # type: ignore[attr-defined]
        named.append((name, p))
    return named


def _step_on_rank(rank: int, ranks: int, folder: str, distributed: bool) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    named = _experts(rank, ranks)
    terms = contract(distributed_optimizer=distributed)
    optimizer = AdamWStep(named, terms, expert_group=dist.group.WORLD)
    assert optimizer.observe() == terms
    report = optimizer.step()
    state = optimizer.state_tensors()
    stepped = [name for name, p in named if p in optimizer.optimizer.state]
    weights = {n: p.detach().clone() for n, p in named}

    # A second life: the state goes through load_state, and one more step must be the one without it.
    restored = AdamWStep([(n, _again(p)) for n, p in named], terms, expert_group=dist.group.WORLD)
    restored.load_state(state, steps=1)
    for (_, p), (_, copy) in zip(named, restored.params, strict=True):
        p.main_grad = torch.ones_like(p)
        copy.main_grad = torch.ones_like(p)
    optimizer.begin()
    assert optimizer.step().steps == restored.step().steps == 2
    same = all(torch.equal(p, copy) for (_, p), (_, copy) in zip(named, restored.params, strict=True))

    if distributed and rank == 1:  # one rank drops what it should step: every rank must hear of it
        optimizer.optimizer.param_groups[0]["params"] = [p for n, p in optimizer._own if n.startswith("expert")]
        optimizer._own = tuple((n, p) for n, p in optimizer._own if n.startswith("expert"))
    optimizer.begin()
    dropped = ""
    try:
        optimizer.step()
    except OptimizerError as fault:
        dropped = str(fault)
    seen = {"norm": report.gradient_norm, "weights": weights, "state": state, "stepped": stepped, "same": same}
    torch.save(seen | {"dropped": dropped}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def _again(p: nn.Parameter) -> nn.Parameter:
    copy = nn.Parameter(p.detach().clone())
    copy.allreduce = p.allreduce  # type: ignore[attr-defined]
    return copy


@pytest.mark.parametrize("distributed", [False, True])
def test_two_ranks_step_like_one_bit_for_bit(
    processes: Callable[..., list[Any]], tmp_path: Path, distributed: bool
) -> None:
    named = _experts(0, 1)
    alone = AdamWStep(named, contract(), expert_group=None)
    report = alone.step()

    processes(_step_on_rank, 2, 2, str(tmp_path), distributed)

    seen = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert seen[0]["norm"] == seen[1]["norm"] == pytest.approx(report.gradient_norm, rel=1e-14)
    for rank in range(2):
        assert all(torch.equal(p, seen[rank]["weights"][n]) for n, p in named if n in seen[rank]["weights"])
        right = alone.state_tensors()
        assert all(torch.equal(moment, right[name]) for name, moment in seen[rank]["state"].items())
        assert seen[rank]["same"]
    assert seen[0]["weights"].keys() | seen[1]["weights"].keys() == {name for name, _ in named}
    dense = [[name for name in rank["stepped"] if name.startswith("dense")] for rank in seen]
    if distributed:
        assert sorted(dense[0] + dense[1]) == ["dense", "dense.1", "dense.2"]
        assert dense[0] != []
        assert dense[1] != []
        assert all("each stepped by one rank" in rank["dropped"] for rank in seen)
    else:
        assert dense == [["dense", "dense.1", "dense.2"]] * 2


def test_one_rank_alone_may_call_its_state_distributed() -> None:
    plain, dealt = a_model(), a_model()
    AdamWStep(plain, contract(), expert_group=None).step()
    report = AdamWStep(dealt, contract(distributed_optimizer=True), expert_group=None).step()
    assert report.observed.distributed_optimizer
    assert all(torch.equal(p, q) for (_, p), (_, q) in zip(plain, dealt, strict=True))
