"""Changes to a training of two prompts a step: which runs there are, in which order, and on top of what."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from maker.case import vector
from maker.cases_training import VERIFY, of
from maker.cases_training_policy import both, training_rule
from maker.digests import adapter_sha256 as tensors_sha256
from maker.forge import BEFORE, DEPLOYMENT, SEAL, Run
from maker.policies import AT, bring, may_assert, policy, run_rule
from maker.training_forge import PLAN, STATEMENT, TRAINING, gradient_folder, run_folder, step_file

BASE = "training-prompts"
GIVEN = "inputs/gradient-initial.safetensors"
UPDATE, PART = "reference_cpu_execution", "gradient_accumulation_only"

#: A run alone, as an auditor would who was given nothing else.
LAST = ("verify", "run", "{run}/steps/0001/run", "--key", "{keys}/release.pub")
FIRST = ("verify", "run", "{run}/steps/0001/gradient-0000", "--key", "{keys}/release.pub")
FIRST_UNDER = (*FIRST[:3], "--policy", "{outside}/policy.json", "--at", AT)
UNDER = (*VERIFY[:3], "--policy", "{outside}/policy.json", "--at", AT)


def prompts(name: str, why: str, finding: str | None, **options: Any) -> Any:
    return vector(f"prompts-{name}", why, finding, **{"base": BASE, "command": VERIFY, **options})


def in_run(run: Run, change: Callable[[Run], None], *, step: int = 1, index: int | None = None) -> None:
    """Change one run, and whatever names its seal."""
    of(run).edit_run(step, change, index=index)
    of(run).follow()


def place(run: Run, **members: Any) -> None:
    run.edit(DEPLOYMENT, lambda value: value["accumulation"].update(members))


def start(run: Run, **members: Any) -> None:
    run.edit(DEPLOYMENT, lambda value: value["accumulation"]["gradient"].update(members))


def goes_on_from(run: Run, raw: bytes) -> None:
    """The run names another gradient wherever it names one; what it left itself is not touched."""
    run.files[GIVEN] = raw
    start(run, sha256=hashlib.sha256(raw).hexdigest())
    digest = tensors_sha256(run.tensors(GIVEN))
    run.edit_evidence("finalize", lambda seen: seen.update(gradient_start_sha256=digest))


def unnamed(run: Run, member: str) -> None:
    """The receipt names one file fewer."""
    run.edit("receipt.json", lambda receipt: receipt["files"].pop(member) and None)


def claims(run: Run, scope: str) -> None:
    run.edit("plan.json", lambda plan: plan.update(claim_scope=scope))
    run.edit("receipt.json", lambda receipt: receipt.update(claim_scope=scope))


# What must be accepted.


@prompts("right", "Two steps of two prompts each, as the trainer left them.", None, exit=0)
def _(_run: Run) -> None:
    pass


@prompts("last-run-alone", "The run that took a step, by itself.", None, exit=0, command=LAST)
def _(_run: Run) -> None:
    pass


@prompts(
    "first-run-alone", "A run that ended with its gradient, by itself and for what it is.", None, exit=0, command=FIRST
)
def _(_run: Run) -> None:
    pass


@prompts(
    "policy-right",
    "A policy that lets the operator assert gradients as well as updates.",
    None,
    exit=0,
    command=UNDER,
)
def _(run: Run) -> None:
    bring(run, both(assertions=[may_assert("operator", claim_scopes=[UPDATE, PART])]))


# A gradient is no update.


@prompts(
    "policy-wants-updates",
    "A run that ended with its gradient, under a policy that lets runs be updates.",
    "policy.assertion-not-allowed",
    exit=4,
    command=FIRST_UNDER,
)
def _(run: Run) -> None:
    bring(run, policy(assertions=[may_assert("operator")]))


@prompts(
    "policy-asks-for-updates",
    "The same under a policy whose operator may assert both, and whose rule asks for an update.",
    "policy.claim-scope",
    exit=3,
    command=FIRST_UNDER,
)
def _(run: Run) -> None:
    rule = run_rule("operator", claim_scopes=[UPDATE])
    bring(run, policy(rules=[rule], assertions=[may_assert("operator", claim_scopes=[UPDATE, PART])]))


@prompts(
    "policy-of-updates-only",
    "The training under a policy that lets its operator assert updates and nothing else.",
    "policy.assertion-not-allowed",
    exit=4,
    command=UNDER,
)
def _(run: Run) -> None:
    bring(run, both(rules=[run_rule("operator"), training_rule("operator")]))


@prompts(
    "gradient-claimed-as-update",
    "A run that ended with its gradient claims to be an update.",
    "binding.plan-differs",
    also=("receipt.mismatch",),
    command=FIRST,
)
def _(run: Run) -> None:
    inside = of(run).run(1, 0)
    claims(inside, UPDATE)
    inside.follow()
    inside.redo_seal(lambda statement: statement["predicate"].update(claim_scope=UPDATE))
    of(run).put_run(1, inside, 0)


@prompts(
    "gradient-without-its-place",
    "A run that ended with its gradient, and whose deployment does not say so any more.",
    "tree.file-missing",
    also=("session.phase-missing", "binding.plan-differs"),
    command=FIRST,
)
def _(run: Run) -> None:
    in_run(run, lambda inside: inside.edit(DEPLOYMENT, lambda value: value.pop("accumulation") and None), index=0)


@prompts(
    "gradient-in-place-of-the-step",
    "The run that ended with its gradient lies where the step's update should.",
    "training.run-mismatch",
    also=("training.accumulation-mismatch",),
)
def _(run: Run) -> None:
    of(run).put_run(1, of(run).run(1, 0))


@prompts(
    "gradient-with-an-adapter",
    "An adapter lies in a run that ended with its gradient.",
    "tree.file-unexpected",
    command=FIRST,
)
def _(run: Run) -> None:
    run.files[f"{gradient_folder(1, 0)}adapter/adapter_model.safetensors"] = run.files[f"{run_folder(1)}{BEFORE}"]


@prompts(
    "gradient-with-moments",
    "Moments of a step lie in a run that ended with its gradient, sealed with it.",
    "tree.file-unexpected",
    command=FIRST,
)
def _(run: Run) -> None:
    def add(inside: Run) -> None:
        name = "artifacts/optimizer-after.safetensors"
        inside.files[name] = run.files[run_folder(1) + name]

    in_run(run, add, index=0)


@prompts(
    "gradient-with-a-step-in-its-receipt",
    "The receipt of a run that ended with its gradient counts a step.",
    "receipt.mismatch",
    command=FIRST,
)
def _(run: Run) -> None:
    in_run(run, lambda inside: inside.set("receipt.json", "/optimizer_steps", 1), index=0)


@prompts(
    "update-without-its-adapter-in-the-receipt",
    "The receipt of an update names no adapter that it left.",
    "receipt.mismatch",
    command=LAST,
)
def _(run: Run) -> None:
    in_run(run, lambda inside: unnamed(inside, "adapter_manifest"))


# Which runs there are, and in which order.


@prompts("dropped", "The run of a step's first prompt is gone.", "training.accumulation-mismatch")
def _(run: Run) -> None:
    for path in [path for path in run.files if path.startswith(gradient_folder(1, 0))]:
        del run.files[path]


@prompts(
    "one-more",
    "A step has the run of a prompt that the plan does not promise.",
    "tree.file-unexpected",
)
def _(run: Run) -> None:
    first = gradient_folder(1, 0)
    for path in [path for path in run.files if path.startswith(first)]:
        run.files[gradient_folder(1, 1) + path.removeprefix(first)] = run.files[path]


@prompts(
    "swapped",
    "The two groups of a step changed places in its file, and its runs did not.",
    "training.seed-mismatch",
    also=("training.row-mismatch", "training.response-mismatch", "training.pages-mismatch"),
)
def _(run: Run) -> None:
    def swap(step: dict[str, Any]) -> None:
        groups = [n for n, attempt in enumerate(step["attempts"]) if attempt["signal"]]
        one, other = groups
        attempts = step["attempts"]
        attempts[one], attempts[other] = attempts[other], attempts[one]

    run.edit(step_file(1), swap)
    of(run).follow()


@prompts(
    "says-it-is-the-other",
    "The first run of a step says that it is the second of three.",
    "accumulation.mismatch",
    also=("training.accumulation-mismatch",),
)
def _(run: Run) -> None:
    in_run(run, lambda inside: place(inside, index=1, prompts=3), index=0)


@prompts(
    "beyond-its-step",
    "A run says that it is the third of two.",
    "tree.file-unexpected",
    also=("accumulation.mismatch",),
    command=LAST,
)
def _(run: Run) -> None:
    in_run(run, lambda inside: place(inside, index=2))


@prompts(
    "repeated",
    "The last run of a step trained once more on what its first prompt drew.",
    "fixture.reward-mismatch",
    also=("training.response-mismatch",),
)
def _(run: Run) -> None:
    first = of(run).run(1, 0)

    def repeat(inside: Run) -> None:
        rollout = first.json("inputs/rollout.json")
        inside.edit("inputs/rollout.json", lambda value: value.update(responses=rollout["responses"]))

    in_run(run, repeat)


@prompts(
    "fewer-planned",
    "The plan promises one prompt a step, and every step had two.",
    "tree.file-unexpected",
    also=("training.search-mismatch", "training.accumulation-mismatch"),
)
def _(run: Run) -> None:
    run.edit(PLAN, lambda plan: plan.pop("prompts_per_step") and None)
    of(run).follow()


@prompts(
    "more-planned",
    "The plan promises three prompts a step, and every step had two.",
    "training.accumulation-mismatch",
    also=("training.search-mismatch",),
)
def _(run: Run) -> None:
    run.set(PLAN, "/prompts_per_step", 3)
    of(run).follow()


@prompts(
    "planned-of-single-runs",
    "The plan promises two prompts a step, and every step had one.",
    "training.accumulation-mismatch",
    base="training",
    also=("training.search-mismatch",),
)
def _(run: Run) -> None:
    run.set(PLAN, "/prompts_per_step", 2)
    of(run).follow()


@prompts(
    "group-dropped",
    "A step's file leaves out the group that its last run trained on.",
    "training.search-mismatch",
    also=("training.response-mismatch",),
)
def _(run: Run) -> None:
    run.edit(step_file(1), lambda step: step["attempts"].pop() and None)
    of(run).follow()


@prompts("begun-step", "Stopped after the first run of its second step.", "training.unfinished", exit=3)
def _(run: Run) -> None:
    for path in [p for p in run.files if p.startswith(run_folder(1)) or p in (TRAINING, STATEMENT)]:
        del run.files[path]


@prompts("seal-taken-away", "The seal of a run that ended with its gradient is gone.", "seal.missing")
def _(run: Run) -> None:
    del run.files[gradient_folder(1, 0) + SEAL]
