"""The optimizer step of a run: from the adapter before, the gradient and the optimizer's state to the adapter after.

The rule: names and shapes first, then values. A tensor that is missing on one side would otherwise be a weight that
was trained, or not, unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mint2m_verify import layout
from mint2m_verify.canonical import JsonValue, parse
from mint2m_verify.documents import RunProfile, Scores
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.findings import Check
from mint2m_verify.recompute import optimizer
from mint2m_verify.recompute.tensors import Tensors, read_tensors, tensors_sha256

ADAPTER = f"adapter/{layout.ADAPTER_WEIGHTS}"
ADAPTER_GIVEN = f"{layout.ADAPTER_INITIAL}{layout.ADAPTER_WEIGHTS}"
ADAPTER_BEFORE = f"artifacts/adapter-before/{layout.ADAPTER_WEIGHTS}"

#: Moments are (1 - beta1) g and (1 - beta2) g^2, a few roundings each; a scaled gradient is off by its scale.
MOMENT_TOLERANCE = 1e-6
#: Norms are summed in float64 on both sides; the order of the sum may differ.
NORM_TOLERANCE = 1e-9

_NAME = re.compile(r"(base_model\.model\..+\.lora_)([AB])(\.weight)")
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientTensors:
    """The gradient and the adapter that it is of; `gradient_before` is what the run went on from, where it did."""

    before: Tensors
    gradient: Tensors
    gradient_before: Tensors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTensors(GradientTensors):
    """Everything that the step is made of and what it made; `moments_before` None is zero state."""

    after: Tensors
    moments: Tensors
    moments_before: Tensors | None = None
    steps_before: int = 0


def read_gradient(raw: Mapping[str, bytes]) -> tuple[GradientTensors | None, tuple[Finding, ...]]:
    """The files of a run that took no step, as `read_step` gives those of one."""
    read, faults = _read(raw, (ADAPTER_BEFORE, layout.GRADIENT))
    if faults:
        return None, faults
    return (
        GradientTensors(
            before=read[ADAPTER_BEFORE],
            gradient=read[layout.GRADIENT],
            gradient_before=read.get(layout.GRADIENT_INITIAL),
        ),
        (),
    )


def read_step(raw: Mapping[str, bytes], *, steps_before: int = 0) -> tuple[StepTensors | None, tuple[Finding, ...]]:
    """The files as tensors, or what is wrong with each; `raw` has the bytes of all by path.

    The gradient that the run went on from is read where `raw` has it.

    Args:
        steps_before: in the life of the state that the step went on from; 0 is zero state, which has no file.
    """
    given = (layout.OPTIMIZER_INITIAL,) if steps_before else ()
    read, faults = _read(raw, (ADAPTER_BEFORE, ADAPTER, layout.GRADIENT, layout.OPTIMIZER_AFTER, *given))
    if faults:
        return None, faults
    return (
        StepTensors(
            before=read[ADAPTER_BEFORE],
            after=read[ADAPTER],
            gradient=read[layout.GRADIENT],
            moments=read[layout.OPTIMIZER_AFTER],
            moments_before=read.get(layout.OPTIMIZER_INITIAL),
            gradient_before=read.get(layout.GRADIENT_INITIAL),
            steps_before=steps_before,
        ),
        (),
    )


def _read(raw: Mapping[str, bytes], paths: Sequence[str]) -> tuple[dict[str, Tensors], tuple[Finding, ...]]:
    """The files at `paths` as tensors, with the gradient that was gone on from where there is one."""
    read: dict[str, Tensors] = {}
    faults: list[Finding] = []
    for path in (*paths, *((layout.GRADIENT_INITIAL,) if layout.GRADIENT_INITIAL in raw else ())):
        try:
            read[path] = read_tensors(raw[path], file=path)
        except FindingError as fault:
            faults.append(fault.finding)
    return read, tuple(faults)


def check_tensors(tensors: GradientTensors, profile: RunProfile) -> Check:
    """One set of names and shapes on all sides, LoRA pairs of the profile's rank, all values finite."""
    wide = np.dtype("<f8") if profile.model.dtype == "float64" else np.dtype("<f4")
    narrow = np.dtype("<f4")
    moments = {f"{name}.{moment}" for name in tensors.before for moment in _MOMENTS}
    sides: list[tuple[str, Tensors, set[str], np.dtype[np.floating]]] = [
        (ADAPTER_BEFORE, tensors.before, set(tensors.before), narrow),
        (layout.GRADIENT, tensors.gradient, set(tensors.before), wide),
    ]
    if tensors.gradient_before is not None:
        sides.append((layout.GRADIENT_INITIAL, tensors.gradient_before, set(tensors.before), wide))
    if isinstance(tensors, StepTensors):
        sides.insert(1, (ADAPTER, tensors.after, set(tensors.before), narrow))
        sides.append((layout.OPTIMIZER_AFTER, tensors.moments, moments, wide))
        if tensors.moments_before is not None:
            sides.append((layout.OPTIMIZER_INITIAL, tensors.moments_before, moments, wide))
    for file, have, wanted, dtype in sides:
        for name in sorted(wanted - have.keys()):
            yield found("adapter.tensor-missing", file=file, expected=name)
        for name in sorted(have.keys() - wanted):
            yield found("adapter.tensor-extra", file=file, actual=name)
        for name, tensor in have.items():
            base = tensors.before.get(name.removesuffix(".exp_avg").removesuffix(".exp_avg_sq"))
            if base is not None and base.shape != tensor.shape:
                shapes = str(list(base.shape)), f"{name} {list(tensor.shape)}"
                yield found("adapter.shape-mismatch", file=file, expected=shapes[0], actual=shapes[1])
            if tensor.dtype != dtype:
                yield found(
                    "adapter.dtype-mismatch", file=file, expected=dtype.name, actual=f"{name} {tensor.dtype.name}"
                )
            if not np.all(np.isfinite(tensor)):
                yield found("tensor.not-finite", file=file, actual=name)
            if name.endswith(".exp_avg_sq") and np.any(tensor < 0):
                yield found("optimizer.moment-mismatch", file=file, pointer=name, expected="squares", actual="below 0")
    yield from _pairs(tensors.before, profile.lora.rank)
    weights = sum(tensor.size for tensor in tensors.before.values())
    return f"{len(tensors.before)} tensors, {weights:,} weights, all finite"


