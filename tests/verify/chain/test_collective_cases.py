"""What ranks must receive, worked out one value at a time."""

from __future__ import annotations

import numpy as np

from mint2m_verify.chain.collective_cases import OPERATIONS, WIDTH, expected, payload

EXECUTION = "3" * 64


def test_each_rank_receives_what_the_operation_says_value_by_value() -> None:
    world = 3
    sent = {
        operation: [payload(operation, r, world_size=world, execution_id=EXECUTION) for r in range(world)]
        for operation in OPERATIONS
    }
    for rank in range(world):
        right = expected(rank, world_size=world, execution_id=EXECUTION)
        for column in (0, 17, WIDTH - 1):
            for row in range(world):
                assert right["all-to-all"][row, column] == sent["all-to-all"][row][rank, column]
                assert right["all-reduce"][row, column] == sum(s[row, column] for s in sent["all-reduce"])
                for source in range(world):
                    assert right["all-gather"][source, row, column] == sent["all-gather"][source][row, column]
            assert right["reduce-scatter"][column] == sum(s[rank, column] for s in sent["reduce-scatter"])


def test_no_two_ranks_operations_or_executions_send_the_same() -> None:
    sent = [
        payload(operation, rank, world_size=2, execution_id=execution).tobytes()
        for operation in OPERATIONS
        for rank in (0, 1)
        for execution in (EXECUTION, "4" * 64)
    ]
    assert len(set(sent)) == len(sent)


def test_sums_are_exact_in_float32_too() -> None:
    values = expected(0, world_size=64, execution_id=EXECUTION)["all-reduce"]
    assert np.array_equal(values, values.astype(np.float32)) and values.max() > 1 << 16
