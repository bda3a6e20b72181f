"""Findings of `mint2m stage`: why a stage does not start, or does not pass."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="stage.run-id-invalid",
        verdict=Verdict.BLOCKED,
        message="the run id is no UUID",
        explanation=("A promotion run is labelled by a UUID in lower case, new for every attempt."),
        hint="python3 -c 'import uuid; print(uuid.uuid4())'",
    ),
    Entry(
        id="stage.run-id-reused",
        verdict=Verdict.BLOCKED,
        message="the run id was used before",
        explanation=(
            "Another evidence directory beside this one carries the same run id. An attempt that failed is not continued under its\n"
            "own name in another place: take a new UUID and a new directory."
        ),
    ),
    Entry(
        id="stage.run-mismatch",
        verdict=Verdict.BLOCKED,
        message="the evidence directory belongs to another run",
        explanation=("The doctor's record in this directory carries another run id than --run-id."),
    ),
    Entry(
        id="stage.plan-mismatch",
        verdict=Verdict.BLOCKED,
        message="the evidence directory was begun under another plan",
        explanation=(
            "The validation plan in the evidence directory is not the one that --validation-plan names. A run is judged by the plan\n"
            "it began with."
        ),
    ),
    Entry(
        id="stage.plan-unsound",
        verdict=Verdict.BLOCKED,
        message="the validation plan cannot judge",
        explanation=(
            "The plan or its statement is malformed, unsigned, about other bytes, or leaves a number of a stage without a bound."
        ),
    ),
    Entry(
        id="stage.not-planned",
        verdict=Verdict.BLOCKED,
        message="the plan does not require this stage",
        explanation=("Only stages that the validation plan requires can be run under it."),
    ),
    Entry(
        id="stage.source-mismatch",
        verdict=Verdict.BLOCKED,
        message="this installation is not the planned source",
        explanation=(
            "The plan binds source and runtime identity. What is installed here differs: evidence made with it would be about\n"
            "something else."
        ),
    ),
    Entry(
        id="stage.repeated",
        verdict=Verdict.BLOCKED,
        message="the stage was run already",
        explanation=("The evidence directory holds a sealed bundle of this stage. A stage runs once in a run."),
    ),
    Entry(
        id="stage.parent-missing",
        verdict=Verdict.BLOCKED,
        message="the stage before has no sealed bundle",
        explanation=(
            "Stages run in order: doctor, kernel, nccl, actor, parity-32k, parity-64k, scale-2m. Each consumes exactly its parent's\n"
            "validated bundle."
        ),
    ),
    Entry(
        id="stage.parent-invalid",
        verdict=Verdict.BLOCKED,
        message="the chain so far does not verify",
        explanation=(
            "The bundles before this stage were verified with your own key, and something does not hold. `mint2m verify chain`\n"
            "shows what."
        ),
    ),
    Entry(
        id="stage.input-missing",
        verdict=Verdict.BLOCKED,
        message="an input of the plan is not at hand",
        explanation=(
            "The plan names its inputs by path, digest and size, beside the plan. One of them is absent or has other bytes."
        ),
    ),
    Entry(
        id="stage.cache-missing",
        verdict=Verdict.BLOCKED,
        message="the kernel cache is missing, empty or no directory",
        explanation=(
            "The plan requires a kernel cache that is filled before the stage hashes it, and none is kept here: the user's cache folder\n"
            "cannot be written, or is open to others; or TILELANG_CACHE_DIR names no directory."
        ),
    ),
    Entry(
        id="stage.changed-while-running",
        verdict=Verdict.BLOCKED,
        message="something that the plan binds changed while the stage ran",
        explanation=(
            "Source, runtime identity or kernel cache were hashed before the stage and after it, and differ. Nothing was sealed."
        ),
    ),
    Entry(
        id="stage.too-slow",
        verdict=Verdict.BLOCKED,
        message="the stage would not end within its planned time",
        explanation=(
            "From the rate that the stages before it were measured at, this length would take longer than the plan allows. Nothing\n"
            "was started."
        ),
    ),
)
