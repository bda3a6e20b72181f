"""The kernel stage: every hot kernel's results against float64, over inputs that the verifier makes itself.

The rule: kernels are tried in what the plan's profiles compute in. Which implementation ran, and on what device, is the
operator's word (a setting of the record); what it gave is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator

import numpy as np

from mint2m_verify.canonical import JsonValue, parse
from mint2m_verify.chain import kernel_cases as cases
from mint2m_verify.chain.kernel_cases import Dtype
from mint2m_verify.chain.numbers import Number
from mint2m_verify.chain.recompute.evidence import Evidence, Recomputation
from mint2m_verify.documents.inputs import RunProfile
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.recompute.tensors import Floats, Tensors

CACHE = "cache.json"
_PARTS = ("out", "lse", "grad_q", "grad_rows")


def recompute(evidence: Evidence) -> Recomputation:
    """Mismatched slots of selection, and the largest relative errors of attention and its gradient."""
    dtypes = yield from _dtypes(evidence)
    mismatches = yield from _topk(evidence, dtypes)
    errors = yield from _attend(evidence, dtypes)
    changed = yield from _cache(evidence)
    return (
        Number(name="topk.cases", value=float(len(cases.TOPK) * len(dtypes)), standing="derived"),
        Number(name="topk.mismatches", value=mismatches, standing="derived"),
        Number(name="attend.cases", value=float(len(cases.ATTEND) * len(dtypes)), standing="derived"),
        *(Number(name=f"attend.{part}.error", value=errors[part], standing="derived") for part in _PARTS),
        Number(name="cache.changed", value=changed, standing="attested-only"),
    )


def topk_file(name: str, dtype: Dtype) -> str:
    """Where the results of a selection case lie, below the stage's tree."""
    return f"topk-{name}{_suffix(dtype)}.safetensors"


def attend_file(name: str, dtype: Dtype) -> str:
    """Where the results of an attention case lie, below the stage's tree."""
    return f"attend-{name}{_suffix(dtype)}.safetensors"


def _suffix(dtype: Dtype) -> str:
    return "" if dtype == "float32" else f".{dtype}"


def _dtypes(evidence: Evidence) -> Generator[Finding, None, tuple[Dtype, ...]]:
    profiles: dict[str, RunProfile] = {}
    for item in evidence.plan.stages:
        if item.fixture is not None and item.fixture.profile.path not in profiles:
            path = item.fixture.profile.path
            try:
                profiles[path] = evidence.document(RunProfile, path, canonical_form=False)
            except FindingError as fault:
                yield fault.finding
    return cases.planned_dtypes(profiles.values())


def _topk(evidence: Evidence, dtypes: tuple[Dtype, ...]) -> Generator[Finding, None, float]:
    wrong = 0
    for dtype, (name, case) in itertools.product(dtypes, cases.TOPK.items()):
        path = f"{evidence.tree}{topk_file(name, dtype)}"
        right = cases.topk_reference(cases.topk_inputs(name, evidence.execution_id), case.keep)
        have = yield from _tensors(evidence, path, {"scores": right.scores.shape, "positions": right.positions.shape})
        if have is None:
            wrong += right.positions.size
            continue
        same = (have["scores"] == right.scores.astype(np.float32)) & (have["positions"] == right.positions)
        wrong += int(np.count_nonzero(~same))
    return float(wrong)


def _attend(evidence: Evidence, dtypes: tuple[Dtype, ...]) -> Generator[Finding, None, dict[str, float]]:
    worst = dict.fromkeys(_PARTS, 0.0)
    for dtype, (name, case) in itertools.product(dtypes, cases.ATTEND.items()):
        path = f"{evidence.tree}{attend_file(name, dtype)}"
        right = cases.attend_reference(cases.attend_inputs(name, evidence.execution_id, dtype), case)
        wanted = {part: getattr(right, part) for part in _PARTS}
        have = yield from _tensors(evidence, path, {part: value.shape for part, value in wanted.items()})
        scales = {"grad_q": right.q_terms, "grad_rows": right.rows_terms}
        for part, want in wanted.items():
            scale = scales.get(part) or float(np.abs(want[np.isfinite(want)]).max())
            error = np.inf if have is None else _error(want, have[part], scale)
            worst[part] = max(worst[part], error)
    return worst


def _error(want: Floats, have: Floats, scale: float) -> float:
    """Largest difference relative to `scale`; a NaN is as far as can be, and so is an infinity in the wrong place."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(have.astype(np.float64) - want)
    difference[np.isneginf(want) & np.isneginf(have)] = 0.0  # the log-sum-exp of a query for which nothing counts
    if not np.all(np.isfinite(difference)):
        return float(np.inf)
    return float(difference.max() / max(scale, 1e-30))


def _tensors(
    evidence: Evidence, path: str, shapes: dict[str, tuple[int, ...]]
) -> Generator[Finding, None, Tensors | None]:
    try:
        have = evidence.tensors(path)
    except FindingError as fault:
        yield fault.finding
        return None
    yield from (faults := tuple(_shapes(have, shapes, path, evidence)))
    return None if faults else have


def _shapes(have: Tensors, want: dict[str, tuple[int, ...]], path: str, evidence: Evidence) -> Iterator[Finding]:
    shown = {name: list(tensor.shape) for name, tensor in have.items()}
    if shown != {name: list(shape) for name, shape in want.items()}:
        yield found(
            "chain.artifact-shape",
            stage=evidence.planned.stage,
            file=path,
            expected=str({name: list(want[name]) for name in sorted(want)}),
            actual=str(shown),
        )


def _cache(evidence: Evidence) -> Generator[Finding, None, float]:
    """1 where the compile cache changed while kernels ran; a plan that needs one refuses an empty one."""
    path = f"{evidence.tree}{CACHE}"
    try:
        value = parse(evidence.raw(path), file=path, canonical_form=True)
    except FindingError as fault:
        yield fault.finding
        return 1.0
    before, after, files = _member(value, "before"), _member(value, "after"), _member(value, "files")
    if evidence.plan.kernel_cache_required and not (isinstance(files, int) and files > 0):
        yield found("chain.cache-empty", stage="kernel", file=path, pointer="/files", actual=str(files))
    return 0.0 if before == after else 1.0


def _member(value: JsonValue, name: str) -> JsonValue:
    return value.get(name) if isinstance(value, dict) else None
