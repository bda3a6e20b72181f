"""A late rank's record is there when the driver looks, and gone when the phase ends after all."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.cluster.flight_record import recording, records_of, unfinished
from mint2m_verify.layout import has_place, rank_flight


def entry(number: int, *, state: str = "scheduled", retired: bool = False, **changes: Any) -> dict[str, Any]:
    """One collective as torch 2.13 writes it, without what is not read."""
    return {
        "record_id": number,
        "collective_seq_id": number + 1,
        "process_group": ["3", "CONTEXT_PARALLEL_GROUP"],
        "profiling_name": "nccl:all_to_all",
        "state": state,
        "retired": retired,
    } | changes


def record(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"version": "2.10", "entries": entries}).encode()


def test_the_first_that_has_not_ended_is_named_however_far_the_host_went_on() -> None:
    """With NCCL the host enqueues further collectives behind one that hangs on the device."""
    raw = record(
        entry(5, state="scheduled"),
        entry(2, state="completed", retired=True),
        entry(3, state="completed"),  # and its watchdog has not been round yet
        entry(4, state="started"),
    )
    assert str(unfinished(raw)) == "nccl:all_to_all, number 5 of CONTEXT_PARALLEL_GROUP"
    assert unfinished(record(entry(1, retired=True))) is None  # Gloo: retired, never completed
    assert unfinished(b'{"version": "2.10"}') is None  # torch leaves empty entries out
    assert str(unfinished(record(entry(1, process_group=["0", ""])))).endswith("number 2 of 0")


@pytest.mark.parametrize(
    "raw",
    [
        pickle.dumps({"entries": []}),
        b"[]",
        b"[" * 100_000,
        b'{"entries": 3}',
        b'{"entries": [{}]}',
        record(entry(1, process_group=[])),
        record(entry(1, collective_seq_id=None)),
    ],
)
def test_what_is_no_record_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(ValueError, match="no flight record"):
        unfinished(raw)


def test_a_phase_in_time_leaves_nothing_and_a_late_one_takes_its_record_back(tmp_path: Path) -> None:
    place = tmp_path / "logs" / "rank-0000.flight.json"
    place.parent.mkdir()
    with recording(place, 60.0, lambda: record()):
        pass
    assert not place.exists()
    with recording(place, 0.05, lambda: record()):
        _until(place.exists)
    assert list(place.parent.iterdir()) == []


def test_a_phase_that_fails_late_leaves_its_record(tmp_path: Path) -> None:
    place = tmp_path / "rank-0000.flight.json"
    with pytest.raises(RuntimeError), recording(place, 0.05, lambda: record(entry(1))):
        _until(place.exists)
        raise RuntimeError("the others left")
    assert unfinished(place.read_bytes()) is not None


def test_a_record_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    with recording(tmp_path / "absent" / "record.json", 0.01, lambda: record()):
        time.sleep(0.1)
    with recording(tmp_path / "record.json", 0.01, lambda: None):
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


def test_the_driver_says_where_each_late_rank_is_and_waits_for_no_record_forever(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / rank_flight(0)).write_bytes(record(entry(30)))
    (tmp_path / rank_flight(1)).write_bytes(record())
    (tmp_path / rank_flight(2)).write_bytes(pickle.dumps("hello"))
    looked: list[int] = []
    words = records_of(tmp_path, [0, 1, 2, 3], seconds=0.3, look=lambda: looked.append(1))
    assert words == (
        "rank 0 in nccl:all_to_all, number 31 of CONTEXT_PARALLEL_GROUP (logs/rank-0000.flight.json); "
        "rank 1 in none (logs/rank-0001.flight.json); "
        "logs/rank-0002.flight.json: no flight record: UnicodeDecodeError"
    )
    assert looked, "an operator's interrupt is heard meanwhile"
    assert not has_place(rank_flight(0)), "a run that verifies has none"


def _until(true: Any) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
