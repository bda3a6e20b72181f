"""Ownership journals that are cut, moved, of another run, or leave something behind; signed with the right key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maker.case import vector
from maker.forge import Run, read_base


def journal(run: Run, change: Callable[[list[Any]], list[Any] | None], *, chain: bool = True) -> None:
    events = run.journal()
    run.put_journal(change(events) or events, chain=chain)
    run.redo_receipt()
    run.redo_seal()


def is_actor(event: dict[str, Any], what: str) -> bool:
    owned = event["resource"]
    return event["event"] == what and owned is not None and owned["name"].endswith("rank-0000")


@vector("journal-truncated", "The journal ends in the middle of a line.", "journal.cut", base="run-one-rank")
def _(run: Run) -> None:
    run.files["ownership.jsonl"] = run.files["ownership.jsonl"][:-30]
    run.redo_receipt()
    run.redo_seal()


@vector(
    "journal-without-its-end",
    "The journal ends before everything was absent.",
    "journal.not-closed",
    base="run-one-rank",
    also=("journal.not-absent",),
)
def _(run: Run) -> None:
    journal(run, lambda events: events[:-9])


@vector(
    "journal-actor-remains", "An actor was created and never found absent.", "journal.not-absent", base="run-one-rank"
)
def _(run: Run) -> None:
    journal(run, lambda events: [event for event in events if not is_actor(event, "absent")])


@vector("journal-actor-never-created", "A planned actor was never created.", "journal.not-created", base="run-one-rank")
def _(run: Run) -> None:
    journal(run, lambda events: [e for e in events if not any(is_actor(e, w) for w in ("intent", "created", "absent"))])


@vector(
    "journal-without-intent",
    "An actor was created without an intent before it.",
    "journal.without-intent",
    base="run-one-rank",
)
def _(run: Run) -> None:
    journal(run, lambda events: [event for event in events if not is_actor(event, "intent")])


@vector(
    "journal-other-actor",
    "The journal's actor is not the one that recorded itself.",
    "journal.actor-mismatch",
    base="run-one-rank",
)
def _(run: Run) -> None:
    def change(events: list[Any]) -> None:
        for event in events:
            if event["resource"] is not None and event["resource"]["name"].endswith("rank-0000"):
                event["resource"]["id"] = "ab" * 16

    journal(run, change)


@vector(
    "journal-reordered",
    "Two events of the journal changed places.",
    "journal.sequence",
    base="run-one-rank",
    also=("journal.chain-broken",),
)
def _(run: Run) -> None:
    def change(events: list[Any]) -> None:
        events[5], events[6] = events[6], events[5]

    journal(run, change, chain=False)


@vector(
    "journal-chain-broken",
    "A line of the journal was edited, and its successor not.",
    "journal.chain-broken",
    base="run-one-rank",
)
def _(run: Run) -> None:
    journal(run, lambda events: events[7].update(time="2026-01-31T12:00:00Z"), chain=False)


@vector("journal-of-another-run", "The journal of another run.", "journal.other-run", also=("journal.not-created",))
def _(run: Run) -> None:
    run.files["ownership.jsonl"] = read_base("run-one-rank")["ownership.jsonl"]
    run.redo_receipt()
    run.redo_seal()


@vector("journal-of-another-execution", "The journal of a second execution of the same plan.", "journal.other-run")
def _(run: Run) -> None:
    run.files["ownership.jsonl"] = read_base("run-again")["ownership.jsonl"]
    run.redo_receipt()
    run.redo_seal()


@vector("journal-without-opening", "The journal does not begin.", "journal.not-opened", base="run-one-rank")
def _(run: Run) -> None:
    journal(run, lambda events: events[1:])


@vector(
    "journal-of-nothing",
    "A journal that opens and closes: nothing was owned, so nothing ran.",
    "journal.not-created",
    base="run-one-rank",
    also=("journal.nothing-owned",),
)
def _(run: Run) -> None:
    journal(run, lambda events: [events[0], events[-1]])


@vector(
    "journal-cleanup-failed", "The journal says that its cleanup failed.", "journal.cleanup-failed", base="run-one-rank"
)
def _(run: Run) -> None:
    def change(events: list[Any]) -> None:
        events.insert(-1, {**events[-2], "event": "cleanup-failed", "detail": "something would not die"})

    journal(run, change)
