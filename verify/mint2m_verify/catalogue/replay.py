"""Findings of `mint2m replay`: what a repetition of the update on the auditor's machine shows."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="replay.differs",
        verdict=Verdict.FAILED,
        message="the evidence holds another number than the repetition gives",
        explanation=(
            "This machine computed the update again from the bound inputs: model, adapter, rollout and profile. A number of the\n"
            "evidence is further from it than the tolerance allows, so the evidence was not made by this computation. Between\n"
            "machines only the order of sums differs, which is far below the tolerance."
        ),
    ),
    Entry(
        id="replay.model-missing",
        verdict=Verdict.BLOCKED,
        message="the model is not at hand",
        explanation=(
            "A repetition needs the snapshot that the run was planned with. Small ones lie in the run's inputs/model; any other is\n"
            "named with --model."
        ),
        hint="give --model DIR with the snapshot",
    ),
    Entry(
        id="replay.model-mismatch",
        verdict=Verdict.BLOCKED,
        message="this is another model than the run's",
        explanation=(
            "The snapshot's files are held against the run's model manifest before anything is computed, and differ. Take the\n"
            "snapshot of the revision that the plan names."
        ),
    ),
)
