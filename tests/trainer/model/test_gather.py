"""The whole adapter on every rank: its own tensors and the experts of the others, so that a stray replica shows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.evidence import tensors_sha256

sys.path.insert(0, str(Path(__file__).parents[1] / "prefix"))
from prefix_sessions import policy


def whole(comm: Comm, snapshot: Path) -> dict[str, Tensor]:
    return dict(policy(comm, snapshot).adapter_tensors("test"))


def with_a_stray(comm: Comm, snapshot: Path, part: str) -> tuple[str, str]:
    """Digests of the whole before and after the last bit of one number changes on rank 1."""
    made = policy(comm, snapshot)
    before = tensors_sha256(made.adapter_tensors("before"))
    if comm.rank == 1:
        parameter = next(p for name, p in made.trainable() if part in name and "lora_A" in name)
        with torch.no_grad():
            parameter.view(-1)[:1] = parameter.view(-1)[:1].nextafter(torch.tensor(torch.inf, dtype=parameter.dtype))
    return before, tensors_sha256(made.adapter_tensors("after"))


@pytest.mark.parametrize("world", [2, 4])
def test_any_number_of_ranks_has_the_adapter_of_one(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path, world: int
) -> None:
    alone = whole(single, small_snapshot)
    for held in ranks(whole, world, small_snapshot):
        assert list(held) == list(alone)
        assert all(torch.equal(held[name], alone[name]) for name in alone)


def test_an_expert_is_the_same_to_all_and_a_stray_replica_to_its_own_rank_alone(
    ranks: Callable[..., list[Any]], small_snapshot: Path
) -> None:
    (before, first), (_, second) = ranks(with_a_stray, 2, small_snapshot, ".mlp.experts.")
    assert first == second != before
    (before, first), (_, second) = ranks(with_a_stray, 2, small_snapshot, ".self_attn.")
    assert first == before != second
