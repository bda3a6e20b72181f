"""Numbers that are no numbers, found where they arise.

The rule: nothing that is NaN or infinite goes on. A NaN in one rank's gradient is in every rank's after the reduction,
and in every weight after the step; afterwards nobody can say where it came from.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class NonFiniteError(RuntimeError):
    """A value that is NaN or infinite; names the tensor and the first such place."""


@torch.no_grad()
def check_finite(kind: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse the first tensor, of any shape, with a value that is not finite.

    Raises:
        NonFiniteError: naming `kind` and the tensor.
    """
    for name, tensor in tensors:
        wrong = ~torch.isfinite(tensor)
        count = int(wrong.sum())
        if count:
            place = torch.nonzero(wrong)[0].tolist()
            value = float(tensor[tuple(place)])
            raise NonFiniteError(f"{kind} {name}: {count} of {tensor.numel()} not finite, first {value} at {place}")
