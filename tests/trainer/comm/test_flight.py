"""torch's own record names the collective that does not end, and stays bounded."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mint2m_trainer.cluster.flight_record import Unfinished, unfinished
from mint2m_trainer.comm import flight
from mint2m_trainer.comm.collectives import collect_rows
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag

TAG = Tag(phase="test")


def _once(holds: Callable[[Unfinished | None], bool]) -> bytes | None:
    """The record as soon as that holds, or long after: torch marks a collective a moment after it has ended."""
    deadline = time.monotonic() + 30
    while not holds(unfinished(raw := flight.recorded())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return raw


def _third(first: Unfinished | None) -> bool:
    return first is not None and first.number == 3


def waited_for(comm: Comm, place: str) -> tuple[bytes | None, bytes | None]:
    """Two gathers, and a third to which rank 1 comes only after both ranks have taken their records."""
    for _ in range(2):
        collect_rows(torch.zeros(1, 4), [1, 1], comm, TAG, "rows")
    taken: list[bytes | None] = []
    written = Path(place) / "written"
    if comm.rank == 0:
        watch = threading.Thread(target=lambda: (taken.append(_once(_third)), written.touch()))
        watch.start()
    else:
        deadline = time.monotonic() + 60
        while not written.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        taken.append(_once(lambda first: first is None))
    collect_rows(torch.zeros(1, 4), [1, 1], comm, TAG, "rows")
    if comm.rank == 0:
        watch.join()
    return taken[0], _once(lambda first: first is None)


def test_a_collective_that_hangs_is_named_by_the_rank_that_waits_in_it_and_by_no_other(
    ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    (waiting, after), (late, _) = ranks(waited_for, 2, str(tmp_path))
    first = unfinished(waiting)
    assert first is not None
    assert (first.operation, first.number, first.group) == ("gloo:all_gather", 3, "CONTEXT_PARALLEL_GROUP")
    assert unfinished(late) is None
    assert unfinished(after) is None, "it ended once rank 1 had come"


def many(comm: Comm) -> tuple[bytes | None, dict[str, str]]:
    for _ in range(flight.ENTRIES + 50):
        collect_rows(torch.zeros(1, 4), [1, 1], comm, TAG, "rows")
    return flight.recorded(), {name: os.environ[name] for name in os.environ if name.startswith("TORCH_")}


def test_a_record_holds_the_latest_collectives_and_no_more_bytes_than_its_limit(
    ranks: Callable[..., list[Any]],
) -> None:
    for raw, environment in ranks(many, 2):
        entries = json.loads(raw)["entries"]
        assert len(entries) == flight.ENTRIES
        assert max(entry["collective_seq_id"] for entry in entries) >= flight.ENTRIES + 50
        assert len(raw) <= flight.LIMIT_BYTES
        assert environment["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0", "torch writes no pickle of its own"


def test_there_is_no_record_before_a_group_is_open() -> None:
    assert flight.recorded() is None
