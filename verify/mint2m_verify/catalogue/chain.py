"""Findings about a promotion chain: stages, what binds them, their ranks and their numbers."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="chain.stage-missing",
        verdict=Verdict.INCOMPLETE,
        message="a required stage is not there",
        explanation=(
            "The plan requires this stage and the evidence ends before it. The run was not finished, or its newest stages were\n"
            "taken away. What is there may be sound, and it does not promote anything. --through STAGE asks for less."
        ),
        hint="run the remaining stages: mint2m stage all",
    ),
    Entry(
        id="chain.stage-gap",
        verdict=Verdict.FAILED,
        message="a stage is missing between others",
        explanation=(
            "Later stages are there and this one is not. Each stage consumes its parent, so a gap means that files were removed or\n"
            "that the order was not kept."
        ),
    ),
    Entry(
        id="chain.seal-missing",
        verdict=Verdict.FAILED,
        message="the stage has no seal",
        explanation=(
            "Nothing says who answers for the files of this stage. It was interrupted before signing, or its seal was removed."
        ),
    ),
    Entry(
        id="chain.subject-missing",
        verdict=Verdict.FAILED,
        message="the seal does not name a file of its stage",
        explanation=(
            "A stage is sealed as four files: record, ranks, artifacts, validation. The seal leaves one of them out, so nobody\n"
            "signed it."
        ),
    ),
    Entry(
        id="chain.subject-unexpected",
        verdict=Verdict.FAILED,
        message="the seal names a file that is not of its stage",
        explanation=(
            "A stage seal covers the four files of its own bundle. One that names others could lend its weight to them."
        ),
    ),
    Entry(
        id="chain.binding-mismatch",
        verdict=Verdict.FAILED,
        message="the stage is about another plan, class or set of files",
        explanation=(
            "Record and seal name stage, plan, hardware class, claim scope, backend, world size and the other files of the bundle.\n"
            "One of them is not what lies here: parts of different runs were put together."
        ),
    ),
    Entry(
        id="chain.source-mismatch",
        verdict=Verdict.FAILED,
        message="the stage ran another source than the plan names",
        explanation=(
            "The plan binds the source tree by digest. A stage that ran changed code is evidence about that code."
        ),
    ),
    Entry(
        id="chain.identity-mismatch",
        verdict=Verdict.FAILED,
        message="a process ran something else than the plan names",
        explanation=(
            "Driver and ranks hash their interpreter, packages and source before their work and after it. One of the four digests\n"
            "is not the plan's: something was exchanged, or changed while it ran."
        ),
    ),
    Entry(
        id="chain.parent-mismatch",
        verdict=Verdict.FAILED,
        message="the stage consumed another parent than the one before it",
        explanation=(
            "Each stage names the seal and the validation file of its parent. They are not those that lie here: the stage continues\n"
            "another run, or its parent was replaced afterwards."
        ),
    ),
    Entry(
        id="chain.run-mismatch",
        verdict=Verdict.FAILED,
        message="the stage belongs to another run",
        explanation=("All stages of a chain carry one run id. This one carries another."),
    ),
    Entry(
        id="chain.execution-repeated",
        verdict=Verdict.FAILED,
        message="two stages are one execution",
        explanation=(
            "Every driver start makes a new execution id. The same one in two stages means that evidence was used twice."
        ),
    ),
    Entry(
        id="chain.execution-mismatch",
        verdict=Verdict.FAILED,
        message="files of two executions are mixed",
        explanation=(
            "All files of a stage carry the execution that made them. This one is of another execution, rank or computation."
        ),
    ),
    Entry(
        id="chain.ranks-mismatch",
        verdict=Verdict.FAILED,
        message="the ranks are not the planned ones",
        explanation=(
            "Every rank of the plan's topology is there exactly once, in order, as a Ray actor with files of its own; doctor and\n"
            "kernel run in the driver alone."
        ),
    ),
    Entry(
        id="chain.rank-repeated",
        verdict=Verdict.FAILED,
        message="two ranks are the same process, actor or place",
        explanation=(
            "Ranks are distinct actors in distinct processes and slots. Two that share one are one rank's evidence shown twice."
        ),
    ),
    Entry(
        id="chain.rank-left",
        verdict=Verdict.FAILED,
        message="a rank did not leave its groups, or is still there",
        explanation=("A stage passes when its process groups are destroyed and every owned actor was found absent."),
    ),
    Entry(
        id="chain.ranks-disagree",
        verdict=Verdict.FAILED,
        message="ranks that hold the same tensor hold different values",
        explanation=(
            "Replicated tensors are equal on all ranks bit for bit. A difference means that they were not reduced, or that a shard\n"
            "was exchanged."
        ),
    ),
    Entry(
        id="chain.phases-mismatch",
        verdict=Verdict.FAILED,
        message="a rank's phases are not those of this computation",
        explanation=(
            "The phases follow from profile, case and side, in one order and chained; an optimizer step among the exporting phases\n"
            "is refused."
        ),
    ),
    Entry(
        id="chain.artifact-missing",
        verdict=Verdict.FAILED,
        message="a raw artifact of the stage is not there",
        explanation=(
            "The numbers are computed from raw artifacts and never read from the record. Without this one they cannot be."
        ),
    ),
    Entry(
        id="chain.artifact-shape",
        verdict=Verdict.FAILED,
        message="a raw artifact holds something else than the stage computes",
        explanation=("Names and shapes of the results follow from the stage's cases. These are others."),
    ),
    Entry(
        id="chain.cache-empty",
        verdict=Verdict.FAILED,
        message="the kernel cache was empty",
        explanation=(
            "The plan asks for a compile cache that was there before the run. An empty one was compiled during it, or not used at\n"
            "all."
        ),
    ),
    Entry(
        id="chain.tensor-mismatch",
        verdict=Verdict.FAILED,
        message="a rank holds a tensor that is not the snapshot's",
        explanation=(
            "The digest of what the rank loaded is not that of the tensor in the snapshot, widened to the dtype in which it is\n"
            "held."
        ),
    ),
    Entry(
        id="chain.tensor-not-loaded",
        verdict=Verdict.FAILED,
        message="no rank holds a tensor of the snapshot",
        explanation=("Together the ranks must hold the whole model; this tensor was left out."),
    ),
    Entry(
        id="chain.shard-of-another-rank",
        verdict=Verdict.FAILED,
        message="a rank exported other tensors than it holds",
        explanation=(
            "Which trainable tensors a rank holds is fixed when it is materialized, and the actor stage lists them. This rank's export\n"
            "has others, or lacks some: files of two ranks were exchanged or copied, or a shard was left out."
        ),
    ),
    Entry(
        id="chain.tensors-incomplete",
        verdict=Verdict.FAILED,
        message="the exported tensors do not cover the adapter",
        explanation=(
            "Every trainable shard of every rank is exported. Put together they are not the adapter: a shard is missing, has\n"
            "another shape, or one rank's file is a copy of another's."
        ),
    ),
    Entry(
        id="chain.run-not-planned",
        verdict=Verdict.FAILED,
        message="the run of the scale stage is not the planned one",
        explanation=(
            "The run directory inside the stage has another source, model, profile or fixture than the validation plan gives this\n"
            "stage."
        ),
    ),
    Entry(
        id="chain.number-missing",
        verdict=Verdict.FAILED,
        message="a number that the plan bounds was not computed",
        explanation=(
            "The plan sets a bound for this number and the artifacts do not give it. What was not computed is not within its\n"
            "bounds."
        ),
    ),
    Entry(
        id="chain.number-mismatch",
        verdict=Verdict.FAILED,
        message="a reported number is not the one that the artifacts give",
        explanation=(
            "The record repeats the numbers of its stage. Computed again from the raw artifacts this one is another, or one of the\n"
            "two sides does not have it."
        ),
    ),
    Entry(
        id="chain.threshold-missed",
        verdict=Verdict.FAILED,
        message="a number is outside the plan's bounds",
        explanation=(
            "Computed from the raw artifacts, this number breaks the bound that the validation plan set before the run."
        ),
    ),
    Entry(
        id="chain.standing-too-low",
        verdict=Verdict.INCOMPLETE,
        message="a number is not established as well as the plan asks",
        explanation=(
            "The plan says how each number must be known: replayed, checked, derived or attested-only. This one is known less well,\n"
            "for instance because the model is not at hand."
        ),
    ),
    Entry(
        id="chain.validation-mismatch",
        verdict=Verdict.FAILED,
        message="the validation file says something else than verification",
        explanation=(
            "The stage's validation file repeats the verdict for people. It is compared with what verification itself comes to, and\n"
            "differs."
        ),
    ),
    Entry(
        id="chain.rests-on-broken",
        verdict=Verdict.FAILED,
        message="the stage rests on one that is broken",
        explanation=(
            "Each stage consumes the validated bundle of its parent. An earlier one does not hold, so this one proves nothing,\n"
            "whatever it says itself."
        ),
    ),
)
