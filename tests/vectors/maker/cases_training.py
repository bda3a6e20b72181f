"""Changes to an online training: its plan, its steps, what they drew, and how they hang together."""

from __future__ import annotations

from typing import Any

import rfc8785

from maker.case import vector
from maker.forge import SEAL, Run
from maker.training_forge import DATASET, PLAN, PROFILE, STATEMENT, TRAINING, Training, run_folder, step_file

VERIFY = ("verify", "training", "{run}", "--key", "{keys}/release.pub")
ROLLOUT = "inputs/rollout.json"


def training(name: str, why: str, finding: str | None, **options: Any) -> Any:
    return vector(f"training-{name}", why, finding, **{"base": "training", "command": VERIFY, **options})


def of(run: Run) -> Training:
    if not isinstance(run, Training):
        raise TypeError("not a training")
    return run


# What must be accepted, and what is not all there.


@training("right", "Two steps, as the trainer left them.", None, exit=0)
def _(_run: Run) -> None:
    pass


@training("no-anchor", "Nothing says who should have signed.", "trust.no-anchor", exit=4, command=VERIFY[:3])
def _(_run: Run) -> None:
    pass


@training("unfinished", "Stopped after its first step; what is there holds.", "training.unfinished", exit=3)
def _(run: Run) -> None:
    for path in [p for p in run.files if p.startswith("steps/0001/") or p in (TRAINING, STATEMENT)]:
        del run.files[path]


@training("of-a-stranger", "The statement is signed by somebody else.", "signature.key-mismatch", exit=4)
def _(run: Run) -> None:
    of(run).redo_statement(key="stranger")


@training("no-plan", "Nothing says what was promised.", "file.missing")
def _(run: Run) -> None:
    del run.files[PLAN]


@training(
    "step-is-a-file",
    "A file lies where the folder of the last step should.",
    "tree.file-unexpected",
    also=("training.step-missing",),
)
def _(run: Run) -> None:
    for path in [path for path in run.files if path.startswith("steps/0001/")]:
        del run.files[path]
    run.files["steps/0001"] = b"trust me\n"


@training("step-without-its-run", "A step drew, and its run is gone.", "training.step-missing")
def _(run: Run) -> None:
    for path in [path for path in run.files if path.startswith(run_folder(1))]:
        del run.files[path]


@training("added-file", "A file that nothing binds lies among the steps.", "tree.file-unexpected")
def _(run: Run) -> None:
    run.files["steps/0000/notes.txt"] = b"trust me\n"


@training("linked-step", "A step's folder is a link to another.", "tree.symlink")
def _(run: Run) -> None:
    run.steps["links"] = {"steps/0002": "0001"}


@training("begun-step", "Stopped amid its second update, whose run has no seal.", "training.unfinished", exit=3)
def _(run: Run) -> None:
    for path in (TRAINING, STATEMENT, f"{run_folder(1)}receipt.json", f"{run_folder(1)}{SEAL}"):
        del run.files[path]


@training("seal-taken-away", "The seal of a finished training's last step is gone.", "seal.missing")
def _(run: Run) -> None:
    del run.files[f"{run_folder(1)}{SEAL}"]


@training("flipped-byte", "One byte of an adapter was changed in a step's run.", "tree.file-changed")
def _(run: Run) -> None:
    run.flip(f"{run_folder(1)}adapter/adapter_model.safetensors", 900)


# The plan and what it binds.


@training("dataset-edited", "A right answer was changed after the plan was written.", "training.input-changed")
def _(run: Run) -> None:
    run.files[DATASET] = run.files[DATASET].replace(b'"999"', b'"998"')


@training("dataset-empty", "The dataset that was promised holds nothing.", "training.dataset-empty")
def _(run: Run) -> None:
    run.files[DATASET] = b""
    run.set(PLAN, "/dataset", run.ref(DATASET))
    of(run).follow()


@training("profile-edited", "The learning rate was raised after the plan was written.", "training.input-changed")
def _(run: Run) -> None:
    run.set(PROFILE, "/optimizer/lr", 0.1)


@training("of-another-plan", "The steps name another plan than lies beside them.", "training.plan-mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/name", "other")
    of(run).redo_training()


@training("other-seed-planned", "The plan promises another seed than was drawn from.", "training.seed-mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/seed", 8)
    of(run).follow()


@training("other-cap-planned", "The plan promises shorter responses than were drawn.", "training.parameters-mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/sampling/max_tokens", 1)
    of(run).follow()


