"""Findings of planning and training: refusals before anything starts, and what can end a run that did."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="plan.altered",
        verdict=Verdict.BLOCKED,
        message="the plan is not the one its own digest names",
        explanation=(
            "plan_sha256 covers every other member of the plan. It does not match, so the plan was changed after it was made.\n"
            "Nothing was started. Make the plan again with `mint2m plan`; do not edit plans."
        ),
        hint="make the plan again; a plan is never edited",
    ),
    Entry(
        id="plan.inputs-changed",
        verdict=Verdict.BLOCKED,
        message="deployment or inputs are no longer those that were planned",
        explanation=(
            "The plan was made again from the deployment at hand, and differs where the pointer says. A deployment, profile,\n"
            "fixture, model file, runtime or this tool's source changed since. Nothing was started. Restore the inputs, or plan\n"
            "anew and have the new plan approved."
        ),
        hint="restore the inputs, or make a new plan",
    ),
    Entry(
        id="plan.review-only",
        verdict=Verdict.BLOCKED,
        message="a plan without an image is there to be read, not to be run",
        explanation=(
            "On accelerators the plan names by digest the image that the workers run, and every bundle binds it. This one names\n"
            "none, so nothing would say what ran. Nothing was started. Name the image in the deployment and plan again."
        ),
        hint="name the image by digest in the deployment, and plan again",
    ),
    Entry(
        id="plan.run-id-invalid",
        verdict=Verdict.BLOCKED,
        message="the run id cannot be part of a name",
        explanation=(
            "Actors, group and namespace are named after the run id, so it holds letters, digits, dot, dash and underscore, starts\n"
            "with a letter or digit, and is at most 64 characters long."
        ),
    ),
    Entry(
        id="plan.nonce-empty",
        verdict=Verdict.BLOCKED,
        message="the instance nonce is empty",
        explanation="The nonce makes two plans of one deployment differ; only its SHA-256 is written down. Give any text that is new.",
    ),
    Entry(
        id="backend.unavailable",
        verdict=Verdict.BLOCKED,
        message="direct_megatron_backend_unavailable",
        explanation=(
            "The training backend (torch, megatron-core, ray) is missing or was switched off with MINT2M_DISABLE_BACKEND=1, so the\n"
            "run was refused before Ray. Nothing was started or written. Install the trainer extra, or unset the variable."
        ),
        hint="pip install 'mint2m[trainer]'; unset MINT2M_DISABLE_BACKEND",
    ),
    Entry(
        id="source.missing",
        verdict=Verdict.BLOCKED,
        message="a package of this tool cannot be found",
        explanation="The identity of the running source covers all of mint2m; without one of its packages there is none. Reinstall mint2m.",
    ),
    Entry(
        id="run.blocked",
        verdict=Verdict.BLOCKED,
        message="the doctor found what blocks this run",
        explanation="One or more prerequisites are not met; each has its own finding. Nothing was started.",
    ),
    Entry(
        id="run.interrupted",
        verdict=Verdict.BLOCKED,
        message="interrupted; the run is not complete",
        explanation=(
            "The driver got SIGINT or SIGTERM, shut its ranks down and removed what it owned; the report says whether all of it is\n"
            "proven absent. There is no receipt and no seal, so the directory is evidence of nothing. Inputs are untouched.\n"
            "Run again into a new directory; what a progress folder keeps is not run again."
        ),
    ),
    Entry(
        id="progress.unusable",
        verdict=Verdict.BLOCKED,
        message="the folder cannot hold this run's progress",
        explanation=(
            "--progress takes a folder that does not exist, is empty, or was made by an earlier attempt; it lies outside the run\n"
            "directory and never around it. This one cannot be written, overlaps the run, or holds something else, so nothing in\n"
            "it was touched. Nothing was started."
        ),
        hint="name a new folder beside the run directory",
    ),
    Entry(
        id="progress.in-use",
        verdict=Verdict.BLOCKED,
        message="another driver works on this progress folder",
        explanation=(
            "A progress folder serves one run at a time; its lock is held by a driver that is alive. Nothing was started. Wait for\n"
            "it, or name another folder. The lock of a driver that was killed is gone with it."
        ),
    ),
    Entry(
        id="progress.identity-mismatch",
        verdict=Verdict.BLOCKED,
        message="the progress folder is another run's",
        explanation=(
            "What a folder keeps is good for the same model, adapter, rollout, profile, runtime and source only. The pointer names\n"
            "the first member that differs; `expected` is what it is now, `actual` what the folder was begun with. Nothing was\n"
            "started, and the folder was not touched. Restore the inputs, name a new folder, or remove this one yourself."
        ),
        hint="restore what differs, or name a new folder",
    ),
    Entry(
        id="run.deployment-unknown",
        verdict=Verdict.BLOCKED,
        message="neither a deployment file nor the name of a packaged one",
        explanation="--deployment takes a path or a packaged name. A path that does not exist is taken for a name.",
    ),
    Entry(
        id="ray.start-failed",
        verdict=Verdict.IO_ERROR,
        message="Ray did not start or could not be reached",
        explanation=(
            "A local deployment starts its own Ray; any other connects to the address in the deployment. Neither came up in the\n"
            "plan's start timeout. Nothing is left running. Look at ports, memory and, for a cluster, its address and token."
        ),
    ),
    Entry(
        id="ray.head-lost",
        verdict=Verdict.IO_ERROR,
        message="the head of the cluster does not answer any more",
        explanation=(
            "For ten seconds nothing listened at the head's address: its machine or its network is gone, or Ray's GCS ended. Nothing\n"
            "can be ended or shown to be absent without it, so the journal stays open. No receipt was written; weights and earlier\n"
            "evidence are as they were. Nodes that have lost their head end their ranks after a minute. Once the head, or a new one\n"
            "at its address, is up, `mint2m cleanup` shows that nothing is left."
        ),
        hint="bring the head back, then run mint2m cleanup",
    ),
    Entry(
        id="ray.node-mismatch",
        verdict=Verdict.BLOCKED,
        message="the cluster's nodes are not those of the deployment",
        explanation=(
            "Before anything is created, each deployment IP must have exactly one live Ray node with the planned CPUs, node\n"
            "resource and image resource, and exactly the deployment's accelerators. One has none, two, too little, or another\n"
            "number of accelerators. Nothing was created. Other nodes of the cluster may be there, and are never used."
        ),
    ),
    Entry(
        id="ray.placement-timeout",
        verdict=Verdict.IO_ERROR,
        message="the placement group did not become ready",
        explanation="The cluster has the resources by its own account but did not grant them in the start timeout. Something else holds them.",
    ),
    Entry(
        id="rank.placement-mismatch",
        verdict=Verdict.FAILED,
        message="a rank was placed elsewhere than planned",
        explanation="Ray put the actor on another node or into another bundle than the plan says. The run stopped before the first phase.",
    ),
    Entry(
        id="rank.identity-mismatch",
        verdict=Verdict.FAILED,
        message="a rank runs something else than the plan names",
        explanation=(
            "The rank's own observation of interpreter, packages and source, or the plan it sees in the run directory, differs from\n"
            "the driver's. Ranks that compute with different code cannot be compared. Install the same versions everywhere."
        ),
    ),
    Entry(
        id="rank.late",
        verdict=Verdict.IO_ERROR,
        message="ranks did not finish the phase in time",
        explanation=(
            "The plan gives each phase a time limit; the finding names the ranks that had not finished when it passed, and by their\n"
            "ledgers the collective that each came to last. Ranks wait for each other there, so one that went no further than the\n"
            "others holds all of them up; where all are in the same collective, look at the network between them. What torch itself\n"
            "saw, the first collective that was begun and has not ended, stands behind it, with the file that has the whole flight\n"
            "record: on GPUs the host runs ahead of its device, and only this tells where the device is. The whole run was stopped.\n"
            "Raise timeouts_s.phase if the work is honest."
        ),
    ),
    Entry(
        id="rank.died",
        verdict=Verdict.IO_ERROR,
        message="a rank's process ended",
        explanation="The actor process is gone: killed, out of memory, or its node is lost. The run was stopped and cleaned up; no receipt.",
    ),
    Entry(
        id="rank.input-refused",
        verdict=Verdict.BLOCKED,
        message="a rank cannot train on what it was given",
        explanation=(
            "Model, adapter, rollout or profile hold something that shows only where they are loaded: a tensor that is missing, extra,\n"
            "of another shape or not finite, a log-prob that the profile needs, or progress that was kept under other weights,\n"
            "kernels or threads. The run was stopped and cleaned up; no receipt was written. Mend the input, bind it again and run\n"
            "into a new directory."
        ),
    ),
    Entry(
        id="rank.failed",
        verdict=Verdict.FAILED,
        message="a rank refused to go on",
        explanation=(
            "The update raised on this rank in this phase, and the finding carries its words. The run was stopped and cleaned up; no\n"
            "receipt was written. Run again with --debug to see the rank's traceback. If it speaks of kept progress, that progress\n"
            "cannot be used any more: remove the folder of --progress and begin anew."
        ),
    ),
    Entry(
        id="rank.resource",
        verdict=Verdict.IO_ERROR,
        message="a rank ran out of something",
        explanation=(
            "Memory, disk, a file or a connection failed under this rank in this phase; the finding carries its words. The run\n"
            "was stopped and cleaned up; no receipt was written. Mend the cause and run again into a new directory; with\n"
            "--progress the chunks that were committed before are not run again."
        ),
    ),
    Entry(
        id="rank.internal",
        verdict=Verdict.INTERNAL,
        message="a rank met an error in the tool itself",
        explanation=(
            "What the rank raised is nothing that input should cause: a bug. The run was stopped and cleaned up; no receipt was\n"
            "written. Run again with --debug and report the rank's traceback."
        ),
    ),
    Entry(
        id="rank.disagrees",
        verdict=Verdict.FAILED,
        message="ranks differ in what must be equal",
        explanation=(
            "After a phase every rank must have made the same collectives in the same order, and agree on the adapter. Two do not,\n"
            "so at least one computed something else. The run was stopped; no receipt was written."
        ),
    ),
    Entry(
        id="run.identity-drift",
        verdict=Verdict.FAILED,
        message="what the driver runs changed while the run was on",
        explanation=(
            "Interpreter, packages and source were observed before the run, by every rank when it started, and again at its end. The\n"
            "last is not the first, so nobody can say with which of them the update was made. No receipt was written. Install or\n"
            "edit nothing while a run is on."
        ),
    ),
    Entry(
        id="run.cleanup-incomplete",
        verdict=Verdict.FAILED,
        message="the update finished but not everything is proven absent",
        explanation=(
            "A receipt says that the coordinator, the placement group and every actor are gone. That could not be shown, so no receipt\n"
            "was written. `mint2m cleanup` with the plan and journal of the directory repeats the removal and the checks."
        ),
    ),
)
