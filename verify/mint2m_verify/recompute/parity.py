"""How far two computations of one update are apart: gradients by family, log-probs, loss, norm and clip counts.

The rule: everything is compared in float64, an absent value is a difference, and a comparison of nothing fails.
Without it the easy ways to agree (an empty overlap, a NaN, two zero gradients, a family too small to weigh in the
total) would pass.

cosine = <r, c> / (|r| |c|); relative L2 = |c - r| / |r|, with r the reference and c the candidate, over all
elements of the set at once.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.sums import total

Array = npt.NDArray[np.floating]

#: A set whose norm is below this part of the whole gradient's has no relative figure worth a gate.
NEGLIGIBLE = 1e-6

#: Part of a tensor's largest element that rounding leaves where a sum cancels: in float64, and in anything coarser.
ROUNDING_64, ROUNDING = 2.0**-52, 2.0**-23


class Family(enum.StrEnum):
    """Kinds of projection, in the order of the report."""

    ATTENTION = "attention"
    DENSE = "dense"
    SHARED = "shared"
    EXPERT = "expert"
    UNEMBED = "unembed"


#: What marks a family in a module's name; the first that fits decides.
_MARKS = (
    (".self_attn.", Family.ATTENTION),
    (".mlp.experts.", Family.EXPERT),
    (".mlp.shared_experts.", Family.SHARED),
    (".mlp.", Family.DENSE),
    (".lm_head.", Family.UNEMBED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Bounds, all inclusive. Those with None are reported and not gated.

    `cosine` and `relative_l2` hold for the whole gradient and for each family; `tensor_relative_l2` for each tensor.
    Families and tensors below `NEGLIGIBLE` of the reference's norm are excepted.
    """

    logprob: float = 5e-3
    loss: float = 5e-3
    cosine: float = 0.999
    relative_l2: float = 1e-2
    tensor_relative_l2: float | None = None
    gradient_norm: float | None = None
    clip_coefficient: float | None = None
    zero_mask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One computation of the update. Gradients are before clipping, by PEFT name; log-probs [G][R]."""

    name: str
    gradients: Mapping[str, Array]
    logprobs: tuple[tuple[float, ...], ...]
    loss: float
    gradient_norm: float
    clip_coefficient: float
    clipped_low: int
    clipped_high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Figures over one set of tensors.

    `cosine` is None where a side is zero throughout. `zero_mask` counts elements that are zero on one side only, and on
    the other more than `rounding` of the tensor's largest.
    """

    tensors: int
    elements: int
    reference_norm: float
    candidate_norm: float
    cosine: float | None
    relative_l2: float
    max_abs: float
    zero_mask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDistance:
    family: Family
    distance: Distance


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDistance:
    name: str
    distance: Distance


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityReport:
    """Everything that was compared; `findings` holds each fault and each bound that was passed."""

    reference: str
    candidate: str
    overall: Distance | None
    families: tuple[FamilyDistance, ...]
    worst_tensor: TensorDistance | None
    logprob_max_abs: float | None
    loss_abs: float
    gradient_norm_relative: float
    clip_coefficient_relative: float
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Whether something was compared and nothing differed by more than its bound."""
        return self.overall is not None and not self.findings

    def report(self) -> Report:
        """The comparison as `mint2m parity compare` shows it."""
        rows = [_row("gradient, overall", self.overall)] if self.overall else []
        rows += [_row(f"gradient, {item.family.value}", item.distance) for item in self.families]
        if self.worst_tensor is not None:
            worst = f"relative L2 {self.worst_tensor.distance.relative_l2:.3g}, {self.worst_tensor.name}"
            rows.append(Requirement(required="gradient, worst tensor", found=worst, standing=Standing.DERIVED))
        figures = (
            ("log-probs, max abs", self.logprob_max_abs),
            ("loss, abs", self.loss_abs),
            ("gradient norm, relative", self.gradient_norm_relative),
            ("clip coefficient, relative", self.clip_coefficient_relative),
        )
        rows += [
            Requirement(required=name, found=f"{value:.3g}", standing=Standing.DERIVED)
            for name, value in figures
            if value is not None
        ]
        names = f"{len(self.missing)} missing, {len(self.extra)} extra"
        rows.append(Requirement(required="the same tensors", found=names, standing=Standing.CHECKED))
        return Report(
            subject=f"{self.candidate} against {self.reference}",
            command="parity compare",
            requirements=tuple(rows),
            findings=self.findings,
            not_checked=("that either side computed what it wrote: copied gradients agree perfectly",),
        )


def family_of(name: str) -> Family:
    """The family of a PEFT tensor name; raises `FindingError` (`parity.name-unknown`)."""
    for mark, family in _MARKS:
        if mark in name:
            return family
    raise FindingError(found("parity.name-unknown", pointer=name))


def compare(reference: Side, candidate: Side, thresholds: Thresholds) -> ParityReport:
    """Every figure and every fault; never raises for what a side holds."""
    r, c = reference.gradients, candidate.gradients
    missing, extra = tuple(sorted(r.keys() - c.keys())), tuple(sorted(c.keys() - r.keys()))
    findings = [found("parity.missing-tensor", file=candidate.name, pointer=name) for name in missing]
    findings += [found("parity.extra-tensor", file=candidate.name, pointer=name) for name in extra]
    findings += [*_not_finite(reference), *_not_finite(candidate)]

    sums: dict[str, _Sums] = {}
    by_family: dict[Family, list[_Sums]] = {}
    for name in sorted(r.keys() & c.keys()):
        if r[name].shape != c[name].shape:
            shapes = str(list(r[name].shape)), str(list(c[name].shape))
            findings.append(
                found("parity.shape-mismatch", file=candidate.name, pointer=name, expected=shapes[0], actual=shapes[1])
            )
            continue
        sums[name] = _sums(r[name], c[name])
        try:
            by_family.setdefault(family_of(name), []).append(sums[name])
        except FindingError as fault:
            findings.append(fault.finding)

    overall = _distance(sums.values()) if sums else None
    families = tuple(
        FamilyDistance(family=family, distance=_distance(by_family[family])) for family in Family if family in by_family
    )
    worst = _worst(sums, overall)
    if overall is None:
        findings.append(found("parity.no-overlap", file=candidate.name))
    else:
        if overall.reference_norm == 0:
            findings.append(found("parity.no-signal", file=reference.name))
        findings += _gate("overall", overall, overall, thresholds, candidate.name)
        for item in families:
            findings += _gate(item.family.value, item.distance, overall, thresholds, candidate.name)
        if worst is not None and thresholds.tensor_relative_l2 is not None:
            limit = thresholds.tensor_relative_l2
            findings += _over(f"{worst.name} relative L2", worst.distance.relative_l2, limit, candidate.name)
        if overall.zero_mask > thresholds.zero_mask:
            findings.append(
                found(
                    "parity.zero-mask-mismatch",
                    file=candidate.name,
                    expected=f"at most {thresholds.zero_mask} elements",
                    actual=str(overall.zero_mask),
                )
            )

    logprob = _logprob_distance(reference, candidate, findings)
    loss = abs(candidate.loss - reference.loss)
    norm = _relative(reference.gradient_norm, candidate.gradient_norm)
    coefficient = _relative(reference.clip_coefficient, candidate.clip_coefficient)
    gates: tuple[tuple[str, float | None, float | None], ...] = (
        ("log-prob max abs", logprob, thresholds.logprob),
        ("loss abs", loss, thresholds.loss),
        ("gradient norm relative", norm, thresholds.gradient_norm),
        ("clip coefficient relative", coefficient, thresholds.clip_coefficient),
    )
    for figure, value, bound in gates:
        if value is not None and bound is not None:
            findings += _over(figure, value, bound, candidate.name)
    for count in ("clipped_low", "clipped_high"):
        want, have = getattr(reference, count), getattr(candidate, count)
        if want != have:
            findings.append(
                found(
                    "parity.clip-count-mismatch",
                    file=candidate.name,
                    pointer=f"/{count}",
                    expected=str(want),
                    actual=str(have),
                )
            )
    return ParityReport(
        reference=reference.name,
        candidate=candidate.name,
        overall=overall,
        families=families,
        worst_tensor=worst,
        logprob_max_abs=logprob,
        loss_abs=loss,
        gradient_norm_relative=norm,
        clip_coefficient_relative=coefficient,
        missing=missing,
        extra=extra,
        findings=tuple(findings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Sums over one tensor, from which the figures of any set of tensors follow."""

    elements: int
    reference_square: float
    candidate_square: float
    product: float
    difference_square: float
    max_abs: float
    zero_mask: int


