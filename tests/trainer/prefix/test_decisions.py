"""Choices are repeated once, for the chunk and layer that made them, or not at all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mint2m_trainer.prefix.decisions import Decisions
from mint2m_trainer.prefix.layout import Layout, Share, Span
from mint2m_trainer.prefix.rows import PrefixError

LAYOUT = Layout(chunk=2, cp=1, rank=0)


def share(chunk: int, rows: int = 2) -> Share:
    """A rank's share of so many rows of a chunk."""
    return LAYOUT.share(Span(index=chunk, start=2 * chunk, stop=2 * chunk + rows))


def never() -> Tensor:
    raise AssertionError("a kept choice was made again")


def test_a_kept_choice_is_repeated_and_not_made_again() -> None:
    decisions = Decisions("store")
    rows, experts = torch.tensor([[5, -1], [7, 2]]), torch.tensor([[1], [0]])
    tape = decisions.recorder(share(3))
    assert torch.equal(tape.rows(0, lambda: rows), rows)
    assert torch.equal(tape.experts(1, lambda: experts), experts)
    assert decisions.held_bytes == 4 * 4 + 2 * 4
    repeat = decisions.replayer(share(3, 2))
    assert torch.equal(repeat.rows(0, never), rows)
    assert torch.equal(repeat.experts(1, never), experts)
    decisions.finish()


def test_a_choice_of_another_chunk_layer_or_shape_is_not_repeated() -> None:
    decisions = Decisions("store")
    decisions.recorder(share(0)).rows(0, lambda: torch.zeros(2, 1))
    for tape, layer in ((decisions.replayer(share(1, 2)), 0), (decisions.replayer(share(0, 2)), 1)):
        with pytest.raises(PrefixError, match="no decision to repeat"):
            tape.rows(layer, never)
    with pytest.raises(PrefixError, match="chose for 2 rows, not 3"):
        decisions.replayer(share(0, 3)).rows(0, never)


def test_a_choice_made_twice_or_left_over_is_a_fault() -> None:
    decisions = Decisions("store")
    tape = decisions.recorder(share(0))
    tape.rows(0, lambda: torch.zeros(2, 1))
    with pytest.raises(PrefixError, match="chose twice"):
        tape.rows(0, lambda: torch.zeros(2, 1))
    with pytest.raises(PrefixError, match="1 decisions were never repeated"):
        decisions.finish()
    decisions.clear()
    decisions.finish()


def test_rescoring_keeps_nothing_and_chooses_each_time() -> None:
    decisions, made = Decisions("rescore"), []

    def choose() -> Tensor:
        made.append(1)
        return torch.zeros(1, 1)

    decisions.recorder(share(0)).rows(0, choose)
    decisions.replayer(share(0, 1)).rows(0, choose)
    decisions.finish()
    assert len(made) == 2
    assert decisions.held_bytes == 0