@training("of-another-model", "The plan names another revision than was trained.", "training.model-mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/model/revision", "tiny-2")
    of(run).follow()


@training("of-another-source", "The plan names other source than ran.", "training.source-mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/source_sha256", "5" * 64)
    of(run).follow()


# What was drawn.


def group(run: Run, step: int) -> dict[str, Any]:
    last: dict[str, Any] = run.json(step_file(step))["attempts"][-1]
    return last


@training(
    "reward-edited",
    "A response that was wrong is rewarded in the step's file.",
    "training.reward-mismatch",
    also=("training.search-mismatch",),
)
def _(run: Run) -> None:
    place = [response["reward"] for response in group(run, 0)["responses"]].index(-1)
    run.set(step_file(0), f"/attempts/0/responses/{place}/reward", 1)
    of(run).follow()


@training(
    "reward-of-a-group-without-signal",
    "A group that was passed over is said to have been right throughout.",
    "training.reward-mismatch",
)
def _(run: Run) -> None:
    for response in range(3):
        run.set(step_file(1), f"/attempts/0/responses/{response}/reward", 1)
    of(run).follow()


@training(
    "response-of-another-step",
    "A step says that it drew a response of the step before.",
    "training.response-mismatch",
)
def _(run: Run) -> None:
    last = len(run.json(step_file(1))["attempts"]) - 1
    for member in ("tokens", "logprobs", "finish"):
        run.set(step_file(1), f"/attempts/{last}/responses/0/{member}", group(run, 0)["responses"][0][member])
    of(run).follow()


@training("logprobs-one-short", "A response has one log-prob less than tokens.", "training.logprobs-mismatch")
def _(run: Run) -> None:
    def shorten(rollout: dict[str, Any]) -> None:
        del rollout["old_logprobs"][0][0]

    run.edit(step_file(0), lambda step: step["attempts"][0]["responses"][0]["logprobs"].pop(0) and None)
    of(run).edit_run(0, lambda inside: inside.edit(ROLLOUT, shorten))
    of(run).follow()


@training("logprobs-of-nobody", "The sampler's log-probs are not those of the trainer.", "training.logprobs-mismatch")
def _(run: Run) -> None:
    def lower(rollout: dict[str, Any]) -> None:
        rollout["old_logprobs"][0][0] -= 0.5

    def lowered(step: dict[str, Any]) -> None:
        step["attempts"][0]["responses"][0]["logprobs"][0] -= 0.5

    run.edit(step_file(0), lowered)
    of(run).edit_run(0, lambda inside: inside.edit(ROLLOUT, lower))
    of(run).follow()


@training("seed-changed", "A response was drawn from a seed of somebody's choice.", "training.seed-mismatch")
def _(run: Run) -> None:
    run.set(step_file(1), "/attempts/0/responses/1/seed", 4)
    of(run).follow()


@training(
    "of-another-policy",
    "A group was drawn by the policy of the step before.",
    "training.policy-mismatch",
)
def _(run: Run) -> None:
    last = len(run.json(step_file(1))["attempts"]) - 1
    run.set(step_file(1), f"/attempts/{last}/adapter_sha256", group(run, 0)["adapter_sha256"])
    of(run).follow()


@training("stale-pages", "A group was drawn from pages of the policy before.", "training.pages-mismatch")
def _(run: Run) -> None:
    last = len(run.json(step_file(1))["attempts"]) - 1
    run.set(step_file(1), f"/attempts/{last}/pages_adapter_sha256", group(run, 0)["adapter_sha256"])
    of(run).follow()


@training("other-pages", "A group was drawn from other pages than those that trained.", "training.pages-mismatch")
def _(run: Run) -> None:
    run.set(step_file(0), "/attempts/0/pages_sha256", "7" * 64)
    of(run).follow()


@training(
    "row-passed-over", "A step says that it drew from the row after the one that was due.", "training.row-mismatch"
)
def _(run: Run) -> None:
    row = run.json(step_file(1))["attempts"][0]["row"]
    run.set(step_file(1), "/attempts/0/row", (row + 1) % 4)
    of(run).follow()


@training("group-passed-over", "A group without signal is said to have had some.", "training.search-mismatch")
def _(run: Run) -> None:
    run.set(step_file(1), "/attempts/0/signal", True)
    of(run).follow()


@training("sought-too-long", "A step tried more rows than the plan allows.", "training.search-mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/rows_per_step", 1)
    of(run).follow()


# How the steps hang together.


