"""Rotary positions from explicit 64-bit integers, as Hugging Face's `glm_moe_dsa` computes them.

A token's angle depends on its global position only, never on where it stands in a chunk or on which rank, so
every layout rotates alike. The angle's dtype is a choice of the profile: float32 as Hugging Face does (at two
million tokens off by 0.06 rad), or float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mint2m_trainer.model.spec import ModelSpec, Yarn

AngleDtype = Literal["float32", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Cosine and sine of each token's angles, both [T, rope_width / 2]."""

    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Rotate interleaved pairs (x0, x1), (x2, x3), …; halves come out concatenated as in Hugging Face.

        Args:
            x: [T, D] or [T, H, D].
        """
        cos, sin = self.cos, self.sin
        if x.dim() == 3:
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [T, 1, D/2]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1)


class RotaryTable:
    """Makes the rotations of one model."""

    def __init__(self, spec: ModelSpec, angle_dtype: AngleDtype) -> None:
        self._dtype = {"float32": torch.float32, "float64": torch.float64}[angle_dtype]
        self._frequency = inverse_frequencies(spec, self._dtype)
        self._magnitude = 1.0 if spec.yarn is None else spec.yarn.attention_factor

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation of tokens at `positions` [T], int64, for activations of `dtype`."""
        if positions.dtype != torch.int64:
            raise TypeError(f"positions are int64, not {positions.dtype}")
        frequency = self._frequency.to(positions.device)
        angles = positions.to(self._dtype)[:, None] * frequency[None, :]  # [T, D/2]
        return Rotation(
            cos=(angles.cos() * self._magnitude).to(dtype),
            sin=(angles.sin() * self._magnitude).to(dtype),
        )


def inverse_frequencies(spec: ModelSpec, dtype: torch.dtype) -> Tensor:
    """Angle per position of each rotated pair, [rope_width / 2]."""
    width = spec.rope_width
    exponent = torch.arange(0, width, 2, dtype=dtype) / width
    extrapolated = 1.0 / (spec.rope_theta**exponent)
    if spec.yarn is None:
        return extrapolated
    interpolated = 1.0 / (spec.yarn.factor * spec.rope_theta**exponent)
    low, high = _correction_range(spec.yarn, width, spec.rope_theta)
    ramp = (torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)
    keep = (1 - ramp.clamp(0, 1)).to(dtype)  # 1 where the frequency is kept, 0 where it is stretched
    return interpolated * (1 - keep) + extrapolated * keep


def _correction_range(yarn: Yarn, width: int, theta: float) -> tuple[float, float]:
    """The pairs between which YaRN blends, after arXiv 2309.00071, section 3.2."""

    def pair(rotations: float) -> float:
        return (width * math.log(yarn.original_max_position_embeddings / (rotations * 2 * math.pi))) / (
            2 * math.log(theta)
        )

    low, high = pair(yarn.beta_fast), pair(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    return low, high + 0.001 if low == high else high
