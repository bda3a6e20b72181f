"""What the routers count is what was chosen, by the rank's own tokens alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.instruments.routing import RoutingRecorder

sys.path.insert(0, str(Path(__file__).parents[1] / "prefix"))
from prefix_sessions import policy, session

EXPERTS, CHOSEN = 4, 2

#: Of four layers the first is dense, and behind the last one's rows a capture wants nothing.
LAYERS = 2


def captured(comm: Comm, snapshot: Path) -> tuple[tuple[int, ...] | None, list[int], int, object]:
    """Counts of one capture, what an onlooker saw chosen, the rank's rows, and what is left to be asked."""
    made = policy(comm, snapshot)
    recorder = RoutingRecorder(limit_bytes=1 << 20)
    with recorder.attached(made.inner):
        witness = session(made, comm, "exact").capture()
    counts = made.inner.take_expert_tokens()
    seen = torch.zeros(EXPERTS, dtype=torch.int64)
    for choice in recorder.routing.choices:
        if choice.kind == "experts":
            seen += torch.bincount(choice.ids.flatten().long(), minlength=EXPERTS)
    return counts, seen.tolist(), witness.rows, made.inner.take_expert_tokens()


def test_counts_are_those_of_the_choices_and_add_up_to_the_rows(
    ranks: Callable[..., list[Any]], small_snapshot: Path
) -> None:
    each = ranks(captured, 2, small_snapshot)
    for counts, seen, rows, left in each:
        assert list(counts) == seen
        assert sum(counts) == rows * CHOSEN * LAYERS
        assert left is None, "taken once"
    assert each[0][0] != each[1][0], "each rank counts its own tokens"
