"""Findings about the receipt and the doctor of a run."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

_WHAT = (
    "A receipt summarizes; it proves nothing by itself. Each of its numbers and files is held against what it summarizes, and\n"
    "this one does not fit. Where a tree or file changed, that is the cause and is reported first; otherwise the receipt was\n"
    "edited or belongs to another run."
)


def _entry(id: str, message: str, meaning: str) -> Entry:
    return Entry(id=id, verdict=Verdict.FAILED, message=message, explanation=f"{meaning}\n{_WHAT}")


ENTRIES = (
    Entry(
        id="receipt.failed",
        verdict=Verdict.FAILED,
        message="the run did not come through, and says so",
        explanation=(
            "The directory holds failed-receipt.json: the update was begun and stopped where the finding says. No weight was\n"
            "changed: adapter, checkpoint and whatever else the phase had written were removed, finished files of earlier phases\n"
            "stay, and none of them proves anything. Mend the cause that the failed receipt names and run into a new directory."
        ),
        hint="run again into a new directory",
    ),
    _entry(
        "receipt.mismatch",
        "the receipt says something else than the evidence",
        "A number or identity in the receipt is not the one counted again from plan, profile, records and scores.",
    ),
    _entry(
        "receipt.other-run",
        "a document of another run",
        "Rank records or scores name another plan or execution than the receipt: parts of two runs, or of two attempts,\n"
        "were mixed.",
    ),
    _entry(
        "receipt.checkpoint-root-mismatch",
        "the checkpoint is not the one the receipt binds",
        "The root digest over checkpoint/ is not that of its manifest, which the receipt binds.",
    ),
    _entry(
        "receipt.adapter-root-mismatch",
        "the adapter is not the one the receipt binds",
        "The root digest over adapter/ is not that of its manifest, which the receipt binds.",
    ),
    _entry(
        "receipt.adapter-before-root-mismatch",
        "the adapter before the step is not the one the receipt binds",
        "The root digest over artifacts/adapter-before/ is not that of its manifest, which the receipt binds.",
    ),
    _entry(
        "doctor.blocked",
        "the run began although something was in its way",
        "doctor.json has a blocked check or names a primary failure, or its status contradicts its checks. A run starts\n"
        "only when all pass.",
    ),
    _entry(
        "doctor.scope",
        "the doctor looked at something else",
        "doctor.json is not of scope `run`, or it names another profile, model or runtime than this run has, so it does\n"
        "not say whether this run could start. It is not this run's record.",
    ),
    _entry(
        "verify.not-reached",
        "a requirement was never judged",
        "A row of the report could not be judged although nothing was found wrong. This is no acceptance; report it as a\n"
        "fault of the tool.",
    ),
    _entry(
        "verify.more-findings",
        "there are more findings than are listed",
        "The first thousand of one kind are listed; the rest are only counted.",
    ),
)
