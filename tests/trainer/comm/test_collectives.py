"""Collectives over real processes: what arrives where, and the gradient that comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mint2m_trainer.comm.collectives import collect_rows, exchange_counts, exchange_rows, send_rows
from mint2m_trainer.comm.groups import Comm, CommError
from mint2m_trainer.comm.ledger import Ledger, Tag
from mint2m_trainer.comm.packing import collect_packed, send_packed

TAG = Tag(phase="test", chunk=0, layer=0)


def values(rank: int, count: int) -> torch.Tensor:
    """Rows that tell their rank and place; a ghost row of 99 behind an empty share."""
    rows = torch.arange(count * 2, dtype=torch.float64).view(count, 2) + 100 * rank
    return rows if count else torch.full((1, 2), 99.0, dtype=torch.float64)


def gathered(comm: Comm, counts: tuple[int, ...]) -> Any:
    return collect_rows(values(comm.rank, counts[comm.rank]), counts, comm, TAG, "rows").tolist(), comm.ledger.digest()


@pytest.mark.parametrize("counts", [(3, 2), (1, 0), (2, 2)])
def test_gathered_rows_are_in_rank_order_and_without_ghosts(
    ranks: Callable[..., list[Any]], counts: tuple[int, ...]
) -> None:
    want = torch.cat([values(rank, count) for rank, count in enumerate(counts) if count]).tolist()
    (first, digest), (second, other) = ranks(gathered, 2, counts)
    assert first == second == want
    assert digest == other


def exchanged(comm: Comm) -> Any:
    sent = ((1, 2), (3, 0))[comm.rank]
    received = ((1, 3), (2, 0))[comm.rank]
    x = (torch.arange(sum(sent), dtype=torch.float64) + 10 * comm.rank)[:, None].requires_grad_()
    got = exchange_rows(x, received=received, sent=sent, comm=comm, tag=TAG, name="x")
    (got * (comm.rank + 1)).sum().backward()
    return got.detach().flatten().tolist(), x.grad.flatten().tolist()


def test_an_uneven_exchange_sends_rows_and_brings_gradient_back(ranks: Callable[..., list[Any]]) -> None:
    (first, first_grad), (second, second_grad) = ranks(exchanged, 2)
    assert first == [0.0, 10.0, 11.0, 12.0]
    assert second == [1.0, 2.0]
    assert first_grad == [1.0, 2.0, 2.0]
    assert second_grad == [1.0, 1.0, 1.0]


def disagreeing(comm: Comm) -> Any:
    comm.ledger.record(Tag(phase="test", chunk=comm.rank // 2), "rows.gather", 8)
    try:
        comm.agree("test")
    except CommError as fault:
        return str(fault)
    return "agreed"


def test_a_rank_with_another_sequence_is_named(ranks: Callable[..., list[Any]]) -> None:
    said = ranks(disagreeing, 3)
    assert said == ["test: collectives of ranks [2] differ from rank 0"] * 3


def test_the_digest_covers_order_and_not_bytes() -> None:
    def digest(*calls: tuple[str, int]) -> str:
        ledger = Ledger()
        for operation, size in calls:
            ledger.record(TAG, operation, size)
        return ledger.digest()

    assert digest(("a", 1), ("b", 2)) == digest(("a", 7), ("b", 9))
    assert digest(("a", 1), ("b", 2)) != digest(("b", 2), ("a", 1))
    assert digest(("a", 1)) != digest(("a", 1), ("a", 1))


def sent(comm: Comm, dtype: str) -> Any:
    """Rank 0 sends two rows to rank 2, rank 2 one to itself; rank 1 has nothing to do and takes part."""
    counts = ((0, 0, 2), (0, 0, 0), (0, 0, 1))[comm.rank]
    received = exchange_counts(counts, comm, TAG, "n")
    rows = (torch.arange(2 * sum(counts)).view(-1, 2) + 10 * comm.rank).to(getattr(torch, dtype))
    got = send_rows(rows, received=received, sent=counts, comm=comm, tag=TAG, name="n")
    return received, got.dtype == rows.dtype, got.tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
def test_ranks_without_rows_take_part_and_rows_of_any_type_arrive(ranks: Callable[..., list[Any]], dtype: str) -> None:
    first, second, third = ranks(sent, 3, dtype)
    assert first == second == ((0, 0, 0), True, [])
    assert third == ((2, 0, 1), True, [[0, 1], [2, 3], [20, 21]])


def packed(comm: Comm) -> Any:
    counts = (2, 0)
    parts = (torch.full((2, 2, 3), 1.5, dtype=torch.bfloat16), torch.arange(2), torch.tensor([[-0.0], [7.0]]))
    if comm.rank == 1:  # a ghost's rows count for nothing
        parts = tuple(torch.zeros_like(part[:1]) for part in parts)
    gathered = collect_packed(parts, counts, comm, TAG, "p")
    moved = send_packed(
        tuple(part[: counts[comm.rank]] for part in parts),
        received=(0, 0) if comm.rank == 0 else (2, 0),
        sent=(0, 2) if comm.rank == 0 else (0, 0),
        comm=comm,
        tag=TAG,
        name="p",
    )
    told = [
        [(str(part.dtype), tuple(part.shape), part.double().tolist()) for part in side] for side in (gathered, moved)
    ]
    return told, comm.ledger.digest(), comm.ledger.summary().calls


def test_tensors_packed_into_one_collective_come_out_as_they_went_in(ranks: Callable[..., list[Any]]) -> None:
    (first, digest, calls), (second, other, _) = ranks(packed, 2)
    whole = [
        ("torch.bfloat16", (2, 2, 3), [[[1.5] * 3] * 2] * 2),
        ("torch.int64", (2,), [0.0, 1.0]),
        ("torch.float32", (2, 1), [[-0.0], [7.0]]),
    ]
    assert first[0] == second[0] == second[1] == whole
    assert [shape for _, shape, _ in first[1]] == [(0, 2, 3), (0,), (0, 1)]
    assert digest == other
    assert calls == 2
