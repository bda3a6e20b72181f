"""How `mint2m sign tree --ray` scales: one tree hashed by clusters of 1, 2 and 4 nodes of one processor each.

    python tests/benchmarks/bench_spread.py [--nodes 1 2 4] [--files N] [--file MIB] [--rounds N] [--folder DIR]

All nodes are on this machine, so that no more than its processors can work at once: the rate should grow with the nodes
up to that number and then stay. In each round every cluster hashes the tree after a first pass, which starts the
nodes' workers, and this machine alone hashes it beside, with all its processors. Told are medians by the clock,
relative to one node and to this machine. Exits 1 where two nodes do not reach 1.5 times one, where there are processors
for both, or where more nodes than processors lose a quarter of that.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

GROWS, KEEPS = 1.5, 0.75

SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}


def seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def measure(nodes: int, tree: Path, rounds: int) -> tuple[float, float]:
    """Median seconds of a cluster, and of this machine in the same rounds; every digest is compared once."""
    from ray.cluster_utils import Cluster

    from mint2m_trainer.cluster.ray_machines import ray_machines
    from mint2m_trainer.cluster.spread_hash import hash_spread
    from mint2m_verify.tree import hash_tree

    cluster = Cluster(
        initialize_head=True,
        connect=False,
        head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False},
    )
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        cluster.wait_for_nodes()
        with ray_machines(cluster.address) as machines:
            first = hash_spread(machines, tree)
            want = {entry.path: entry.sha256 for entry in hash_tree(tree)}
            if {path: file.digests.sha256 for path, file in first.items()} != want:
                raise SystemExit("the cluster came to other digests")
            there, here = [], []
            for _ in range(rounds):
                there.append(seconds(lambda: hash_spread(machines, tree)))
                here.append(seconds(lambda: hash_tree(tree)))
    finally:
        cluster.shutdown()
    return statistics.median(there), statistics.median(here)


def main(arguments: argparse.Namespace, tree: Path) -> int:
    for number in range(arguments.files):
        (tree / f"{number:04}").write_bytes(os.urandom(arguments.file << 20))
    size = arguments.files * (arguments.file << 20)
    processors = len(os.sched_getaffinity(0))
    rates: dict[int, float] = {}
    print(f"{size / 1e9:.2f} GB in {arguments.files} files, {processors} processors")
    for nodes in arguments.nodes:
        there, here = measure(nodes, tree, arguments.rounds)
        rates[nodes] = here / there  # relative to this machine in the same rounds: what else runs slows both
        print(
            f"{nodes} nodes: {size / there / 1e9:.2f} GB/s, {rates[nodes]:.2f} of this machine alone, "
            f"{rates[nodes] / rates[arguments.nodes[0]]:.2f} of {arguments.nodes[0]} node",
            flush=True,
        )
    grows = processors < 2 or not {1, 2} <= rates.keys() or rates[2] >= GROWS * rates[1]
    most = max((rate for nodes, rate in rates.items() if nodes <= processors), default=0.0)
    keeps = all(rate >= KEEPS * most for nodes, rate in rates.items() if nodes > processors)
    return 0 if grows and keeps else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--file", type=int, default=32, metavar="MIB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    os.environ.update(SETTINGS)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as place:
        raise SystemExit(main(chosen, Path(place)))
