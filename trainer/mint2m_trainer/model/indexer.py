"""The lightning indexer: which rows a query attends to (DeepSeek-V3.2; GLM-5 rotates it interleaved).

It runs without autograd, and is frozen but where `pretraining` teaches it. Its head weights stay float32 in a bfloat16
model, because they decide between rows whose scores are close.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mint2m_trainer.model.position import Rotation
from mint2m_trainer.model.spec import ModelSpec

#: Epsilon of the key norm; a constant in Hugging Face's model, not a member of its configuration.
KEY_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexQuery:
    """One pass through the indexer's projections: q [T, H, W], weights [T, H] with the scale, keys [T, W]."""

    q: Tensor
    weights: Tensor
    keys: Tensor


class Indexer(nn.Module):
    """Projections of one full-indexer layer, under Hugging Face's names."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self._heads, self._width, self._rotated = spec.index_heads, spec.index_width, spec.rope_width
        self.wq_b = nn.Linear(spec.q_rank, spec.index_heads * spec.index_width, bias=False, dtype=dtype)
        self.wk = nn.Linear(spec.hidden, spec.index_width, bias=False, dtype=dtype)
        self.k_norm = nn.LayerNorm(spec.index_width, eps=KEY_NORM_EPS, dtype=dtype)
        self.weights_proj = nn.Linear(spec.hidden, spec.index_heads, bias=False, dtype=dtype)

    @torch.no_grad()
    def forward(self, hidden: Tensor, q_latent: Tensor, rotation: Rotation) -> IndexQuery:
        """`project`, without autograd: selection has no gradient."""
        return self.project(hidden, q_latent, rotation)

    def project(self, hidden: Tensor, q_latent: Tensor, rotation: Rotation) -> IndexQuery:
        """Project tokens.

        Args:
            hidden: layer input after its norm, [T, hidden].
            q_latent: normed query latent, [T, q_rank].
        """
        q = self.wq_b(q_latent).view(-1, self._heads, self._width)  # [T, H, W]
        keys = self.k_norm(self.wk(hidden))  # [T, W]
        weights = self.weights_proj(hidden.to(self.weights_proj.weight.dtype))  # [T, H]
        return IndexQuery(
            q=self._rotate(q, rotation),
            weights=weights * (self._heads**-0.5 * self._width**-0.5),
            keys=self._rotate(keys, rotation),
        )

    def _rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        return torch.cat([rotation.apply(x[..., : self._rotated]), x[..., self._rotated :]], dim=-1)
