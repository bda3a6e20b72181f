"""The gradient of a step's earlier prompts, put into the gradient of this one.

The rule: it is added once, after the ranks' own parts are summed, and to the whole gradient: added before, the
reduction would count it once a rank. What all ranks add together is the whole file, bit for bit: no rank's expert is
left out, and nothing of the file belongs to no parameter. Runs of a step go in one order, so the sum has one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from mint2m_trainer import evidence
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.model.policy import Policy
from mint2m_trainer.rank_inputs import UpdateError


def load_gradient(path: Path, policy: Policy, comm: Comm, phase: str) -> tuple[Mapping[str, Tensor], str]:
    """This rank's part of the gradient in `path` by PEFT name, and the digest of all ranks' parts; a collective.

    Raises:
        UpdateError: a tensor is missing, of no parameter, or of another shape or dtype than its parameter's gradient.
    """

    def mine() -> tuple[dict[str, Tensor], str]:
        given = load(path.read_bytes())
        part = {}
        for name, gradient in policy.local_gradients():
            if name not in given:
                raise UpdateError(f"{path.name} has no {name}")
            part[name] = given[name]
            want, have = (gradient.shape, gradient.dtype), (part[name].shape, part[name].dtype)
            if want != have:
                raise UpdateError(
                    f"{name} of {path.name}: expected {list(want[0])} {want[1]}, got {list(have[0])} {have[1]}"
                )
        return part, evidence.tensors_sha256(given)

    made = comm.together(phase, mine)
    if made is None:
        raise UpdateError(f"nothing was read of {path.name}")
    part, want = made
    held = evidence.tensors_sha256(policy.gather(part, phase))
    if held != want:
        raise UpdateError(f"all ranks together hold another gradient than {path.name}: {held}, not {want}")
    return part, held


@torch.no_grad()
def add_gradient(path: Path, policy: Policy, comm: Comm, phase: str) -> str:
    """Add the gradient in `path` to the reduced one; the digest of what was added. Raises as `load_gradient`."""
    start, digest = load_gradient(path, policy, comm, phase)
    for name, gradient in policy.local_gradients():
        gradient.add_(start[name].to(gradient.device))
    return digest
