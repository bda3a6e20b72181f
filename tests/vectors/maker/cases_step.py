"""The gradient, the step and the moments, signed with the right key and not what an optimizer makes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from maker.case import vector
from maker.digests import adapter_sha256
from maker.forge import AFTER, BEFORE, GRADIENT, MOMENTS, SCORES, Run, Tensors

ONE = "run-one-rank"


def scores(run: Run, change: Callable[[dict[str, Any]], Any]) -> None:
    run.edit(SCORES, lambda document: change(document) and None)
    run.follow(after="execution")


def stepped(run: Run, path: str, change: Callable[[Tensors], Any]) -> None:
    """Change the tensors of one file, and make every binding of it right."""
    tensors = run.tensors(path)
    run.put_tensors(path, change(tensors) or tensors)
    run.follow(after="execution")


def first(tensors: Tensors, ending: str = "") -> str:
    """The first tensor that is not all zero."""
    return next(name for name in sorted(tensors) if name.endswith(ending) and np.any(tensors[name]))


def adapter_digests(run: Run) -> None:
    """The digests of both adapters, in the records of all ranks."""

    before, after = adapter_sha256(run.tensors(BEFORE)), adapter_sha256(run.tensors(AFTER))
    run.edit_evidence("materialize", lambda seen: seen.update(adapter_sha256=before))
    for phase in ("optimizer-step", "checkpoint"):
        run.edit_evidence(phase, lambda seen: seen.update(adapter_sha256=after))


def norms(run: Run) -> None:
    """The norm and clip coefficient of the gradient as it is now, wherever they are recorded."""
    squares = (float(np.sum(tensor.astype(np.float64) ** 2)) for tensor in run.tensors(GRADIENT).values())
    norm = math.sqrt(math.fsum(squares))  # in any order of the tensors
    clip = run.json("inputs/profile.json")["optimizer"]["clip_grad"]
    numbers = {"gradient_norm": norm, "clip_coefficient": min(1.0, clip / (norm + 1e-6))}
    run.edit(SCORES, lambda document: document.update(numbers))
    run.edit("receipt.json", lambda document: document.update(numbers))
    run.edit_evidence("finalize", lambda seen: seen.update(numbers))


@vector(
    "gradient-beyond-numbers",
    "Float64 gradients each of whose squares is a number, and whose sum is none.",
    "grpo.loss-mismatch",
    also=("optimizer.norm-mismatch",),
)
def _(run: Run) -> None:
    run.set("inputs/profile.json", "/model/dtype", "float64")
    stepped(run, GRADIENT, lambda made: {name: np.full(g.shape, 1e154 / g.size**0.5) for name, g in made.items()})
    run.follow()


@vector(
    "gradient-doubled",
    "The exported gradient is twice as large as the one that stepped; norms are the old ones.",
    "optimizer.norm-mismatch",
)
def _(run: Run) -> None:
    stepped(run, GRADIENT, lambda made: {name: tensor * np.float32(2) for name, tensor in made.items()})


@vector(
    "gradient-doubled-and-recounted",
    "The same with every norm made right; the moments tell, and weights as small as Adam's eps.",
    "optimizer.step-mismatch",
    base=ONE,
    also=("optimizer.moment-mismatch",),
)
def _(run: Run) -> None:
    run.put_tensors(GRADIENT, {name: tensor * np.float32(2) for name, tensor in run.tensors(GRADIENT).items()})
    norms(run)
    run.follow(after="execution")


@vector(
    "clip-dropped",
    "The step was made with the gradient before clipping; the weights hardly differ.",
    "optimizer.moment-mismatch",
)
def _(run: Run) -> None:
    coefficient = np.float32(run.json(SCORES)["clip_coefficient"])

    def change(moments: Tensors) -> Tensors:
        scale = {"exp_avg": 1 / coefficient, "exp_avg_sq": 1 / coefficient**2}
        return {name: tensor * scale[name.rpartition(".")[2]] for name, tensor in moments.items()}

    stepped(run, MOMENTS, change)


@vector("clip-coefficient", "A clip coefficient of one beside a norm that must be clipped.", "optimizer.norm-mismatch")
def _(run: Run) -> None:
    run.edit_evidence("finalize", lambda seen: seen.update(clip_coefficient=1))
    run.set("receipt.json", "/clip_coefficient", 1)
    scores(run, lambda made: made.update(clip_coefficient=1))


@vector("weight-decay-dropped", "The step left weight decay out.", "optimizer.step-mismatch", base=ONE)
def _(run: Run) -> None:
    before, after = run.tensors(BEFORE), run.tensors(AFTER)
    for name, tensor in after.items():
        after[name] = (tensor.astype(np.float64) + 1e-4 * 0.1 * before[name]).astype(np.float32)
    run.put_tensors(AFTER, after)
    adapter_digests(run)
    run.follow(after="execution")


@vector("one-weight", "One weight is off by a few units in the last place.", "optimizer.step-mismatch", base=ONE)
def _(run: Run) -> None:
    after = run.tensors(AFTER)
    tensor = after[first(after)]
    tensor.flat[0] += 4 * np.spacing(tensor.flat[0])
    run.put_tensors(AFTER, after)
    adapter_digests(run)
    run.follow(after="execution")


@vector("nothing-stepped", "The adapter after the step is the adapter before it.", "optimizer.step-mismatch", base=ONE)
def _(run: Run) -> None:
    run.files[AFTER] = run.files[BEFORE]
    adapter_digests(run)
    run.follow(after="execution")


@vector("moments-of-a-second-step", "Moments that did not start from zero.", "optimizer.moment-mismatch", base=ONE)
def _(run: Run) -> None:
    stepped(run, MOMENTS, lambda made: {name: tensor * np.float32(1.9) for name, tensor in made.items()})


@vector("no-gradient", "The gradient is all zero although the group has a signal.", "optimizer.no-gradient", base=ONE)
def _(run: Run) -> None:
    before = run.tensors(BEFORE)
    run.put_tensors(GRADIENT, {name: np.zeros_like(tensor) for name, tensor in run.tensors(GRADIENT).items()})
    run.put_tensors(MOMENTS, {name: np.zeros_like(tensor) for name, tensor in run.tensors(MOMENTS).items()})
    decay = np.float32(1 - 1e-4 * 0.1)
    run.put_tensors(AFTER, {name: tensor * decay for name, tensor in before.items()})
    norms(run)
    adapter_digests(run)
    run.follow(after="execution")


@vector("adapter-not-finite", "The trained adapter holds a NaN.", "tensor.not-finite", base=ONE)
def _(run: Run) -> None:
    after = run.tensors(AFTER)
    after[first(after)].flat[0] = np.nan
    run.put_tensors(AFTER, after)
    adapter_digests(run)
    run.follow(after="execution")


@vector("gradient-infinite", "The gradient holds an infinity.", "tensor.not-finite", base=ONE)
def _(run: Run) -> None:
    stepped(run, GRADIENT, lambda made: made[first(made)].__setitem__((0, 0), np.inf))


@vector("adapter-tensor-missing", "The trained adapter lacks a tensor.", "adapter.tensor-missing", base=ONE)
def _(run: Run) -> None:
    stepped(run, AFTER, lambda made: made.pop(first(made)) is None)


@vector("gradient-tensor-missing", "The gradient lacks a tensor: was it trained?", "adapter.tensor-missing", base=ONE)
def _(run: Run) -> None:
    run.edit(SCORES, lambda _made: None)
    gradient = run.tensors(GRADIENT)
    gradient.pop(first(gradient))
    run.put_tensors(GRADIENT, gradient)
    norms(run)
    run.follow(after="execution")


@vector(
    "adapter-tensor-extra", "The trained adapter holds a tensor that nobody trained.", "adapter.tensor-extra", base=ONE
)
def _(run: Run) -> None:
    stepped(run, AFTER, lambda made: made.update({"base_model.model.x.lora_A.weight": np.ones((2, 4), np.float32)}))


@vector("adapter-transposed", "A tensor of the gradient has its axes exchanged.", "adapter.shape-mismatch", base=ONE)
def _(run: Run) -> None:
    def change(made: Tensors) -> None:
        name = first(made)
        made[name] = np.ascontiguousarray(made[name].T)

    stepped(run, GRADIENT, change)


@vector("adapter-double", "The trained adapter is in double precision.", "adapter.dtype-mismatch", base=ONE)
def _(run: Run) -> None:
    stepped(run, AFTER, lambda made: {name: tensor.astype(np.float64) for name, tensor in made.items()})


@vector(
    "adapter-half",
    "The trained adapter is in half precision, whose steps nobody can recompute.",
    "tensor.malformed",
    base=ONE,
)
def _(run: Run) -> None:
    stepped(run, AFTER, lambda made: {name: tensor.astype(np.float16) for name, tensor in made.items()})


@vector(
    "adapter-name",
    "A tensor with a name that no LoRA has, on every side.",
    "adapter.tensor-missing",
    base=ONE,
    also=("adapter.name-invalid",),
)
def _(run: Run) -> None:
    for path in (BEFORE, AFTER, GRADIENT, MOMENTS, "inputs/adapter-initial/adapter_model.safetensors"):
        # In place, with as many bytes: only the name is another one.
        run.files[path] = run.files[path].replace(b"lm_head.lora_A.weight", b"lm_head.lora_C.weight")
    run.follow()


@vector(
    "adapter-config-rank",
    "The adapter's configuration has another rank than the profile.",
    "adapter.config-mismatch",
    base=ONE,
)
def _(run: Run) -> None:
    path = "adapter/adapter_config.json"
    run.files[path] = run.files[path].replace(b'"r": 2', b'"r": 4')
    run.follow(after="execution")


@vector(
    "adapter-of-another-policy",
    "The step started from another adapter than the one given.",
    "adapter.not-the-given-one",
    base=ONE,
)
def _(run: Run) -> None:
    path = "inputs/adapter-initial/adapter_model.safetensors"
    tensors = run.tensors(path)
    tensors[first(tensors)].flat[0] += np.float32(0.5)
    run.put_tensors(path, tensors)
    run.follow()


@vector("tensors-none", "A gradient file without a tensor.", "tensor.none", base=ONE)
def _(run: Run) -> None:
    run.files[GRADIENT] = b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "
    run.follow(after="execution")


@vector("tensors-overlap", "Two tensors share bytes.", "tensor.malformed", base=ONE)
def _(run: Run) -> None:
    headed(run, lambda header: header[sorted(header)[1]].update(data_offsets=[0, 64]))


@vector("tensors-hole", "Bytes between two tensors that belong to none.", "tensor.malformed", base=ONE)
def _(run: Run) -> None:
    run.files[GRADIENT] += b"\x00" * 16
    run.follow(after="execution")


@vector("tensors-header-too-long", "A header that claims to be longer than the file.", "tensor.malformed", base=ONE)
def _(run: Run) -> None:
    run.files[GRADIENT] = b"\xff" * 7 + b"\x7f" + run.files[GRADIENT][8:]
    run.follow(after="execution")


@vector("tensors-many-dimensions", "A tensor of a hundred axes.", "tensor.malformed", base=ONE)
def _(run: Run) -> None:
    headed(run, lambda header: header[sorted(header)[1]].update(shape=[1] * 100 + header[sorted(header)[1]]["shape"]))


@vector("tensors-huge-shape", "A shape whose product has five thousand digits.", "tensor.malformed", base=ONE)
def _(run: Run) -> None:
    headed(run, lambda header: header[sorted(header)[1]].update(shape=[2**53 - 1] * 300))


@vector("tensors-repeated-name", "A tensor's name twice in the header.", "json.duplicate-key", base=ONE)
def _(run: Run) -> None:
    raw = run.files[GRADIENT]
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip()
    entry = header[1 : header.index(b"}") + 1]
    header = header[:-1] + b"," + entry + b"}"
    header += b" " * (-len(header) % 8)
    run.files[GRADIENT] = len(header).to_bytes(8, "little") + header + raw[8 + length :]
    run.follow(after="execution")


def headed(run: Run, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header of the gradient's file and leave its bytes."""

    raw = run.files[GRADIENT]
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    run.files[GRADIENT] = len(text).to_bytes(8, "little") + text + raw[8 + length :]
    run.follow(after="execution")
