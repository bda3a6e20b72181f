"""One token from its logits.

The rule: the draw is a function of the logits, the parameters and one number, in float64 and in one order of tokens
(probability descending, id ascending), so that no device's sort or sum decides. Temperature, top-k and top-p shape
what is drawn from and nothing else: the log-prob that is kept is that of the policy itself, as the trainer scores it,
because the ratio of an update is between two policies and knows nothing of how a token was picked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mint2m_verify.documents.sampling import SamplingParameters


def draw(logits: Tensor, parameters: SamplingParameters, number: float) -> int:
    """The token that `number` in [0, 1) picks.

    Args:
        logits: [V], finite or `-inf`.
        parameters: temperature 0 takes the most likely token, of equal ones the lowest, whatever `number` is.
    """
    exact = logits.detach().to("cpu", torch.float64)  # [V]
    values, ids = exact.sort(descending=True, stable=True)  # [V] twice; equal logits keep ascending ids
    if parameters.temperature == 0.0:
        return int(ids[0])
    kept = len(ids) if parameters.top_k is None else min(parameters.top_k, len(ids))
    chance = torch.softmax(values[:kept] / parameters.temperature, dim=0)  # [k] descending
    below = chance.cumsum(0)  # [k], ascending
    if parameters.top_p < 1.0:
        # As few tokens as reach top_p together: those before which less than top_p lies.
        kept = max(int((below - chance < parameters.top_p).sum()), 1)
        below = below[:kept]
    place = torch.searchsorted(below, below.new_tensor([number]) * below[-1], right=True)
    return int(ids[min(int(place), kept - 1)])


def policy_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log p of `tokens` [T] under logits [T, V], as `model.head` scores them: the policy's, not the sampler's."""
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return torch.log_softmax(logits.to(exact), dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)  # [T]
