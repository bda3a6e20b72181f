"""What each rank sends in the collectives stage, and what each must receive.

The rule: payloads are small integers made from the execution, the operation and the rank, so every sum is exact in any
order and no rank can know another's payload but by receiving it from this execution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

OPERATIONS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")

#: Values that each rank contributes for each rank.
WIDTH = 64


def payload(operation: str, rank: int, *, world_size: int, execution_id: str) -> F64:
    """What `rank` puts in, [world_size, WIDTH]: row r is what concerns rank r."""
    digest = hashlib.sha256(f"mint2m.collective/v1\n{execution_id}\n{operation}\n{rank}".encode()).digest()
    words = np.asarray(np.random.PCG64(int.from_bytes(digest, "big")).random_raw(world_size * WIDTH), dtype=np.uint64)
    return (words >> np.uint64(48)).astype(np.float64).reshape(world_size, WIDTH)


def expected(rank: int, *, world_size: int, execution_id: str) -> Mapping[str, F64]:
    """What `rank` must hold after each operation, by its name.

    `all-gather` [world_size, world_size, WIDTH] and `all-to-all` [world_size, WIDTH] in rank order; `all-reduce`
    [world_size, WIDTH] and `reduce-scatter` [WIDTH] are sums over ranks.
    """
    sent = {
        operation: np.stack(
            [payload(operation, r, world_size=world_size, execution_id=execution_id) for r in range(world_size)]
        )
        for operation in OPERATIONS
    }
    return {
        "all-gather": sent["all-gather"],
        "all-reduce": sent["all-reduce"].sum(axis=0),
        "reduce-scatter": sent["reduce-scatter"].sum(axis=0)[rank],
        "all-to-all": sent["all-to-all"][:, rank],
    }
