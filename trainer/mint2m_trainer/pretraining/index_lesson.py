"""What the indexer is taught: to score rows as the attention beside it weighs them.

The rule: attention is the teacher and learns nothing from it. The indexer's scores, as a softmax over the rows of the
text, are held against the attention's weights, averaged over heads and over the layers that share the choice; only the
indexer's own weights get gradient (DeepSeek-V3.2, section 2.1, dense warm-up).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mint2m_trainer.model.glm import PrefixModel
from mint2m_trainer.model.seam import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one layer's attention was given: [T, hidden] after its norm, and the normed query latent [T, q_rank]."""

    hidden: Tensor
    q_latent: Tensor


class Watcher:
    """Takes down what each layer's attention works on during a forward."""

    def __init__(self) -> None:
        self.layers: dict[int, Seen] = {}

    @contextmanager
    def over(self, model: PrefixModel) -> Iterator[Mapping[int, Seen]]:
        """Watch every layer until the block ends."""
        self.layers.clear()
        held: dict[int, Tensor] = {}

        def entered(layer: int, hidden: Tensor) -> None:
            held[layer] = hidden.detach().squeeze(1)

        def compressed(layer: int, q_latent: Tensor) -> None:
            self.layers[layer] = Seen(hidden=held.pop(layer), q_latent=q_latent.detach())

        hooks = []
        for number, layer in enumerate(model.decoder.layers):
            attention = layer.self_attention

            def before(_module: Any, given: tuple[Any, ...], named: dict[str, Any], number: int = number) -> None:
                entered(number, given[0] if given else named["hidden_states"])

            def after(_module: Any, _given: Any, out: Tensor, number: int = number) -> None:
                compressed(number, out)

            hooks.append(attention.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(attention.q_layernorm.register_forward_hook(after))
        try:
            yield self.layers
        finally:
            for hook in hooks:
                hook.remove()


def index_loss(model: PrefixModel, seen: Mapping[int, Seen], passage: Passage, queries: Tensor, ok: Tensor) -> Tensor:
    """Cross entropy of the indexers' scores against the attention's weights, a mean over queries and full layers.

    Args:
        queries: [N] which tokens of the pass ask.
        ok: which tokens of the pass each of them sees, [N, T] bool.
    """
    losses = []
    for layer in seen:
        if not model.spec.full_indexer(layer):
            continue
        indexer = model.decoder.layers[layer].self_attention.indexer
        found = indexer.project(seen[layer].hidden, seen[layer].q_latent, passage.rotation)
        each = torch.einsum("nhw,tw->nht", found.q[queries], found.keys).relu()  # [N, H, T]
        scores = torch.einsum("nht,nh->nt", each, found.weights[queries])  # [N, T]
        logs = scores.masked_fill(~ok, float("-inf")).log_softmax(-1)
        weights = _attention(model, layer, seen, passage, queries, ok)  # [N, T]
        losses.append(-(weights * logs.masked_fill(~ok, 0.0)).sum(-1).mean())
    return torch.stack(losses).mean()


@torch.no_grad()
def _attention(
    model: PrefixModel, full: int, seen: Mapping[int, Seen], passage: Passage, queries: Tensor, ok: Tensor
) -> Tensor:
    """Weights of the layers that go by the choice of layer `full`, averaged over heads and layers, [N, T]."""
    spec, total, layer = model.spec, torch.zeros(ok.shape, device=ok.device), full
    while True:
        attention = model.decoder.layers[layer].self_attention
        q = attention.absorbed_query(seen[layer].q_latent, passage)[queries]  # [N, H, D]
        scores = torch.einsum("nhd,td->nht", q, passage.layers[layer].local) * spec.softmax_scale
        total += scores.masked_fill(~ok[:, None], float("-inf")).softmax(-1).mean(1)
        layer += 1
        if layer == spec.layers or spec.full_indexer(layer):
            return total / (layer - full)
