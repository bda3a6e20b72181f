"""Findings about the ownership journal and about what an interrupted run left behind."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="ownership.exists",
        verdict=Verdict.BLOCKED,
        message="this ownership journal exists already",
        explanation=(
            "A journal belongs to one execution and is never reused. Either this run happened before, or it was interrupted.\n"
            "`mint2m status --ownership F` says which. Clean up with `mint2m cleanup`, then run again into a new directory."
        ),
        hint="mint2m status --ownership F tells what became of that run",
    ),
    Entry(
        id="ownership.driver-alive",
        verdict=Verdict.BLOCKED,
        message="the journal is held by a driver or a cleanup that still runs",
        explanation=(
            "The driver locks its journal as long as it lives. Cleaning up under it would end a run that works.\n"
            "Interrupt the driver first (Ctrl-C is enough: it cleans up after itself), then run cleanup again."
        ),
        hint="interrupt the driver first",
    ),
    Entry(
        id="ownership.empty",
        verdict=Verdict.FAILED,
        message="the journal holds no event",
        explanation=(
            "The driver died before its first line was on disk, or the file is not a journal. Nothing can have been created\n"
            "for it, because every creation waits for its line."
        ),
    ),
    Entry(
        id="ownership.chain-broken",
        verdict=Verdict.FAILED,
        message="a journal line does not follow the line before",
        explanation=(
            "Each line carries its number, the SHA-256 of the line before, and the plan and execution of the first line. One\n"
            "was dropped, inserted, reordered or changed. Nothing in the journal after that point can be relied on."
        ),
    ),
    Entry(
        id="ownership.plan-mismatch",
        verdict=Verdict.BLOCKED,
        message="plan and journal belong to different runs",
        explanation=(
            "The journal names another plan_sha256 than the plan that was given. Cleaning up with the wrong plan could look in\n"
            "the wrong namespace and report an absence that means nothing. Give the plan from the journal's own directory."
        ),
    ),
    Entry(
        id="cleanup.resource-remains",
        verdict=Verdict.FAILED,
        message="something that the run owns is still there",
        explanation=(
            "Cleanup tried to remove it and it stayed. Absence is not proven, so the journal stays open. The finding names the\n"
            "resource; end it yourself and run cleanup again, which repeats every check."
        ),
        hint="run mint2m cleanup again; if it stays, end it by the id above",
    ),
    Entry(
        id="cleanup.id-unknown",
        verdict=Verdict.FAILED,
        message="a resource of this name exists, but its id was never journalled",
        explanation=(
            "The driver died between its intent and the id. A thing with the planned name is there, but a name alone does not\n"
            "prove that this run made it, so it is reported and left alone. Check who owns it, remove it, run cleanup again."
        ),
    ),
    Entry(
        id="cleanup.cluster-unreachable",
        verdict=Verdict.IO_ERROR,
        message="the Ray cluster of this run cannot be reached",
        explanation=(
            "What the run created there can only be seen from inside the cluster, so nothing was proven absent. Ray itself ends\n"
            "actors and placement groups whose driver is gone; run cleanup again when the cluster answers."
        ),
    ),
    Entry(
        id="cleanup.half-written",
        verdict=Verdict.FAILED,
        message="a half-written file or directory could not be removed",
        explanation=(
            "Files are written under a temporary name and renamed when whole. One with such a name is left and could not be\n"
            "removed. It is not evidence of anything. Remove it, or mend its permissions, and run cleanup again."
        ),
    ),
)
