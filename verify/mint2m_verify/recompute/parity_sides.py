"""Reads the two sides of a comparison: a directory that a trainer exported, or a reference folder with right values.

An export holds `gradients.safetensors` (PEFT names), `logprobs.json` `{"responses": [[...]]}` and `report.json`.
A reference folder holds `expected.safetensors` and `expected.json` with several cases by label (`ratio1`,
`active_clip`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from mint2m_verify.canonical import JsonValue, parse
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, Report, found
from mint2m_verify.recompute.parity import Array, Side, Thresholds, compare

EXPORT = ("gradients.safetensors", "logprobs.json", "report.json")
REFERENCE = ("expected.safetensors", "expected.json")

#: Gradients of every LoRA shard of the 78-layer model are about 5 GiB.
_TENSOR_LIMIT = 16 << 30

#: Added to the norm in the clip coefficient, as `torch.nn.utils.clip_grad_norm_` does.
_NORM_EPS = 1e-6


def compare_directories(reference: Path, candidate: Path, thresholds: Thresholds, *, case: str | None) -> Report:
    """`mint2m parity compare REF CAND [--case LABEL]`; unreadable sides are findings too."""
    for directory in (reference, candidate):
        if not directory.exists():
            raise FindingError(found("input.missing", file=str(directory)))
    try:
        return compare(read_side(reference, case=case), read_side(candidate, case=None), thresholds).report()
    except FindingError as fault:
        return Report(subject=f"{candidate} against {reference}", command="parity compare", findings=(fault.finding,))


def read_side(directory: Path, *, case: str | None) -> Side:
    """One side, of whichever kind the directory is.

    Args:
        case: label of a reference folder's case; must be None for an export, which has only one.

    Raises:
        FindingError: `file.*`, `json.*`, `parity.malformed` or `parity.case-unknown`.
    """
    if (directory / REFERENCE[1]).exists():
        return _reference(directory, case)
    if case is not None:
        raise FindingError(
            found("parity.case-unknown", file=str(directory), expected="no case: this is an export", actual=case)
        )
    return _export(directory)


def _export(directory: Path) -> Side:
    tensors_name, logprobs_name, report_name = EXPORT
    gradients = _tensors(directory / tensors_name)
    logprobs = _object(directory / logprobs_name)
    report = _object(directory / report_name)
    rows = logprobs.get("responses")
    if not isinstance(rows, list) or not rows:
        raise _malformed(directory / logprobs_name, "/responses", "a list of lists of numbers")
    parsed: list[tuple[float, ...]] = []
    for index, row in enumerate(rows):
        if not isinstance(row, list):
            raise _malformed(directory / logprobs_name, f"/responses/{index}", "a list of numbers")
        parsed.append(tuple(_number(value, directory / logprobs_name, f"/responses/{index}") for value in row))
    file = directory / report_name
    return Side(
        name=str(directory),
        gradients=gradients,
        logprobs=tuple(parsed),
        loss=_number(report.get("loss"), file, "/loss"),
        gradient_norm=_number(report.get("gradient_norm"), file, "/gradient_norm"),
        clip_coefficient=_number(report.get("clip_coefficient"), file, "/clip_coefficient"),
        clipped_low=_count(report.get("clipped_low"), file, "/clipped_low"),
        clipped_high=_count(report.get("clipped_high"), file, "/clipped_high"),
    )


def _reference(directory: Path, case: str | None) -> Side:
    tensors_name, expected_name = REFERENCE
    file = directory / expected_name
    expected = _object(file)
    labels = sorted(name for name, value in expected.items() if isinstance(value, dict) and "grad_norm" in value)
    if case not in labels:
        raise FindingError(
            found("parity.case-unknown", file=str(directory), expected=" or ".join(labels), actual=case or "none")
        )
    figures, settings = expected[str(case)], expected.get("case")
    optimizer = settings.get("optimizer") if isinstance(settings, dict) else None
    if not isinstance(figures, dict) or not isinstance(optimizer, dict):
        raise _malformed(file, "/case/optimizer", "an object")
    tensors = _tensors(directory / tensors_name)
    stem = f"{case}.grad."
    count = sum(1 for name in tensors if name.startswith(f"{case}.logprobs."))
    rows = [tensors.get(f"{case}.logprobs.{index}") for index in range(count)]
    if not rows or any(row is None for row in rows):
        raise _malformed(directory / tensors_name, f"{case}.logprobs", "one tensor for each response, from 0")
    norm = _number(figures.get("grad_norm"), file, f"/{case}/grad_norm")
    clip = _number(optimizer.get("clip_grad"), file, "/case/optimizer/clip_grad")
    return Side(
        name=f"{directory} {case}",
        gradients={name.removeprefix(stem): value for name, value in tensors.items() if name.startswith(stem)},
        logprobs=tuple(tuple(float(value) for value in row) for row in rows if row is not None),
        loss=_number(figures.get("loss"), file, f"/{case}/loss"),
        gradient_norm=norm,
        clip_coefficient=min(1.0, clip / (norm + _NORM_EPS)),
        clipped_low=_count(figures.get("clipped_low_tokens"), file, f"/{case}/clipped_low_tokens"),
        clipped_high=_count(figures.get("clipped_high_tokens"), file, f"/{case}/clipped_high_tokens"),
    )


def _tensors(path: Path) -> dict[str, Array]:
    try:
        tensors = load(read_once(path, limit=_TENSOR_LIMIT))
    except (SafetensorError, KeyError, TypeError, ValueError) as fault:
        raise _malformed(path, "/", "a safetensors file of floats", str(fault)) from fault
    for name, value in tensors.items():
        if not np.issubdtype(value.dtype, np.floating):
            raise _malformed(path, name, "a floating-point tensor", str(value.dtype))
    return tensors


def _object(path: Path) -> dict[str, JsonValue]:
    value = parse(read_once(path), file=str(path))
    if not isinstance(value, dict):
        raise _malformed(path, "", "an object")
    return value


def _number(value: JsonValue, path: Path, pointer: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _malformed(path, pointer, "a number", repr(value))
    return float(value)


def _count(value: JsonValue, path: Path, pointer: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _malformed(path, pointer, "a count", repr(value))
    return value


def _malformed(path: Path, pointer: str, expected: str, actual: str | None = None) -> FindingError:
    return FindingError(found("parity.malformed", file=str(path), pointer=pointer, expected=expected, actual=actual))