def check_config(before: bytes, after: bytes | None, profile: RunProfile) -> Check:
    """Both adapters are LoRA of the profile's rank and alpha, under one configuration; without a step there is one."""
    files = (f"artifacts/adapter-before/{layout.ADAPTER_CONFIG}", f"adapter/{layout.ADAPTER_CONFIG}")
    for file, raw in zip(files, (before,) if after is None else (before, after), strict=False):
        try:
            config = parse(raw, file=file)
        except FindingError as fault:
            yield fault.finding
            continue
        wanted: Mapping[str, JsonValue] = {
            "peft_type": "LORA",
            "r": profile.lora.rank,
            "lora_alpha": profile.lora.alpha,
        }
        for member, want in wanted.items():
            have = config.get(member) if isinstance(config, dict) else None
            if have != want:
                pointer = f"/{member}"
                yield found("adapter.config-mismatch", file=file, pointer=pointer, expected=str(want), actual=str(have))
    if after is not None and before != after:
        yield found("adapter.config-mismatch", file=files[1], expected=f"the bytes of {files[0]}", actual="others")
    return f"rank {profile.lora.rank}, alpha {profile.lora.alpha:g}"


def check_start(before: Tensors, given: Tensors | None) -> Check:
    """The adapter before the step is the given policy, or a fresh one: every B zero, so that it changes nothing yet."""
    if given is not None:
        if tensors_sha256(given) != tensors_sha256(before):
            actual = "another adapter"
            yield found("adapter.not-the-given-one", file=ADAPTER_BEFORE, expected=ADAPTER_GIVEN, actual=actual)
        return f"the policy of {layout.ADAPTER_INITIAL}"
    for name, tensor in before.items():
        if name.endswith(".lora_B.weight") and np.any(tensor):
            yield found("adapter.not-fresh", file=ADAPTER_BEFORE, expected=f"{name} all zero", actual="other values")
    return "fresh: every lora_B is zero"


def check_norm(tensors: GradientTensors, scores: Scores, profile: RunProfile, *, signal: bool) -> Check:
    """Gradient norm and clip coefficient again from the exported gradient."""
    norm = optimizer.gradient_norm(tensors.gradient.values())
    coefficient = optimizer.clip_coefficient(norm, profile.optimizer.clip_grad)
    for member, want, have in (
        ("gradient_norm", norm, scores.gradient_norm),
        ("clip_coefficient", coefficient, scores.clip_coefficient),
    ):
        if not abs(want - have) <= NORM_TOLERANCE * max(abs(want), 1e-30):
            yield found(
                "optimizer.norm-mismatch",
                file=layout.SCORES,
                pointer=f"/{member}",
                expected=repr(want),
                actual=repr(have),
                stage="finalize",
            )
    if signal and norm == 0:
        yield found("optimizer.no-gradient", file=layout.GRADIENT, expected="a gradient", actual="all zero")
    elif scores.has_signal and tensors.gradient_before is not None and _same(tensors.gradient, tensors.gradient_before):
        expected, actual = "a gradient of its own on top", f"that of {layout.GRADIENT_INITIAL}, and nothing more"
        yield found("optimizer.no-gradient", file=layout.GRADIENT, expected=expected, actual=actual)
    return f"norm {norm:.6g}, clip {coefficient:.6g}"