def _sums(reference: Array, candidate: Array) -> _Sums:
    allowed = rounding(reference.dtype, candidate.dtype)
    r, c = reference.astype(np.float64).ravel(), candidate.astype(np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite has a finding of its own
        difference = c - r
        return _Sums(
            elements=r.size,
            reference_square=float(r @ r),
            candidate_square=float(c @ c),
            product=float(r @ c),
            difference_square=float(difference @ difference),
            max_abs=float(np.abs(difference).max(initial=0.0)),
            zero_mask=_zero_on_one_side(r, c, allowed),
        )


def rounding(reference: np.dtype[np.floating], candidate: np.dtype[np.floating]) -> float:
    """What part of a tensor's largest element may stand against a zero: float64's own only where both sides have it."""
    return ROUNDING_64 if reference == candidate == np.float64 else ROUNDING


def _zero_on_one_side(r: Array, c: Array, allowed: float) -> int:
    """How many elements are exactly zero on one side and more than rounding on the other.

    Two orders of summation may cancel to zero in one and to a last bit in the other, which happens to one element in
    some tens of millions; nothing that did not flow leaves so little.
    """
    size = np.maximum(np.abs(r), np.abs(c))
    return int((((r == 0) != (c == 0)) & ~(size <= allowed * size.max(initial=0.0))).sum())


def _distance(parts: Iterable[_Sums]) -> Distance:
    sums = tuple(parts)
    r = math.sqrt(total(part.reference_square for part in sums))
    c = math.sqrt(total(part.candidate_square for part in sums))
    difference = math.sqrt(total(part.difference_square for part in sums))
    relative = difference / r if r > 0 else (0.0 if difference == 0 else math.inf)
    return Distance(
        tensors=len(sums),
        elements=sum(part.elements for part in sums),
        reference_norm=r,
        candidate_norm=c,
        cosine=total(part.product for part in sums) / (r * c) if r * c > 0 else None,
        relative_l2=relative,
        max_abs=max(part.max_abs for part in sums),
        zero_mask=sum(part.zero_mask for part in sums),
    )


def _worst(sums: Mapping[str, _Sums], overall: Distance | None) -> TensorDistance | None:
    """The tensor with the largest relative L2 among those that weigh enough, the first by name on a tie."""
    worst: TensorDistance | None = None
    for name in sorted(sums):
        distance = _distance((sums[name],))
        if overall is None or _negligible(distance, overall):
            continue
        if worst is None or distance.relative_l2 > worst.distance.relative_l2:
            worst = TensorDistance(name=name, distance=distance)
    return worst


def _negligible(part: Distance, whole: Distance) -> bool:
    """Small on both sides: a candidate that is large where the reference is zero is not excepted."""
    return max(part.reference_norm, part.candidate_norm) <= NEGLIGIBLE * whole.reference_norm


def _gate(subject: str, part: Distance, whole: Distance, thresholds: Thresholds, file: str) -> Iterator[Finding]:
    if part is not whole and _negligible(part, whole):
        return
    if part.cosine is None or not part.cosine >= thresholds.cosine:
        shown = "none: a side is zero" if part.cosine is None else f"{part.cosine:.9f}"
        yield found(
            "parity.threshold-exceeded",
            file=file,
            pointer=f"{subject} cosine",
            expected=f"at least {thresholds.cosine:g}",
            actual=shown,
        )
    yield from _over(f"{subject} relative L2", part.relative_l2, thresholds.relative_l2, file)


def _over(figure: str, value: float, bound: float, file: str) -> Iterator[Finding]:
    if not value <= bound:  # a NaN is over every bound
        yield found(
            "parity.threshold-exceeded",
            file=file,
            pointer=figure,
            expected=f"at most {bound:g}",
            actual=f"{value:.6g}",
        )


def _not_finite(side: Side) -> Iterator[Finding]:
    for name in sorted(side.gradients):
        if not np.isfinite(side.gradients[name]).all():
            yield found("parity.not-finite", file=side.name, pointer=name)
    for index, row in enumerate(side.logprobs):
        if not all(math.isfinite(value) for value in row):
            yield found("parity.not-finite", file=side.name, pointer=f"/responses/{index}")
    for member in ("loss", "gradient_norm", "clip_coefficient"):
        if not math.isfinite(getattr(side, member)):
            yield found("parity.not-finite", file=side.name, pointer=f"/{member}")


def _logprob_distance(reference: Side, candidate: Side, findings: list[Finding]) -> float | None:
    """The largest difference of a log-prob; None, with a finding, where the sides have other tokens or none."""
    want = [len(row) for row in reference.logprobs]
    have = [len(row) for row in candidate.logprobs]
    if want != have or sum(want) == 0:
        expected = str(want) if sum(want) else "at least one token"
        findings.append(
            found(
                "parity.shape-mismatch",
                file=candidate.name,
                pointer="/responses",
                expected=expected,
                actual=str(have),
            )
        )
        return None
    r, c = (
        np.concatenate([*map(np.asarray, reference.logprobs)]),
        np.concatenate([*map(np.asarray, candidate.logprobs)]),
    )
    return float(np.abs(c - r).max())


def _relative(reference: float, candidate: float) -> float:
    if reference == 0:
        return 0.0 if candidate == 0 else math.inf
    return abs(candidate - reference) / abs(reference)


def _row(name: str, distance: Distance) -> Requirement:
    cosine = "none" if distance.cosine is None else f"{distance.cosine:.9f}"
    shown = (
        f"cosine {cosine}, relative L2 {distance.relative_l2:.3g}, max abs {distance.max_abs:.3g}, "
        f"zero mask {distance.zero_mask}, {distance.tensors} tensors"
    )
    return Requirement(required=name, found=shown, standing=Standing.DERIVED)
