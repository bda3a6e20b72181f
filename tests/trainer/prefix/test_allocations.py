"""Nothing of the square of the prompt is ever allocated, as torch's allocator tells it.

The bound is one byte for each pair of tokens, so that a mask or a table of flags would show as well as scores. What the
compiled kernels take beside torch's allocator is held to by the process's peak, in `kernels/test_attention.py` and
`kernels/test_selection.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mint2m_trainer.comm.groups import Comm

sys.path.insert(0, str(Path(__file__).parent))
from prefix_sessions import gradients, policy, session

PROMPT = 2048


def largest_allocation(work: Callable[[], object]) -> int:
    """Bytes of the largest block that torch's CPU allocator gives while `work` runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    results = profile.profiler.kineto_results
    return max(event.nbytes() for event in results.events() if event.name() == "[memory]")


@pytest.mark.parametrize("route", ["fetch", "lse"])
def test_an_exact_update_allocates_nothing_of_the_square_of_the_prompt(
    single: Comm, small_snapshot: Path, route: str
) -> None:
    made = policy(single, small_snapshot, dtype="float32")
    run = session(made, single, "exact", prompt=PROMPT, responses=(5, 3), chunk=256, page_rows=256, route=route)
    assert 0 < largest_allocation(lambda: gradients(made, run, "exact")) < PROMPT**2 // 2


def test_whole_sequences_allocate_nothing_of_the_square_either(single: Comm, small_snapshot: Path) -> None:
    made = policy(single, small_snapshot, dtype="float32")
    run = session(made, single, "conventional", prompt=PROMPT, responses=(5, 3))
    assert 0 < largest_allocation(lambda: gradients(made, run, "conventional")) < PROMPT**2


def test_the_measure_sees_a_table_of_flags() -> None:
    flags = largest_allocation(lambda: torch.ones(PROMPT, PROMPT, dtype=torch.bool).sum())
    assert flags >= PROMPT**2
