"""Log-probabilities of given tokens, a tile of tokens at a time.

`log_softmax` in float32 (float64 in a float64 run) of the same logits that a full head would give, then `gather`;
no more than one tile's [t, V] exists, in forward and in backward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def selected_logprobs(project: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, tile_tokens: int) -> Tensor:
    """log p(target) of each token, [T].

    Args:
        project: hidden states [t, hidden] to logits [t, V].
        hidden: [T, hidden], after the final norm.
        targets: [T] int64.
        tile_tokens: tokens whose logits exist at once.
    """
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32

    def tile(part: Tensor, wanted: Tensor) -> Tensor:
        logits = project(part).to(exact)  # [t, V]
        return torch.log_softmax(logits, dim=-1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1)

    parts = []
    for part, wanted in zip(hidden.split(tile_tokens), targets.split(tile_tokens), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(tile, part, wanted, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(tile(part, wanted))
    return torch.cat(parts)
