"""What a step will change, kept until nobody can want it back.

The rule: parameters and moments return to exactly the bits they had, and a moment that did not exist is gone again.
The tensors stay the same objects: the model, megatron's buffers and the optimizer hold them by reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One parameter and its moments by name, copied; `moments` is None where the optimizer had none."""

    parameter: nn.Parameter
    value: Tensor
    moments: dict[str, Tensor] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """Parameters and optimizer state as they were before a step."""

    kept: tuple[Kept, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> Before:
        """Copies of everything that a step of `optimizer`, or its spreading over ranks, writes to."""
        kept = []
        for parameter in parameters:
            state = optimizer.state.get(parameter)
            moments = None if state is None else {name: value.detach().clone() for name, value in state.items()}
            kept.append(Kept(parameter=parameter, value=parameter.detach().clone(), moments=moments))
        return cls(kept=tuple(kept))

    @torch.no_grad()
    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Put everything back; may be called once, since the moments' copies become the state."""
        for item in self.kept:
            item.parameter.copy_(item.value)
            if item.moments is None:
                optimizer.state.pop(item.parameter, None)
            else:
                optimizer.state[item.parameter] = item.moments
