"""Changes to the numbers of a promotion chain, and to the raw artifacts that they are derived from."""

from __future__ import annotations

from typing import Any

import numpy as np

from maker.cases_chain import EXACT, PARITY, chain, of
from maker.chain_forge import (
    part_of,
    tree_of,
)
from maker.forge import Run

MISMATCH = "chain.validation-mismatch"


@chain("forged-metric", "A better number in the record, every digest made again.", "chain.number-mismatch")
def _(run: Run) -> None:
    of(run).number("parity-32k", "ratio1.relative_l2", 1e-12)
    of(run).follow(after="parity-32k")


@chain("forged-validation", "A validation file that calls more good than there is.", MISMATCH)
def _(run: Run) -> None:
    run.edit(part_of("parity-32k", "validation"), lambda document: document["numbers"].pop() and None)
    of(run).follow(after="parity-32k")


def _first_value(run: Run, factor: float) -> None:
    """Multiply the first distance of a validation file, and seal it again."""

    def change(document: Any) -> None:
        next(number for number in document["numbers"] if number["name"].endswith("relative_l2"))["value"] *= factor

    run.edit(part_of("parity-32k", "validation"), change)
    of(run).follow(after="parity-32k")


@chain("validation-value-near", "A number of the validation file, off by more than processors differ.", MISMATCH)
def _(run: Run) -> None:
    _first_value(run, 1 + 1e-6)


@chain("validation-last-bits", "A number of the validation file as another processor sums it.", None, exit=0)
def _(run: Run) -> None:
    _first_value(run, 1 + 4e-16)


@chain("validation-number-twice", "A validation file that tells a number twice.", MISMATCH)
def _(run: Run) -> None:
    run.edit(part_of("parity-32k", "validation"), lambda document: document["numbers"].append(document["numbers"][-1]))
    of(run).follow(after="parity-32k")


@chain("validation-holds-not", "A validation file that says of a kept bound that it is not.", MISMATCH)
def _(run: Run) -> None:
    run.edit(part_of("parity-32k", "validation"), lambda document: document["numbers"][0].update(holds=False))
    of(run).follow(after="parity-32k")


@chain(
    "doctor-blocked", "A doctor that found something in the way.", "doctor.blocked", also=("chain.threshold-missed",)
)
def _(run: Run) -> None:
    run.set(f"{tree_of('doctor')}examination.json", "/checks/0/status", "blocked")
    of(run).follow()


@chain("kernel-result", "One value of a kernel's result is off by a thousandth.", "chain.threshold-missed")
def _(run: Run) -> None:
    name = f"{tree_of('kernel')}attend-plain.safetensors"
    tensors = run.tensors(name)
    tensors["out"].flat[0] += np.float32(1e-3)
    run.put_tensors(name, tensors)
    of(run).follow(after="kernel")


@chain("kernel-ties", "Two tied rows in the other order.", "chain.threshold-missed")
def _(run: Run) -> None:
    name = f"{tree_of('kernel')}topk-all-tie.safetensors"
    tensors = run.tensors(name)
    tensors["positions"][-1, :2] = tensors["positions"][-1, :2][::-1].copy()
    run.put_tensors(name, tensors)
    of(run).follow(after="kernel")


@chain("cache-changed", "A kernel cache that changed while kernels ran.", "chain.threshold-missed")
def _(run: Run) -> None:
    run.set(f"{tree_of('kernel')}cache.json", "/after", "9a" * 32)
    of(run).follow(after="kernel")


@chain("collective-copied", "One rank's collectives are a copy of the other's.", "chain.threshold-missed")
def _(run: Run) -> None:
    tree = tree_of("nccl")
    run.files[f"{tree}rank-1.safetensors"] = run.files[f"{tree}rank-0.safetensors"]
    of(run).follow(after="nccl")


@chain(
    "collectives-of-another-execution", "Collectives of another execution: other payloads.", "chain.threshold-missed"
)
def _(run: Run) -> None:
    for rank in (0, 1):
        name = f"{tree_of('nccl')}rank-{rank}.safetensors"
        run.put_tensors(name, {key: np.roll(value, 1) for key, value in run.tensors(name).items()})
    of(run).follow(after="nccl")


@chain("actor-tensor", "A rank that loaded another tensor than the snapshot's.", "chain.tensor-mismatch")
def _(run: Run) -> None:
    run.set(f"{tree_of('actor')}rank-1.tensors.json", "/base/3/sha256", "bc" * 32)
    of(run).follow(after="actor")


@chain("actor-tensor-left-out", "A tensor of the snapshot that no rank loaded.", "chain.tensor-not-loaded")
def _(run: Run) -> None:
    for rank in (0, 1):
        name = f"{tree_of('actor')}rank-{rank}.tensors.json"
        run.edit(name, lambda d: d.update(base=[t for t in d["base"] if t["name"] != "model.norm.weight"]))
    of(run).follow(after="actor")


@chain("actor-stepped", "An optimizer that took a step where none may be taken.", "chain.threshold-missed")
def _(run: Run) -> None:
    run.set(f"{tree_of('actor')}rank-0.tensors.json", "/optimizer_steps", 1)
    of(run).follow(after="actor")


