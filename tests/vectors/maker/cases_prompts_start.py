"""Changes to a training of two prompts a step: what each loss is averaged over, and what a run goes on from."""

from __future__ import annotations

import hashlib

import numpy as np

from maker.cases_prompts import (
    BASE,
    FIRST,
    GIVEN,
    LAST,
    goes_on_from,
    in_run,
    place,
    prompts,
    start,
    unnamed,
)
from maker.cases_step import norms
from maker.cases_training import of
from maker.digests import adapter_sha256 as tensors_sha256
from maker.forge import DEPLOYMENT, GRADIENT, SCORES, Run, read_base
from maker.training_forge import run_folder

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
