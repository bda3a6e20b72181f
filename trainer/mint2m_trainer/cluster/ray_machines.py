"""An operator's Ray cluster as machines that hash: a Ray task for each batch, pinned to a node that has the files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mint2m_trainer.cluster.ray_session import connect, ray_silenced
from mint2m_trainer.cluster.spread_hash import Answer, Batch
from mint2m_verify.elsewhere import HashedElsewhere, Listed, hash_there, list_files

#: Seconds in which every node must have listed the tree; a node that does not is not asked to hash.
_LISTING_S = 300.0

#: Batches that wait on a node beside those in work, so that none is idle while the next is on its way.
_WAITING = 1


@contextmanager
def ray_machines(address: str) -> Iterator[RayMachines]:
    """The cluster at `address`, which goes on when this is over; raises `FindingError` (`ray.start-failed`)."""
    import ray

    with ray_silenced():
        connect(address, f"mint2m-hash-{secrets.token_hex(8)}")
        try:
            yield RayMachines()
        finally:
            ray.shutdown()


class RayMachines:
    """Nodes by Ray's node id. A node that Ray calls dead takes no more work, and what it had is lost."""

    def __init__(self) -> None:
        self._out: dict[Any, tuple[str, Batch]] = {}  # by Ray's reference to the answer
        self._room = {id: cpus + _WAITING for id, cpus in _nodes().items()}

    def listings(self, root: Path) -> Mapping[str, tuple[Listed, ...]]:
        import ray

        asked = {_on(node, _list).remote(str(root)): node for node in self._room}
        if not asked:
            return {}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_LISTING_S)
        seen: dict[str, tuple[Listed, ...]] = {}
        for reference in ready:
            try:
                seen[asked[reference]] = ray.get(reference)
            except ray.exceptions.RayError:
                continue
        return seen

    def room(self) -> Mapping[str, int]:
        return {node: self._room[node] - self._busy(node) for node in _nodes() if node in self._room}

    def hand_out(self, machine: str, root: Path, batch: Batch) -> None:
        reference = _on(machine, _hash).remote(str(root), batch.files)
        self._out[reference] = (machine, batch)

    def next_answer(self) -> Answer:
        import ray

        (reference,), _ = ray.wait(list(self._out), num_returns=1)
        machine, batch = self._out.pop(reference)
        try:
            return Answer(machine=machine, batch=batch, hashed=ray.get(reference))
        except ray.exceptions.RayError:  # the node, its worker or the task: whatever it was, nothing was hashed
            return Answer(machine=machine, batch=batch, lost=True)

    def _busy(self, node: str) -> int:
        return sum(machine == node for machine, _ in self._out.values())


def _nodes() -> dict[str, int]:
    """Live nodes that have processors to give, and how many."""
    import ray

    return {
        str(node["NodeID"]): int(node["Resources"]["CPU"])
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    }


def _on(node: str, function: Any) -> Any:
    """`function` as a task of one processor of `node`, tried once: who is told of a loss decides what follows."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(function).options(num_cpus=1, max_retries=0, scheduling_strategy=strategy)


def _list(root: str) -> tuple[Listed, ...]:
    return list_files(Path(root))


def _hash(root: str, files: tuple[Listed, ...]) -> tuple[HashedElsewhere, ...]:
    answers = (hash_there(Path(root), file) for file in files)
    return tuple(answer for answer in answers if answer is not None)
