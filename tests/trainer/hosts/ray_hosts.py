"""An operator's Ray on the hosts of a network: the head on the first, a worker on each, no resources on the last.

The rule: each host's Ray has the address, the resources and the directory of that host, as on machines of their own.
The driver's host is a Ray node too, since a driver needs one beside it, and advertises nothing that a plan could use.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import network
from network import Host, Network

from mint2m_verify.plan import image_resource

HERE = Path(__file__).resolve().parent
RAY = Path(sys.executable).with_name("ray")
PORT = 6379

#: An image that no registry has; each host advertises it and none runs it: the reference class has no containers.
IMAGE_DIGEST = f"sha256:{hashlib.sha256(b'image').hexdigest()}"
IMAGE_RESOURCE = image_resource(IMAGE_DIGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one host advertises beside its address."""

    cpus: int
    accelerators: int
    image: str | None = IMAGE_RESOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One Ray node: where it runs, with what, and the process that was started for it."""

    host: Host
    offer: Offer
    process: subprocess.Popen[bytes]


@dataclass(slots=True, kw_only=True)
class RayHosts:
    """Ray running on a network; `nodes` are those that were started, by name."""

    network: Network
    folder: Path
    environment: Mapping[str, str]
    offers: Sequence[Offer]
    nodes: dict[str, Node] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def address(self) -> str:
        return f"{self.hosts[0].ip}:{PORT}"

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Those that ranks may run on."""
        return self.network.hosts[:-1]

    @property
    def operator(self) -> Host:
        """The one on which `mint2m` is called."""
        return self.network.hosts[-1]

    def up(self, patience_s: float) -> None:
        """The head, then all others, each in Ray's table before the next step; raises `RuntimeError`."""
        self.start(self.hosts[0], self.offers[0])
        self._joined(patience_s)
        for host, offer in zip(self.hosts[1:], self.offers[1:], strict=True):
            self.start(host, offer)
        self.start(self.operator, Offer(cpus=0, accelerators=0, image=None))
        self._joined(patience_s)

    def restart(self, patience_s: float = 600) -> None:
        """Every host as after a power cut: nothing runs on it, and a new Ray comes up at the old address."""
        for host in self.network.hosts:
            network.clear(host)
        self.nodes.clear()
        self.up(patience_s)

    def start(self, host: Host, offer: Offer) -> None:
        """A Ray node on `host`, beside those that are there already."""
        head = host is self.hosts[0] and not any(node.host is host for node in self.nodes.values())
        here = self.folder / f"{host.name}-{next(self.numbers)}"
        here.mkdir()
        resources = {} if offer.image is None else {offer.image: 1}
        words: list[object] = [RAY, "start", "--block", "--node-ip-address", host.ip, "--temp-dir", here]
        words += ["--head", "--port", PORT, "--include-dashboard", "false"] if head else ["--address", self.address]
        words += ["--num-cpus", offer.cpus, "--num-gpus", offer.accelerators, "--resources", json.dumps(resources)]
        words += ["--object-store-memory", 80 << 20, "--disable-usage-stats"]
        words += ["--min-worker-port", 0, "--max-worker-port", 0] if host.init is None else []
        process = self.network.start(host, words, log=self.folder / "ray.log", environment=self.environment)
        self.nodes[here.name] = Node(host=host, offer=offer, process=process)

    def mint2m(self, *words: object, driver: Sequence[object] = ("-m", "mint2m")) -> subprocess.Popen[str]:
        """`mint2m` on the operator's host."""
        return subprocess.Popen(
            self.operator.command([sys.executable, *driver, *words]),
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def alive(self, *, at_least: int = 0, patience_s: float = 60) -> list[dict[str, Any]]:
        """Ray's records of live nodes, by a client on the operator's host, once there are `at_least` so many."""
        words = ("-c", _NODES, self.address, at_least, patience_s)
        done = self.mint2m(driver=words)
        output, errors = done.communicate(timeout=patience_s + 60)
        if done.returncode:
            raise RuntimeError(errors)
        records: list[dict[str, Any]] = json.loads(output)
        return records

    def _joined(self, patience_s: float) -> None:
        """Wait for every node, starting again what gave up: Ray gives itself 30 s, which a busy machine exceeds."""
        deadline = time.monotonic() + patience_s
        while len(records := self.alive(at_least=len(self.nodes), patience_s=20)) < len(self.nodes):
            if time.monotonic() > deadline:
                words = (self.folder / "ray.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"Ray is up on {[record['ip'] for record in records]} only: {words}")
            for name, node in list(self.nodes.items()):
                if node.process.poll() is not None:
                    del self.nodes[name]
                    self.start(node.host, node.offer)


def verify(directory: Path, key: Path) -> dict[str, Any]:
    """The auditor's report, made on a machine that is none of the hosts."""
    words = ["verify", "run", str(directory), "--key", str(key), "--format", "json"]
    done = subprocess.run([sys.executable, "-m", "mint2m", *words], capture_output=True, text=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


#: One process that waits: each start of a Ray client costs seconds.
_NODES = """
import json, os, socket, sys, time
os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = "600"  # by itself it ends the process before the head listens
from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
address, least, deadline = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
while True:
    try:
        nodes = GcsClient(address=address).get_all_node_info(timeout=10, state_filter=GcsNodeInfo.GcsNodeState.ALIVE)
    except Exception:
        nodes = {}
    if len(nodes) >= least or time.monotonic() > deadline:
        break
    time.sleep(0.5)
print(json.dumps([
    {"ip": node.node_manager_address, "socket": node.raylet_socket_name, "resources": dict(node.resources_total)}
    for node in nodes.values()
]))
"""


@contextlib.contextmanager
def running(
    offers: Sequence[Offer], log: Path, environment: Mapping[str, str], *, patience_s: float = 600
) -> Iterator[RayHosts]:
    """Ray on one host an offer and on the operator's, all of them up; taken down on the way out, however that is."""
    made = network.make(len(offers))
    folder = made.record.parent
    settings = os.environ | {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_niceness": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    ray = RayHosts(network=made, folder=folder, environment={**settings, **environment}, offers=offers)
    try:
        if made.why is not None:
            print(made.why, file=sys.stderr)
        ray.up(patience_s)
        yield ray
    finally:
        if (folder / "ray.log").exists():
            shutil.copy(folder / "ray.log", log)
        network.take_down(made.record)