def _same(one: Tensors, other: Tensors) -> bool:
    """Every tensor and every value the same."""
    return one.keys() == other.keys() and all(np.array_equal(tensor, other[name]) for name, tensor in one.items())


def check_step(tensors: StepTensors, profile: RunProfile) -> Check:
    """Every weight and both moments again, in the dtype and order of the optimizer."""
    contract = profile.optimizer
    coefficient = optimizer.clip_coefficient(optimizer.gradient_norm(tensors.gradient.values()), contract.clip_grad)
    fresh, others = 0.0, 0.0
    began_at_zero = 0
    for name, gradient in tensors.gradient.items():
        before, after = tensors.before[name], tensors.after[name]
        state = _state(tensors, name)
        stepped = optimizer.adamw(before.astype(gradient.dtype), gradient, coefficient, contract, state=state)
        reach = None if state is None else stepped.reach
        # A float64 run exports its adapter in float32, so that is where the two can be compared.
        want = stepped.parameter.astype(after.dtype)
        from_zero, from_others = optimizer.ulp_distance(want, after, before, reach)
        fresh, others = max(fresh, from_zero), max(others, from_others)
        began_at_zero += int(np.count_nonzero(before == 0))
        if not optimizer.within_rounding(want, after, before, reach):
            worst = np.unravel_index(int(np.argmax(np.abs(after - want))), after.shape)
            yield found(
                "optimizer.step-mismatch",
                file=ADAPTER,
                pointer=f"{name}[{', '.join(str(int(i)) for i in worst)}]",
                expected=f"{float(want[worst])!r} from {float(before[worst])!r}",
                actual=repr(float(after[worst])),
                stage="optimizer-step",
            )
        terms = None if state is None else stepped.terms
        for moment, right, parts in (("exp_avg", stepped.exp_avg, terms), ("exp_avg_sq", stepped.exp_avg_sq, None)):
            difference = optimizer.relative_difference(right, tensors.moments[f"{name}.{moment}"], parts)
            if not difference <= MOMENT_TOLERANCE:
                yield found(
                    "optimizer.moment-mismatch",
                    file=layout.OPTIMIZER_AFTER,
                    pointer=f"{name}.{moment}",
                    expected=f"the moment of the clipped gradient from {_from(state)}",
                    actual=f"off by {difference:.3g} relative",
                    stage="optimizer-step",
                )
    weights = sum(tensor.size for tensor in tensors.after.values())
    words = f"{others:.0f} ulp over {weights - began_at_zero:,} weights"
    if began_at_zero:
        words += f", {fresh:.0f} ulp of the step over {began_at_zero:,} that began at 0"
    if tensors.steps_before:
        words += f"; step {tensors.steps_before + 1} of the optimizer's life"
    return f"{words}; both moments"


def _state(tensors: StepTensors, name: str) -> optimizer.State | None:
    if tensors.moments_before is None:
        return None
    first, second = (tensors.moments_before[f"{name}.{moment}"] for moment in _MOMENTS)
    return optimizer.State(exp_avg=first, exp_avg_sq=second, steps=tensors.steps_before)


def _from(state: optimizer.State | None) -> str:
    return "zero state" if state is None else f"those of {layout.OPTIMIZER_INITIAL}"


def adapter_digests(tensors: GradientTensors) -> tuple[str, str]:
    """`adapter_sha256` before and after, as the ranks must have recorded them; without a step they are one."""
    after = tensors.after if isinstance(tensors, StepTensors) else tensors.before
    return tensors_sha256(tensors.before), tensors_sha256(after)


def _pairs(adapter: Tensors, rank: int) -> Iterator[Finding]:
    for name, tensor in adapter.items():
        match = _NAME.fullmatch(name)
        if match is None:
            yield found("adapter.name-invalid", file=ADAPTER_BEFORE, actual=name)
            continue
        stem, side, tail = match.groups()
        partner = f"{stem}{'B' if side == 'A' else 'A'}{tail}"
        if partner not in adapter:
            yield found("adapter.tensor-missing", file=ADAPTER_BEFORE, expected=partner)
        axis = 0 if side == "A" else 1
        if tensor.ndim != 2 or tensor.shape[axis] != rank:
            want = f"rank {rank} on axis {axis}"
            yield found(
                "adapter.shape-mismatch", file=ADAPTER_BEFORE, expected=want, actual=f"{name} {list(tensor.shape)}"
            )
