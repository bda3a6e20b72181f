"""Which ranks hold up the others, from the last collective that each one came to."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from mint2m_trainer.cluster.messages import Whereabouts
from mint2m_trainer.cluster.whereabouts import Teller, diagnosis
from mint2m_trainer.comm.ledger import Ledger, Tag


def word(rank: int, calls: int, operation: str = "experts.forward", layer: int = 2) -> Whereabouts:
    return Whereabouts(rank=rank, calls=calls, operation=operation, phase="grpo-0", chunk=-1, layer=layer)


@pytest.mark.parametrize(
    ("late", "words", "expected"),
    [
        pytest.param(
            [0, 1, 2, 3],
            [word(0, 412), word(1, 412), word(2, 411, "experts.counts"), word(3, 412)],
            "rank 2 went no further than collective 411, experts.counts (grpo-0, layer 2); "
            "ranks 0, 1, 3 in collective 412, experts.forward (grpo-0, layer 2)",
            id="one is behind",
        ),
        pytest.param(
            [0, 1],
            [word(0, 412), word(1, 412)],
            "ranks 0, 1 in collective 412, experts.forward (grpo-0, layer 2)",
            id="the collective itself does not end",
        ),
        pytest.param(
            [0, 1],
            [word(0, 1, "agree", layer=-1)],
            "rank 1 came to no collective; rank 0 in collective 1, agree (grpo-0)",
            id="one never came",
        ),
        pytest.param(
            [1],
            [word(0, 500), word(1, 412)],
            "rank 1 in collective 412, experts.forward (grpo-0, layer 2)",
            id="the others have finished",
        ),
        pytest.param([1], [], "none of them has said in which collective it is", id="nobody said anything"),
    ],
)
def test_the_diagnosis_names_who_is_behind_and_where_the_others_wait(
    late: list[int], words: list[Whereabouts], expected: str
) -> None:
    assert diagnosis(late, words) == expected


def test_a_rank_tells_its_last_collective_while_it_is_in_it_and_nothing_twice() -> None:
    told: list[Whereabouts] = []
    coordinator = SimpleNamespace(report_where=SimpleNamespace(remote=told.append))
    ledger = Ledger()
    teller = Teller(3, lambda: ledger.position, coordinator)
    ledger.record(Tag(phase="bind"), "agree", 1)
    ledger.record(Tag(phase="capture-prefix", chunk=4, layer=1), "rows.forward", 8)
    time.sleep(2.5)  # this thread is busy, as in a collective; two words would be due
    teller.stop()
    assert told == [Whereabouts(rank=3, calls=2, operation="rows.forward", phase="capture-prefix", chunk=4, layer=1)]
