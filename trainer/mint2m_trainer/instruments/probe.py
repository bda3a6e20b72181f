"""A bounded look at the gradient: a few elements and the norm of every tensor, the same ones wherever it lies.

The rule: which elements are looked at follows from the tensor's global name and size alone, so two runs, two layouts
and two machines look at the same ones, and nobody can choose elements that agree. The probe is a witness that gradients
are wired to their parameters; it does not replace a comparison of the whole gradient, and says how little it saw.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from mint2m_trainer.instruments.faults import InstrumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedTensor:
    """One tensor: its element count, the flat positions looked at (ascending) with their values, and its L2 norm."""

    name: str
    elements: int
    positions: tuple[int, ...]
    values: tuple[float, ...]
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientProbe:
    """All probed tensors by name; `elements` and `looked_at` say how much of the gradient this is."""

    tensors: tuple[ProbedTensor, ...]

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def looked_at(self) -> int:
        return sum(len(tensor.positions) for tensor in self.tensors)

    @property
    def norm(self) -> float:
        """L2 norm of the whole gradient, from every element."""
        return math.sqrt(sum(tensor.norm**2 for tensor in self.tensors))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDifference:
    """A tensor in which two probes differ, and by how much relative to the larger norm of the two."""

    name: str
    reason: str
    relative: float


def probe_gradient(gradients: Mapping[str, Tensor], *, per_tensor: int, limit: int) -> GradientProbe:
    """Probe finalized gradients.

    Args:
        gradients: by global name, in any layout of memory; float32 or float64.
        per_tensor: elements looked at in each, fewer where it has fewer.
        limit: the most elements in all; past it the probe is refused and not thinned out.

    Raises:
        InstrumentError: no gradient, more than `limit`, or an element that is not finite, with its place.
    """
    if per_tensor < 1 or not gradients:
        raise InstrumentError(f"a probe needs a gradient and an element of each, not {len(gradients)} and {per_tensor}")
    total = sum(min(per_tensor, tensor.numel()) for tensor in gradients.values())
    if total > limit:
        raise InstrumentError(f"the probe would keep {total} elements, at most {limit} are allowed")
    return GradientProbe(tensors=tuple(_probe(name, gradients[name], per_tensor) for name in sorted(gradients)))


def probed_positions(name: str, elements: int, count: int) -> tuple[int, ...]:
    """`count` distinct flat positions of a tensor, ascending: SHA-256 of name and a counter, modulo the size."""
    if count >= elements:
        return tuple(range(elements))
    chosen: set[int] = set()
    turn = 0
    while len(chosen) < count:
        digest = hashlib.sha256(f"{name}\0{turn}".encode()).digest()
        chosen.add(int.from_bytes(digest[:8], "big") % elements)
        turn += 1
    return tuple(sorted(chosen))


def differing(left: GradientProbe, right: GradientProbe, *, relative: float) -> tuple[ProbeDifference, ...]:
    """Tensors that are in one probe only, have another size, or differ in a value or the norm by more than
    `relative` times the larger norm; the largest difference first."""
    if not left.tensors or not right.tensors:
        raise InstrumentError("a probe of nothing agrees with everything")
    ours = {tensor.name: tensor for tensor in left.tensors}
    others = {tensor.name: tensor for tensor in right.tensors}
    found = [
        ProbeDifference(name=name, reason="in one probe only", relative=math.inf)
        for name in sorted(ours.keys() ^ others.keys())
    ]
    for name in sorted(ours.keys() & others.keys()):
        found += _compare(ours[name], others[name], relative)
    return tuple(sorted(found, key=lambda difference: -difference.relative))


def _probe(name: str, gradient: Tensor, count: int) -> ProbedTensor:
    flat = gradient.detach().reshape(-1)
    if flat.numel() == 0:
        raise InstrumentError(f"{name} has no elements")
    norm = float(flat.double().square().sum().sqrt())
    if not math.isfinite(norm):
        raise InstrumentError(f"{name} holds a gradient that is not finite")
    positions = probed_positions(name, flat.numel(), count)
    return ProbedTensor(
        name=name,
        elements=flat.numel(),
        positions=positions,
        values=tuple(float(flat[position]) for position in positions),
        norm=norm,
    )


def _compare(left: ProbedTensor, right: ProbedTensor, relative: float) -> Iterable[ProbeDifference]:
    if (left.elements, left.positions) != (right.elements, right.positions):
        yield ProbeDifference(name=left.name, reason="another size or other elements", relative=math.inf)
        return
    scale = max(left.norm, right.norm)
    if scale == 0:
        return
    by_value = max(abs(a - b) for a, b in zip(left.values, right.values, strict=True)) / scale
    by_norm = abs(left.norm - right.norm) / scale
    if max(by_value, by_norm) > relative:
        reason = "a value" if by_value >= by_norm else "the norm"
        yield ProbeDifference(name=left.name, reason=reason, relative=max(by_value, by_norm))
