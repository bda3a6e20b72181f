"""Changes to moments that are carried from step to step: which, after how many steps, and whether at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from maker.case import vector
from maker.cases_step import norms
from maker.cases_training import VERIFY, of
from maker.digests import adapter_sha256 as tensors_sha256
from maker.forge import AFTER, BEFORE, DEPLOYMENT, GRADIENT, MOMENTS, Run
from maker.training_forge import PLAN, run_folder

BASE = "training-carried"
GIVEN = "inputs/optimizer-initial.safetensors"

#: The second step's run alone, as an auditor would who was given nothing else.
RUN = ("verify", "run", "{run}/steps/0001/run", "--key", "{keys}/release.pub")


def moments(name: str, why: str, finding: str | None, **options: Any) -> Any:
    return vector(f"moments-{name}", why, finding, **{"base": BASE, "command": VERIFY, **options})


def named_as_they_lie(run: Run) -> None:
    """Deployment and records name the moments that lie in the run; `follow` sees to the receipt."""
    run.edit(DEPLOYMENT, lambda value: value["optimizer"].update(sha256=hashlib.sha256(run.files[GIVEN]).hexdigest()))
    digest = tensors_sha256(run.tensors(GIVEN))
    run.edit_evidence("materialize", lambda seen: seen.update(moments_sha256=digest))


def in_step(run: Run, change: Callable[[Run], None]) -> None:
    of(run).edit_run(1, change)
    of(run).redo_training()


@moments("carried", "Two steps, the second of which goes on from the moments of the first.", None, exit=0)
def _(_run: Run) -> None:
    pass


@moments("carried-run-alone", "The second step's run by itself.", None, exit=0, command=RUN)
def _(_run: Run) -> None:
    pass


@moments("flipped", "One byte of the moments was changed after the seal.", "tree.file-changed", command=RUN)
def _(run: Run) -> None:
    run.flip(run_folder(1) + GIVEN, 4000)


@moments(
    "edited",
    "The moments that the step went on from are larger, wherever they are named.",
    "optimizer.step-mismatch",
    also=("optimizer.moment-mismatch", "training.moments-mismatch"),
)
def _(run: Run) -> None:
    def larger(inside: Run) -> None:
        inside.put_tensors(GIVEN, {name: tensor * np.float32(1.5) for name, tensor in inside.tensors(GIVEN).items()})
        named_as_they_lie(inside)

    in_step(run, larger)


@moments(
    "of-another-step",
    "A step goes on from the moments that it left itself.",
    "optimizer.step-mismatch",
    also=("training.moments-mismatch",),
)
def _(run: Run) -> None:
    def exchanged(inside: Run) -> None:
        inside.files[GIVEN] = inside.files[MOMENTS]
        named_as_they_lie(inside)

    in_step(run, exchanged)


@moments(
    "unnamed-edited",
    "Moments were exchanged that receipt and ranks still name.",
    "optimizer.start-mismatch",
    command=RUN,
    also=("optimizer.step-mismatch",),
)
def _(run: Run) -> None:
    inside = of(run).run(1)
    inside.files[GIVEN] = inside.files[MOMENTS]
    inside.redo_seal()
    of(run).put_run(1, inside)


@moments(
    "more-steps",
    "One step more is said to have led to the moments, by everybody.",
    "optimizer.step-mismatch",
    also=("training.moments-mismatch",),
)
def _(run: Run) -> None:
    def older(inside: Run) -> None:
        inside.edit(DEPLOYMENT, lambda value: value["optimizer"].update(steps=2))
        inside.edit_evidence("optimizer-step", lambda seen: seen.update(optimizer_life_steps=3))
        inside.set("receipt.json", "/optimizer_steps_before", 2)

    in_step(run, older)


@moments("steps-of-a-rank", "A rank's optimizer has taken more steps than it should.", "optimizer.start-mismatch")
def _(run: Run) -> None:
    in_step(
        run, lambda inside: inside.edit_evidence("optimizer-step", lambda seen: seen.update(optimizer_life_steps=7))
    )


@moments("steps-of-the-receipt", "The receipt names other steps than the deployment.", "optimizer.start-mismatch")
def _(run: Run) -> None:
    in_step(run, lambda inside: inside.set("receipt.json", "/optimizer_steps_before", 5))


@moments(
    "squares-below-zero",
    "A mean of squares is negative, wherever it is named.",
    "optimizer.moment-mismatch",
    also=("training.moments-mismatch",),
)
def _(run: Run) -> None:
    def negative(inside: Run) -> None:
        tensors = inside.tensors(GIVEN)
        name = next(name for name in sorted(tensors) if name.endswith(".exp_avg_sq") and np.any(tensors[name]))
        inside.put_tensors(GIVEN, {**tensors, name: -tensors[name]})
        named_as_they_lie(inside)

    in_step(run, negative)


def forgotten(inside: Run) -> None:
    """The run as if it had begun at zero, in all that names moments."""
    del inside.files[GIVEN]
    inside.edit(DEPLOYMENT, lambda value: value.pop("optimizer") and None)
    inside.edit_evidence("materialize", lambda seen: seen.pop("moments_sha256") and None)
    inside.edit_evidence("optimizer-step", lambda seen: seen.pop("optimizer_life_steps") and None)

    def fewer(receipt: dict[str, Any]) -> None:
        del receipt["optimizer_steps_before"], receipt["files"]["optimizer_before"]

    inside.edit("receipt.json", fewer)


@moments(
    "forgotten",
    "A step that went on from moments says that it began at zero.",
    "optimizer.step-mismatch",
    also=("training.moments-mismatch",),
)
def _(run: Run) -> None:
    in_step(run, forgotten)


@moments("not-named-by-the-deployment", "Only the deployment names no moments.", "optimizer.start-mismatch")
def _(run: Run) -> None:
    in_step(run, lambda inside: inside.edit(DEPLOYMENT, lambda value: value.pop("optimizer") and None))


@moments("gone", "The moments are named and not there.", "binding.file-absent", command=RUN)
def _(run: Run) -> None:
    inside = of(run).run(1)
    del inside.files[GIVEN]
    inside.redo_seal()
    of(run).put_run(1, inside)


@moments("planned-fresh", "The plan promises fresh moments, and they were carried.", "training.moments-mismatch")
def _(run: Run) -> None:
    run.set(PLAN, "/moments", "fresh")
    of(run).follow()


@moments(
    "planned-carried",
    "The plan promises carried moments, and every step began at zero.",
    "training.moments-mismatch",
    base="training",
)
def _(run: Run) -> None:
    run.set(PLAN, "/moments", "carried")
    of(run).follow()


@moments(
    "gradient-smaller",
    "The gradient of a step that went on from moments is a small part of what stepped, recounted.",
    "optimizer.step-mismatch",
    also=("optimizer.moment-mismatch",),
)
def _(run: Run) -> None:
    def smaller(inside: Run) -> None:
        part = {name: tensor * np.float32(2**-12) for name, tensor in inside.tensors(GRADIENT).items()}
        inside.put_tensors(GRADIENT, part)
        norms(inside)

    in_step(run, smaller)


@moments(
    "one-huge",
    "One square is huge in the moments before, and all others of its tensor are wrong after.",
    "optimizer.moment-mismatch",
    command=RUN,
)
def _(run: Run) -> None:
    inside = of(run).run(1)
    given, left, after = (inside.tensors(path) for path in (GIVEN, MOMENTS, AFTER))
    contract = inside.json("inputs/profile.json")["optimizer"]
    name = min(after)
    square = f"{name}.exp_avg_sq"
    given[square].flat[0] = 1e20
    left[square] += np.float32(5e7)
    left[square].flat[0] = given[square].flat[0] * np.float32(contract["beta2"])
    decayed = inside.tensors(BEFORE)[name].flat[0] * np.float32(1 - contract["lr"] * contract["weight_decay"])
    after[name].flat[0] = decayed
    for path, tensors in ((GIVEN, given), (MOMENTS, left), (AFTER, after)):
        inside.put_tensors(path, tensors)
    named_as_they_lie(inside)
    for phase in ("optimizer-step", "checkpoint"):
        inside.edit_evidence(phase, lambda seen: seen.update(adapter_sha256=tensors_sha256(after)))
    inside.follow()
    of(run).put_run(1, inside)