@chain(
    "model-not-here",
    "The model did not come along: tensor digests are the operator's word.",
    "chain.standing-too-low",
    exit=3,
)
def _(run: Run) -> None:
    for name in [name for name in run.files if name.startswith("inputs/model/")]:
        del run.files[name]


@chain("shards-swapped", "The ranks' gradient shards in each other's place.", "chain.shard-of-another-rank")
def _(run: Run) -> None:
    one, other = f"{EXACT}rank-0.safetensors", f"{EXACT}rank-1.safetensors"
    run.files[one], run.files[other] = run.files[other], run.files[one]
    of(run).follow(after="parity-32k")


@chain("shard-copied", "One rank's shards are a copy of the other's.", "chain.shard-of-another-rank")
def _(run: Run) -> None:
    run.files[f"{EXACT}rank-1.safetensors"] = run.files[f"{EXACT}rank-0.safetensors"]
    of(run).follow(after="parity-32k")


@chain(
    "shard-missing",
    "A trainable tensor that no rank exported.",
    "chain.shard-of-another-rank",
    also=("chain.tensors-incomplete", "chain.number-missing"),
)
def _(run: Run) -> None:
    for rank in (0, 1):
        name = f"{EXACT}rank-{rank}.safetensors"
        run.put_tensors(name, {k: v for k, v in run.tensors(name).items() if "lm_head" not in k})
    of(run).follow(after="parity-32k")


@chain("gradient-scaled", "The resident side's gradient, scaled.", "optimizer.norm-mismatch")
def _(run: Run) -> None:
    for rank in (0, 1):
        name = f"{EXACT}rank-{rank}.safetensors"
        run.put_tensors(name, {k: v * np.float32(1.5) for k, v in run.tensors(name).items()})
    of(run).follow(after="parity-32k")


@chain(
    "gradient-copied", "The resident side's shards are copies of the conventional side's.", "optimizer.norm-mismatch"
)
def _(run: Run) -> None:
    for rank in (0, 1):
        source = f"{PARITY}active_clip/conventional/rank-{rank}.safetensors"
        run.put_tensors(f"{EXACT}rank-{rank}.safetensors", run.tensors(source))
    of(run).follow(after="parity-32k")


@chain("ranks-disagree", "A replicated gradient that differs between ranks.", "chain.ranks-disagree")
def _(run: Run) -> None:
    name = f"{EXACT}rank-1.safetensors"
    tensors = run.tensors(name)
    key = next(key for key in sorted(tensors) if ".self_attn." in key)
    tensors[key].flat[0] += np.float32(1e-3)
    run.put_tensors(name, tensors)
    of(run).follow(after="parity-32k")


@chain(
    "optimizer-while-exporting", "An optimizer step among the phases that export gradients.", "chain.phases-mismatch"
)
def _(run: Run) -> None:
    def change(record: Any) -> None:
        step = {**record["phases"][-1], "phase": "optimizer-step", "sequence": len(record["phases"])}
        record["phases"].append(step)

    run.edit(f"{EXACT}rank-0.phases.json", change)
    of(run).follow(after="parity-32k")


@chain(
    "phases-of-the-other-side",
    "The conventional side's phases shown as the resident side's.",
    "chain.execution-mismatch",
)
def _(run: Run) -> None:
    source = f"{PARITY}active_clip/conventional/rank-0.phases.json"
    run.files[f"{EXACT}rank-0.phases.json"] = run.files[source]
    of(run).follow(after="parity-32k")


@chain("loss-of-a-token", "The loss of one token changed in the scores of a side.", "grpo.loss-mismatch")
def _(run: Run) -> None:
    run.edit(
        f"{EXACT}scores.json", lambda s: s["responses"][0]["loss"].__setitem__(0, s["responses"][0]["loss"][0] + 0.01)
    )
    of(run).follow(after="parity-32k")


@chain(
    "step-of-another-gradient",
    "An adapter after the step that its gradient does not give.",
    "session.adapter-mismatch",
    also=("optimizer.step-mismatch",),
)
def _(run: Run) -> None:
    name = f"{EXACT}stepped.safetensors"
    tensors = run.tensors(name)
    key = sorted(tensors)[0]
    tensors[key].flat[0] += np.float32(1e-3)
    run.put_tensors(name, tensors)
    of(run).follow(after="parity-32k")


@chain("scale-run-changed", "A number in the receipt of the run inside the scale stage.", "tree.file-changed")
def _(run: Run) -> None:
    run.edit(f"{tree_of('scale-2m')}run/receipt.json", lambda receipt: receipt.update(loss=receipt["loss"] + 1))
    of(run).follow(after="scale-2m")


@chain(
    "scale-run-of-a-step",
    "The run inside the scale stage is one of a step over several prompts.",
    "tree.file-changed",
    also=("chain.run-not-planned",),
)
def _(run: Run) -> None:
    name = f"{tree_of('scale-2m')}run/receipt.json"
    run.edit(name, lambda receipt: receipt.update(claim_scope="gradient_accumulation_only"))
    of(run).follow(after="scale-2m")
