"""Findings about the ownership journal as evidence."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_WHAT = (
    "The journal says what a run owned and that all of it was found absent again. It is written line by line before and after\n"
    "each creation, chained by SHA-256. Where it breaks off or contradicts itself, something may still run, or the file was\n"
    "changed. `mint2m cleanup --plan F --ownership F` on the machine of the run looks for what remains."
)


def _entry(id: str, message: str, meaning: str) -> Entry:
    return Entry(id=id, verdict=Verdict.FAILED, message=message, explanation=f"{meaning}\n{_WHAT}")


ENTRIES = (
    _entry(
        "journal.cut",
        "the journal breaks off inside a line",
        "Each event ends in a newline; the last one does not. The driver died while writing, or the file was cut.",
    ),
    _entry(
        "journal.sequence",
        "events are not numbered 0, 1, 2, …",
        "A line is missing, repeated or moved.",
    ),
    _entry(
        "journal.chain-broken",
        "the journal's chain is broken",
        "A line names another predecessor than the line before it.",
    ),
    _entry(
        "journal.other-run",
        "an event of another run",
        "The event names another plan or another execution than the rest of the evidence.",
    ),
    _entry(
        "journal.not-opened",
        "the journal does not begin with its opening",
        "The first event must be `opened`.",
    ),
    _entry(
        "journal.not-closed",
        "the journal is not closed, or not only at its end",
        "The last event must be `closed`, once, after everything was found absent.",
    ),
    _entry(
        "journal.without-intent",
        "something was created without an intent",
        "An intent is written before each creation, so that a dying driver leaves a trace; this creation has none.",
    ),
    _entry(
        "journal.not-absent",
        "something owned was never found absent",
        "The journal has an intent or a creation without a later `absent`. It may still be running.",
    ),
    _entry(
        "journal.cleanup-failed",
        "cleanup failed",
        "The driver itself recorded that something could not be removed.",
    ),
    _entry(
        "journal.nothing-owned",
        "the journal owns nothing",
        "A run creates at least its actors; a journal without any resource is of no run.",
    ),
    _entry(
        "journal.not-created",
        "something planned was never created",
        "The plan names the placement group, the coordinator and an actor for each rank; the journal has no creation of one.",
    ),
    _entry(
        "journal.actor-mismatch",
        "an actor's id is not the one it recorded",
        "The id that the driver journalled for an actor differs from the one in that rank's record: it is another actor's record.",
    ),
)
