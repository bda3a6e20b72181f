"""Changes to a training of two prompts a step: which runs there are, in which order, and on top of what."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from maker.case import vector
from maker.cases_step import norms
from maker.cases_training import VERIFY, of
from maker.cases_training_policy import both, training_rule
from maker.digests import adapter_sha256 as tensors_sha256
from maker.forge import BEFORE, DEPLOYMENT, GRADIENT, SCORES, SEAL, Run, read_base
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


# What each loss is averaged over.


@prompts(
    "fewer-tokens",
    "Both runs of a step average over fewer tokens than it has, in every number that shows it.",
    "training.accumulation-mismatch",
)
def _(run: Run) -> None:
    tokens = of(run).run(1).json(DEPLOYMENT)["accumulation"]["tokens"]

    def fewer(inside: Run) -> None:
        place(inside, tokens=tokens - 1)
        for path in (SCORES, "receipt.json"):
            inside.edit(path, lambda value: value.update(loss=value["loss"] * tokens / (tokens - 1)))
        for response in range(len(inside.json(SCORES)["responses"])):
            inside.edit_evidence(
                f"grpo-{response}", lambda seen: seen.update(loss=seen["loss"] * tokens / (tokens - 1))
            )

    for index in (0, 1):
        of(run).edit_run(1, fewer, index=index)
    of(run).follow()


@prompts("own-tokens", "A run averages over fewer tokens than its own.", "accumulation.mismatch", command=LAST)
def _(run: Run) -> None:
    in_run(run, lambda inside: place(inside, tokens=1))


@prompts("more-responses", "A run counts more responses than its step has.", "accumulation.mismatch", command=LAST)
def _(run: Run) -> None:
    in_run(run, lambda inside: place(inside, responses=1000))


# What a run goes on from.


@prompts(
    "last-run-adds-nothing",
    "A step's last run leaves the gradient that it went on from, although its rewards differ.",
    "optimizer.no-gradient",
    also=("optimizer.step-mismatch",),
    command=LAST,
)
def _(run: Run) -> None:
    def nothing(inside: Run) -> None:
        inside.files[GRADIENT] = inside.files[GIVEN]
        norms(inside)

    in_run(run, nothing)


@prompts(
    "start-of-another-step",
    "A step's last run goes on from the gradient of the step before, wherever it names one.",
    "training.accumulation-mismatch",
)
def _(run: Run) -> None:
    earlier = of(run).run(0, 0).files[GRADIENT]
    in_run(run, lambda inside: goes_on_from(inside, earlier))


@prompts(
    "start-doubled",
    "A step's last run goes on from twice the gradient that the first left, and says so everywhere.",
    "training.accumulation-mismatch",
)
def _(run: Run) -> None:
    def double(inside: Run) -> None:
        inside.put_tensors(GIVEN, {name: tensor * np.float32(2) for name, tensor in inside.tensors(GIVEN).items()})
        goes_on_from(inside, inside.files[GIVEN])

    in_run(run, double)


@prompts(
    "gradient-doubled",
    "The first run's gradient is twice what it was, recounted; the last went on from the old one.",
    "training.accumulation-mismatch",
)
def _(run: Run) -> None:
    def double(inside: Run) -> None:
        inside.put_tensors(GRADIENT, {n: tensor * np.float32(2) for n, tensor in inside.tensors(GRADIENT).items()})
        norms(inside)

    in_run(run, double, index=0)


@prompts(
    "seal-of-another-step",
    "A step's last run names the seal of another step's first run.",
    "training.accumulation-mismatch",
)
def _(run: Run) -> None:
    of(run).edit_run(1, lambda inside: start(inside, seal_sha256=of(run).seal(0, 0)))
    of(run).redo_training()


@prompts("start-flipped", "One byte of the gradient was changed after the seal.", "tree.file-changed", command=LAST)
def _(run: Run) -> None:
    run.flip(run_folder(1) + GIVEN, 6000)


@prompts("start-gone", "The gradient to go on from is named and not there.", "binding.file-absent", command=LAST)
def _(run: Run) -> None:
    inside = of(run).run(1)
    del inside.files[GIVEN]
    inside.redo_seal()
    of(run).put_run(1, inside)


@prompts(
    "start-named-by-the-deployment-otherwise",
    "Only the deployment names another gradient.",
    "accumulation.mismatch",
    command=LAST,
)
def _(run: Run) -> None:
    in_run(run, lambda inside: start(inside, sha256="ab" * 32))


@prompts(
    "start-not-named-by-the-receipt",
    "The receipt does not say that the run went on from a gradient.",
    "accumulation.mismatch",
    command=LAST,
)
def _(run: Run) -> None:
    in_run(run, lambda inside: unnamed(inside, "gradient_before"))


@prompts(
    "start-of-a-rank",
    "A rank recorded that it added another gradient.",
    "accumulation.mismatch",
    command=LAST,
)
def _(run: Run) -> None:
    in_run(
        run, lambda inside: inside.edit_evidence("finalize", lambda seen: seen.update(gradient_start_sha256="ab" * 32))
    )


@prompts(
    "start-forgotten",
    "A run that went on from a gradient says nothing of it, and that it is the first and only one.",
    "accumulation.mismatch",
    command=LAST,
)
def _(run: Run) -> None:
    in_run(run, lambda inside: inside.edit(DEPLOYMENT, lambda value: value.pop("accumulation") and None))


@prompts(
    "start-of-another-shape",
    "The gradient to go on from lacks a tensor, wherever it is named.",
    "adapter.tensor-missing",
    command=LAST,
)
def _(run: Run) -> None:
    def fewer(inside: Run) -> None:
        tensors = inside.tensors(GIVEN)
        tensors.pop(min(tensors))
        inside.put_tensors(GIVEN, tensors)
        goes_on_from(inside, inside.files[GIVEN])

    in_run(run, fewer)


@prompts(
    "start-not-finite",
    "The gradient to go on from holds what is no number, wherever it is named.",
    "tensor.not-finite",
    command=LAST,
)
def _(run: Run) -> None:
    def spoil(inside: Run) -> None:
        tensors = inside.tensors(GIVEN)
        tensors[min(tensors)].flat[0] = np.inf
        inside.put_tensors(GIVEN, tensors)
        goes_on_from(inside, inside.files[GIVEN])

    in_run(run, spoil)


@prompts(
    "start-of-a-first-run",
    "A run that is its step's first goes on from a gradient.",
    "accumulation.mismatch",
    command=FIRST,
)
def _(run: Run) -> None:
    def given(inside: Run) -> None:
        raw = read_base(BASE)[run_folder(1) + GIVEN]
        digest = hashlib.sha256(raw).hexdigest()
        inside.files[GIVEN] = raw
        place(inside, gradient={"path": "g.safetensors", "sha256": digest, "seal_sha256": "ab" * 32})
        added = tensors_sha256(inside.tensors(GIVEN))
        inside.edit_evidence("finalize", lambda seen: seen.update(gradient_start_sha256=added))
        inside.edit("receipt.json", lambda value: value["files"].update(gradient_before=inside.ref(GIVEN)))

    in_run(run, given, index=0)


@prompts(
    "moments-in-a-first-run",
    "A run that takes no step goes on from moments.",
    "binding.file-absent",
    also=("optimizer.start-mismatch", "accumulation.mismatch"),
    command=FIRST,
)
def _(run: Run) -> None:
    moments = of(run).run(1).json(DEPLOYMENT)["optimizer"]
    in_run(run, lambda inside: inside.edit(DEPLOYMENT, lambda value: value.update(optimizer=moments)), index=0)
