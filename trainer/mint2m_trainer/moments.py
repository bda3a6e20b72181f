"""Adam's moments of an earlier run, put into the optimizer of this one.

The rule: what all ranks hold afterwards is the whole file, bit for bit: no rank's expert keeps zeros, and nothing of
the file belongs to no parameter. The file is safetensors, so nothing of it is executed; a checkpoint's metadata is a
pickle, and is not opened.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load

from mint2m_trainer import evidence
from mint2m_trainer.checkpoint import MOMENTS
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.model.policy import Policy
from mint2m_trainer.optimizer import AdamWStep
from mint2m_trainer.rank_inputs import UpdateError


def load_moments(path: Path, steps: int, optimizer: AdamWStep, policy: Policy, comm: Comm, phase: str) -> str:
    """Make the optimizer one that has taken `steps` steps; a collective.

    Args:
        path: `NAME.exp_avg` and `NAME.exp_avg_sq` of every parameter of all ranks, by PEFT name.

    Returns:
        The digest of the tensors, as all ranks hold them now.

    Raises:
        OptimizerError: a moment is missing, or of another shape or dtype than its parameter.
        UpdateError: the file holds a moment of no parameter.
    """

    def mine() -> str:
        given = load(path.read_bytes())
        names = {f"{name}.{moment}" for name in optimizer.names for moment in MOMENTS}
        optimizer.load_state({name: value for name, value in given.items() if name in names}, steps=steps)
        return evidence.tensors_sha256(given)

    want = comm.together(phase, mine)
    held = evidence.tensors_sha256(policy.gather(optimizer.state_tensors(), phase))
    if held != want:
        raise UpdateError(f"all ranks together hold other moments than {path.name}: {held}, not {want}")
    return held
