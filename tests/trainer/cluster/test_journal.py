"""The ownership journal: on disk before the thing exists, chained, exclusive, and readable after a crash."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from mint2m_trainer.cluster.journal import Journal, opened_words, read, resource
from mint2m_verify.finding import FindingError

PLAN, EXECUTION = "1" * 64, "2" * 64


def open_journal(path: Path) -> Journal:
    return Journal.create(path, plan_sha256=PLAN, execution_id=EXECUTION)


def test_each_line_carries_the_sha256_of_the_line_before(tmp_path: Path) -> None:
    path = tmp_path / "ownership.jsonl"
    with open_journal(path) as journal:
        journal.write("opened")
        journal.write("intent", resource("actor", "a"))
        journal.write("created", resource("actor", "a", id="00ff"))
    lines = path.read_bytes().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["sequence"] for event in events] == [0, 1, 2]
    assert [event["previous_sha256"] for event in events] == [
        None,
        hashlib.sha256(lines[0]).hexdigest(),
        hashlib.sha256(lines[1]).hexdigest(),
    ]
    assert {event["execution_id"] for event in events} == {EXECUTION}


@pytest.mark.parametrize("place", ["kept", "a folder; progress in another", "../kept"])
def test_where_progress_is_kept_is_named_from_the_run_and_read_back(tmp_path: Path, place: str) -> None:
    root = tmp_path / "deep" / "run"
    root.mkdir(parents=True)
    folder = (root.parent / place).resolve()
    for progress in (None, folder):
        path = root / f"{progress is None}.jsonl"
        with open_journal(path) as journal:
            journal.write("opened", detail=opened_words("one", progress, root=root))
        said = read(path).progress
        assert (None if said is None else (root / said).resolve()) == progress
        assert str(tmp_path) not in (read(path).events[0].detail or "")


def test_a_line_is_on_disk_before_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "ownership.jsonl"
    with open_journal(path) as journal:
        journal.write("opened")
        assert path.read_bytes().count(b"\n") == 1
        journal.write("intent", resource("placement-group", "g"))
        assert path.read_bytes().count(b"\n") == 2


def test_a_journal_is_never_created_twice(tmp_path: Path) -> None:
    path = tmp_path / "ownership.jsonl"
    open_journal(path).close()
    with pytest.raises(FindingError) as refused:
        open_journal(path)
    assert refused.value.finding.id == "ownership.exists"


def test_a_held_journal_cannot_be_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "ownership.jsonl"
    with open_journal(path) as journal:
        journal.write("opened")
        with pytest.raises(FindingError) as refused:
            Journal.reopen(path)
        assert refused.value.finding.id == "ownership.driver-alive"
    taken, ledger = Journal.reopen(path)
    taken.close()
    assert len(ledger.events) == 1


def test_a_torn_last_line_is_cut_off_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ownership.jsonl"
    with open_journal(path) as journal:
        journal.write("opened")
        journal.write("intent", resource("actor", "a"))
    path.write_bytes(path.read_bytes() + b'{"schema":"mint2m.ownership-ev')
    journal, ledger = Journal.reopen(path)
    with journal:
        assert [item.name for item in ledger.owned] == ["a"]
        journal.write("absent", resource("actor", "a"))
    assert [event.event for event in read(path).events] == ["opened", "intent", "absent"]


@pytest.mark.parametrize(
    ("change", "id"),
    [
        (lambda lines: [lines[0], lines[2], lines[3]], "ownership.chain-broken"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "ownership.chain-broken"),
        (lambda lines: [lines[0], lines[1].replace(b'"a"', b'"b"'), *lines[2:]], "ownership.chain-broken"),
        (lambda lines: [lines[0].replace(b"2" * 64, b"3" * 64), *lines[1:]], "ownership.chain-broken"),
        (lambda lines: [], "ownership.empty"),
        (lambda lines: [lines[0], lines[1] + b" ", *lines[2:]], "json.not-canonical"),
    ],
    ids=["dropped", "swapped", "edited", "other-execution", "empty", "respelled"],
)
def test_a_changed_journal_is_refused(tmp_path: Path, change: object, id: str) -> None:
    path = tmp_path / "ownership.jsonl"
    with open_journal(path) as journal:
        journal.write("opened")
        journal.write("intent", resource("actor", "a"))
        journal.write("created", resource("actor", "a", id="00"))
        journal.write("absent", resource("actor", "a", id="00"))
    lines = change(path.read_bytes().splitlines())  # type: ignore[operator]  # one of the lambdas above
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    with pytest.raises(FindingError) as refused:
        read(path)
    assert refused.value.finding.id == id


def test_owned_is_what_was_intended_or_created_and_not_absent_with_the_best_known_id(tmp_path: Path) -> None:
    path = tmp_path / "ownership.jsonl"
    with open_journal(path) as journal:
        journal.write("opened")
        journal.write("intent", resource("actor", "a"))
        journal.write("intent", resource("actor", "b"))
        journal.write("created", resource("actor", "b", id="0b", pid=5, start_ticks=7))
        journal.write("intent", resource("directory", "d"))
        journal.write("created", resource("directory", "d"))
        journal.write("absent", resource("directory", "d"))
    assert [(item.name, item.id, item.pid) for item in read(path).owned] == [("a", None, None), ("b", "0b", 5)]


def test_a_line_that_does_not_fit_on_the_disk_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ownership.jsonl"
    write = os.write
    with open_journal(path) as journal:
        journal.write("opened")
        whole = path.read_bytes()
        monkeypatch.setattr(os, "write", lambda descriptor, raw: write(descriptor, raw[:30]))
        with pytest.raises(OSError, match=r"ownership\.jsonl"):
            journal.write("closed", detail="lost")
        assert path.read_bytes() == whole
        monkeypatch.undo()
        journal.write("closed", detail="complete")
    assert [event.event for event in read(path).events] == ["opened", "closed"]
