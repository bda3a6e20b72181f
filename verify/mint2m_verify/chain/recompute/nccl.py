"""The collectives stage: what every rank received against what every rank must have sent."""

from __future__ import annotations

import numpy as np

from mint2m_verify.chain import collective_cases as cases
from mint2m_verify.chain.numbers import Number
from mint2m_verify.chain.recompute.evidence import Evidence, Recomputation
from mint2m_verify.finding import FindingError, found

#: Ranks that had arrived, as each rank saw it after the barrier, [1].
BARRIER = "barrier"


def rank_file(rank: int) -> str:
    """Where a rank's results lie, below the stage's tree."""
    return f"rank-{rank}.safetensors"


def recompute(evidence: Evidence) -> Recomputation:
    """Values that differ from the right ones over all ranks and operations, and ranks missed by a barrier."""
    world, wrong, checked, missing, seen = evidence.world_size, 0, 0, 0.0, 0
    for rank in range(world):
        path = f"{evidence.tree}{rank_file(rank)}"
        right = cases.expected(rank, world_size=world, execution_id=evidence.execution_id)
        try:
            have = evidence.tensors(path)
        except FindingError as fault:
            yield fault.finding
            wrong += sum(value.size for value in right.values())
            continue
        seen += 1
        names = {*right, BARRIER}
        if have.keys() != names or any(have[name].shape != right[name].shape for name in right):
            yield found(
                "chain.artifact-shape",
                stage="nccl",
                file=path,
                expected=str({name: list(right[name].shape) for name in right} | {BARRIER: [1]}),
                actual=str({name: list(tensor.shape) for name, tensor in have.items()}),
            )
            wrong += sum(value.size for value in right.values())
            continue
        for name, value in right.items():
            wrong += int(np.count_nonzero(have[name] != value))
            checked += 1
        missing += abs(world - float(have[BARRIER].reshape(-1)[0]))
        checked += 1
    return (
        Number(name="collectives.ranks", value=float(seen), standing="checked"),
        Number(name="collectives.checked", value=float(checked), standing="derived"),
        Number(name="collectives.mismatches", value=float(wrong), standing="derived"),
        Number(name="barrier.missing", value=missing, standing="attested-only"),
    )