@training("step-dropped", "The first of two steps is gone.", "training.step-missing")
def _(run: Run) -> None:
    for path in [p for p in run.files if p.startswith("steps/0000/")]:
        del run.files[path]


@training("last-step-dropped", "The last step of a finished training is gone.", "training.step-missing")
def _(run: Run) -> None:
    for path in [p for p in run.files if p.startswith("steps/0001/")]:
        del run.files[path]


@training("steps-swapped", "Two steps changed places.", "training.seed-mismatch", also=("training.order-mismatch",))
def _(run: Run) -> None:
    files = dict(run.files)
    for path in [p for p in files if p.startswith("steps/")]:
        step, rest = path.split("/", 2)[1:]
        run.files[f"steps/{1 - int(step):04d}/{rest}"] = files[path]


@training("step-of-another-parent", "A step does not name the seal before it.", "training.parent-mismatch")
def _(run: Run) -> None:
    run.set(step_file(1), "/parent", "6" * 64)
    of(run).redo_nonce(1)
    of(run).redo_training()


@training("step-edited-after-its-run", "A step was edited after its run was sealed.", "training.run-mismatch")
def _(run: Run) -> None:
    run.set(step_file(1), "/attempts/0/pages_sha256", "8" * 64)
    of(run).redo_training()


@training("names-another-seal", "The training names another seal of a step.", "training.step-mismatch")
def _(run: Run) -> None:
    run.set(TRAINING, "/steps/1/seal_sha256", "9" * 64)
    of(run).redo_statement()


@training("statement-of-more", "The statement says more steps than there are.", "training.statement-mismatch")
def _(run: Run) -> None:
    def more(statement: dict[str, Any]) -> None:
        statement["predicate"]["steps"] = 3

    of(run).redo_statement(more)


@training("without-statement", "All steps are there, and nobody signed for them together.", "file.missing")
def _(run: Run) -> None:
    del run.files[STATEMENT]


@training("not-canonical", "A step's file is spelt otherwise, with its digest made right.", "json.not-canonical")
def _(run: Run) -> None:
    run.files[step_file(0)] = rfc8785.dumps(run.json(step_file(0))) + b"\n"
    of(run).redo_nonce(0)
    of(run).redo_training()


@training("rewards-overflow", "Two rewards whose sum is no number.", "training.reward-mismatch")
def _(run: Run) -> None:
    for place in range(2):
        run.set(step_file(0), f"/attempts/0/responses/{place}/reward", 1.7e308)
    of(run).follow()


@training("rehearsal", "Every step's run is a rehearsal, and says so.", "training.rehearsal")
def _(run: Run) -> None:
    rehearses = {"profile_sha256": "ab" * 32, "prompt_tokens": 2_097_152}
    scope = {"claim_scope": "topology_rehearsal"}
    run.edit(PROFILE, lambda profile: profile.update(rehearses=rehearses))
    run.edit(PLAN, lambda plan: plan.update(profile=run.ref(PROFILE)))
    for step in of(run).numbers:
        inside = of(run).run(step)
        inside.edit("inputs/profile.json", lambda profile: profile.update(rehearses=rehearses))
        inside.edit("plan.json", lambda plan: plan.update(scope))
        inside.edit("receipt.json", lambda receipt: receipt.update(scope))
        of(run).put_run(step, inside)
    of(run).follow()


# Checkpoints that a plan lets go.


def lose_checkpoint(run: Run, step: int, *, but: str = "") -> None:
    for path in [p for p in run.files if p.startswith(f"{run_folder(step)}checkpoint/")]:
        if not (but and path.endswith(but)):
            del run.files[path]


def keep_last(run: Run) -> None:
    run.set(PLAN, "/checkpoints_kept", 1)
    of(run).follow()


@training("checkpoint-let-go", "The plan keeps one checkpoint; that of the step before is gone.", None, exit=0)
def _(run: Run) -> None:
    keep_last(run)
    lose_checkpoint(run, 0)


@training("checkpoint-gone", "A checkpoint is gone, and the plan lets none go.", "tree.file-missing")
def _(run: Run) -> None:
    lose_checkpoint(run, 0)


@training("last-checkpoint-gone", "The plan keeps one checkpoint, and the last is gone.", "tree.file-missing")
def _(run: Run) -> None:
    keep_last(run)
    lose_checkpoint(run, 1)


@training("checkpoint-gone-in-part", "Of a checkpoint that may be gone, one file is there.", "tree.file-missing")
def _(run: Run) -> None:
    keep_last(run)
    lose_checkpoint(run, 0, but="/common.pt")
