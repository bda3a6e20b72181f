"""`mint2m sign tree --ray` on a cluster of four nodes of this machine: the signature is the one without a cluster.

Four nodes on two processors cannot show a speed of four. What is noted is the share of the bytes that each node hashed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.cluster import ray_machines as subject
from mint2m_trainer.cluster.ray_machines import RayMachines, ray_machines
from mint2m_trainer.cluster.spread_hash import Answer, hash_spread
from mint2m_verify.elsewhere import list_files
from mint2m_verify.tree import hash_tree
from mint2m_verify.walk import Hashing, read_tree

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NODES = 4
FILES, SIZE = 48, 8 << 20


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Four nodes of one processor each, on loopback, stopped by their own handles."""
    for name, value in {
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        # A machine that runs other tests beside starts nodes slowly.
        "RAY_gcs_server_request_timeout_seconds": "300",
        "RAY_raylet_start_wait_time_s": "300",
    }.items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        connect=False,
        head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False},
    )
    for _ in range(NODES - 1):
        made.add_node(num_cpus=1, object_store_memory=80 << 20)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(FILES):
        (root / f"{number:02}").write_bytes(os.urandom(SIZE))
    return root


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mint2m_trainer.cluster.spread_hash._BATCH_BYTES", SIZE)


def test_four_nodes_share_the_work_and_come_to_the_tree_of_one_machine(
    cluster: Any, tree: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    shares: Counter[str] = Counter()
    genuine = RayMachines.next_answer

    def counting(self: RayMachines) -> Answer:
        answer = genuine(self)
        shares[answer.machine] += sum(hashed.file.size for hashed in answer.hashed)
        return answer

    monkeypatch.setattr(RayMachines, "next_answer", counting)
    with ray_machines(cluster.address) as machines:
        elsewhere = hash_spread(machines, tree)
    snapshot = read_tree(tree, keep=lambda _: 0, hashing=Hashing(elsewhere=elsewhere))
    assert tuple(file.entry for file in snapshot.files) == hash_tree(tree)
    assert all(file.elsewhere for file in snapshot.files)
    record_property("shares", json.dumps(sorted(shares.values())))
    assert sum(shares.values()) == FILES * SIZE
    assert len(shares) == NODES
    # A node that had nothing to do while others worked would stand far below its quarter.
    assert min(shares.values()) >= FILES * SIZE / NODES / 3


def test_a_node_that_dies_in_the_middle_costs_no_digest(
    cluster: Any, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Answer] = []
    genuine = RayMachines.next_answer

    def watching(self: RayMachines) -> Answer:
        answer = genuine(self)
        lost.extend([answer] if answer.lost else [])
        return answer

    def slowly(root: str, files: Any) -> Any:
        time.sleep(0.5)
        return subject._hash(root, files)

    monkeypatch.setattr(RayMachines, "next_answer", watching)
    victim = cluster.list_all_nodes()[-1]
    with ray_machines(cluster.address) as machines:
        monkeypatch.setattr(subject, "_hash", slowly)
        killer = threading.Timer(3.0, lambda: cluster.remove_node(victim, allow_graceful=False))
        killer.start()
        elsewhere = hash_spread(machines, tree)
        killer.join()
    assert lost, "the node died too late to matter"
    assert sorted(elsewhere) == [file.path for file in list_files(tree)]
    snapshot = read_tree(tree, keep=lambda _: 0, hashing=Hashing(elsewhere=elsewhere))
    assert tuple(file.entry for file in snapshot.files) == hash_tree(tree)
