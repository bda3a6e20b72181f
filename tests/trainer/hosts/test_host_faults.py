"""Hosts, cables and the head go wrong under a run: what the driver says, what is left, and that cleanup finds nothing.

Two hosts, one rank on each; the head's host carries rank 0. Rank 1 stands in front of a phase, so rank 0 waits for it
in that phase's first collective when the fault comes.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import broken_backend
import network
import pytest
import ray_hosts

from mint2m_trainer.cluster.directory import half_written
from mint2m_trainer.cluster.flight_record import unfinished
from mint2m_trainer.cluster.journal import read
from mint2m_verify.documents import TrainingReceipt
from mint2m_verify.documents.failure import FailedReceipt
from mint2m_verify.layout import RANK_SESSIONS, rank_flight, rank_log

pytestmark = pytest.mark.ray

#: All but one of the refusals, which shows in seconds that the hosts are there.
slow = pytest.mark.slow

HERE = Path(__file__).parent
DRIVER = (HERE.parent / "cluster" / "drive_run.py", "broken_backend:BrokenUpdate")
PHASES = ("capture-prefix", "grpo-0", "checkpoint")

#: What the ledger calls the collectives of a phase.
LEDGER = {"capture-prefix": "policy.capture", "grpo-0": "policy.grpo-0", "checkpoint": "checkpoint"}
OFFER = ray_hosts.Offer(cpus=1, accelerators=1)
NOTHING = ray_hosts.Offer(cpus=0, accelerators=0, image=None)

#: Ray notices within seconds that a node is gone; left alone it takes most of a minute.
ATTENTIVE = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two hosts with a Ray, and the folder through which ranks hear what is to go wrong."""

    ray: ray_hosts.RayHosts
    control: Path

    def begin(self, given: Path, out: Path, kind: str, phase: str, *words: object) -> subprocess.Popen[str]:
        """A run that will go wrong."""
        (self.control / "reached").unlink(missing_ok=True)
        (self.control / "fault.json").write_text(json.dumps({"kind": kind, "phase": phase}))
        words = ("run", "--deployment", given, "--output", out, "--format", "json", *words)
        return self.ray.mint2m(*words, driver=DRIVER)

    def reached(self, driver: subprocess.Popen[str]) -> None:
        """Wait until rank 1 is where it goes wrong."""
        _wait(lambda: (self.control / "reached").exists(), driver, "the phase")

    def left(self) -> list[str]:
        """Processes of runs on the hosts: actors of ours by Ray's titles."""
        found = []
        for host in self.ray.network.hosts:
            for pid in network.processes_on(host, None):
                title = _title(pid)
                if title.startswith(("ray::RankActor", "ray::Coordinator")):
                    found.append(f"{host.name}: {title}")
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("pair")
    with pair(place) as made:
        yield made


class pair:  # noqa: N801 - used like a function
    """Scope of two hosts with a Ray that has been asked to notice soon."""

    def __init__(self, place: Path) -> None:
        control = place / "control"
        control.mkdir()
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {broken_backend.CONTROL: str(control), "PYTHONPATH": os.pathsep.join(paths), **ATTENTIVE}
        self._control = control
        self._scope = ray_hosts.running([OFFER] * 2, place / "ray.log", environment)

    def __enter__(self) -> Pair:
        ray = self._scope.__enter__()
        if ray.network.why is not None:
            self._scope.__exit__(None, None, None)
            pytest.skip(ray.network.why)
        return Pair(ray=ray, control=self._control)

    def __exit__(self, *fault: Any) -> None:
        self._scope.__exit__(*fault)


@pytest.fixture
def hosts(running: Pair) -> Pair:
    """The shared hosts, whole again whatever the last test did to them."""
    ray = running.ray
    for host in ray.network.hosts:
        ray.network.mend(host)
    _whole(ray)
    return running


def _whole(ray: ray_hosts.RayHosts, other: Mapping[str, ray_hosts.Offer] | None = None) -> None:
    """Wait until Ray's table has one live record a host, of the node that runs there; a dead one's stays a while.

    A host without a node gets one, that of `other` where it is named there.
    """
    deadline = time.monotonic() + 120
    while True:
        for name in [name for name, node in ray.nodes.items() if node.process.poll() is not None]:
            del ray.nodes[name]
        for host in ray.network.hosts:
            if host not in [node.host for node in ray.nodes.values()]:
                ray.start(host, (other or {}).get(host.name, OFFER if host in ray.hosts else NOTHING))
        records = ray.alive()
        here = {host.ip: [_words(pid) for pid in network.processes_on(host, "raylet")] for host in ray.network.hosts}
        named = [node["ip"] for node in records if any(node["socket"] in words for words in here[node["ip"]])]
        if sorted(here) == sorted(node["ip"] for node in records) == sorted(named):
            return
        assert time.monotonic() < deadline, (records, here)


def _replace(ray: ray_hosts.RayHosts, host: network.Host, offer: ray_hosts.Offer) -> None:
    """Another Ray node in the place of the host's."""
    _end_nodes(ray, host)
    _whole(ray, {host.name: offer})


def _end_nodes(ray: ray_hosts.RayHosts, host: network.Host) -> None:
    """End the host's raylets, and wait until what started them has noticed."""
    network.kill(network.processes_on(host, "raylet"))
    for node in ray.nodes.values():
        if node.host == host:
            node.process.wait(60)


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check_stopped(
    pair: Pair, root: Path, driver: subprocess.Popen[str], *, code: int, finding: str, stage: str, words: str = ""
) -> dict[str, Any]:
    """What is said of every run that one of these faults has stopped; returns the finding."""
    output, errors = driver.communicate(timeout=240)
    report: dict[str, Any] = json.loads(output)
    assert [fault["id"] for fault in report["findings"]] == [finding], (report["findings"], errors)
    assert driver.returncode == code
    (fault,) = report["findings"]
    assert fault["stage"] == stage, fault
    assert words in fault["actual"], fault
    assert "Traceback" not in errors
    receipt = FailedReceipt.parse((root / "failed-receipt.json").read_bytes(), file="failed-receipt.json")
    assert (receipt.status, receipt.stopped_in, receipt.finding.id) == ("failed", stage, finding)
    assert stage not in receipt.completed
    for name in ("receipt.json", "adapter", "checkpoint", "attestations", "artifacts/optimizer-after.safetensors"):
        assert not (root / name).exists(), name
    return fault


def check_clean(pair: Pair, root: Path, *, within_s: float = 90) -> None:
    """`mint2m cleanup` finds nothing of the run, and neither does anybody who looks at the hosts."""
    deadline = time.monotonic() + within_s
    while True:
        words = ("cleanup", "--plan", root / "plan.json", "--ownership", root / "ownership.jsonl", "--format", "json")
        driver = pair.ray.mint2m(*words)
        report = json.loads(driver.communicate(timeout=120)[0])
        if report["exit_code"] == 0 and not pair.left():
            break
        assert time.monotonic() < deadline, (report, pair.left())
        time.sleep(1)
    ledger = read(root / "ownership.jsonl")
    assert ledger.closed
    assert not ledger.owned
    assert not list(half_written(root))


def _title(pid: int) -> str:
    return _words(pid).partition("\0")[0]


def _words(pid: int) -> str:
    """A process's command line; empty for one that went."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _wait(done: Callable[[], bool], driver: subprocess.Popen[str], what: str, *, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline, f"{what} was not reached"
        time.sleep(0.1)


@slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_raylet_stops_the_run_and_leaves_nothing(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path], phase: str
) -> None:
    given, out = deployment(tmp_path / "given", hosts.ray), tmp_path / "out"
    before = _digests(tmp_path / "given")
    driver = hosts.begin(given, out, broken_backend.STANDS, phase)
    hosts.reached(driver)
    network.kill(network.processes_on(hosts.ray.hosts[1], "raylet"))
    check_stopped(hosts, out, driver, code=5, finding="rank.died", stage=phase, words="rank 1")
    assert _digests(tmp_path / "given") == before
    check_clean(hosts, out)


@slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_node_cut_off_stops_the_run_and_leaves_nothing_once_it_is_back(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path], phase: str
) -> None:
    given, out = deployment(tmp_path / "given", hosts.ray), tmp_path / "out"
    driver = hosts.begin(given, out, broken_backend.STANDS, phase)
    hosts.reached(driver)
    hosts.ray.network.cut(hosts.ray.hosts[1])
    check_stopped(hosts, out, driver, code=5, finding="rank.died", stage=phase, words="rank 1")
    hosts.ray.network.mend(hosts.ray.hosts[1])
    check_clean(hosts, out)


@slow
def test_a_cable_that_is_out_for_a_moment_is_no_fault(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path]
) -> None:
    given, out = deployment(tmp_path / "given", hosts.ray), tmp_path / "out"
    driver = hosts.begin(given, out, broken_backend.SLOW, "grpo-0")
    hosts.reached(driver)
    hosts.ray.network.cut(hosts.ray.hosts[1])
    time.sleep(1.5)
    hosts.ray.network.mend(hosts.ray.hosts[1])
    check_accepted(driver, out)


@slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_lost_head_stops_the_run_and_cleanup_waits_for_its_successor(
    tmp_path: Path, deployment: Callable[..., Path], phase: str
) -> None:
    (tmp_path / "pair").mkdir()
    with pair(tmp_path / "pair") as hosts:
        given, out = deployment(tmp_path / "given", hosts.ray), tmp_path / "out"
        driver = hosts.begin(given, out, broken_backend.STANDS, phase)
        hosts.reached(driver)
        network.kill(network.processes_on(hosts.ray.hosts[0], "gcs_server"))
        check_stopped(hosts, out, driver, code=5, finding="ray.head-lost", stage=phase)
        ledger = read(out / "ownership.jsonl")
        assert not ledger.closed
        assert {item.kind for item in ledger.owned} == {"actor", "placement-group"}
        words = ("cleanup", "--plan", out / "plan.json", "--ownership", out / "ownership.jsonl", "--format", "json")
        report = json.loads(hosts.ray.mint2m(*words).communicate(timeout=120)[0])
        assert [fault["id"] for fault in report["findings"]] == ["cleanup.cluster-unreachable"]
        assert report["exit_code"] == 5
        deadline = time.monotonic() + 120
        while hosts.left():
            assert time.monotonic() < deadline, hosts.left()
            time.sleep(1)
        hosts.ray.restart()
        check_clean(hosts, out)


@slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_hung_collective_is_named_with_the_rank_that_holds_it_up(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path], phase: str
) -> None:
    given, out = deployment(tmp_path / "given", hosts.ray, phase=45), tmp_path / "out"
    driver = hosts.begin(given, out, broken_backend.HANGS, phase)
    fault = check_stopped(
        hosts, out, driver, code=5, finding="rank.late", stage=phase, words="waiting for ranks 0, 1; "
    )
    assert "; rank 1 went no further than collective " in fault["actual"]
    assert "; rank 0 in collective " in fault["actual"]
    by_ledger, _, by_record = fault["actual"].partition("; flight records: ")
    assert by_ledger.endswith(")")
    assert f"({LEDGER[phase]}" in by_ledger.rpartition("rank 0 in ")[2]
    waiting, late = by_record.split("; ")
    assert waiting.startswith("rank 0 in gloo:all_"), by_record
    assert waiting.endswith(f"({rank_flight(0)})")
    assert late == f"rank 1 in none ({rank_flight(1)})"
    assert unfinished((out / rank_flight(0)).read_bytes()) is not None
    assert rank_flight(0).rpartition("/")[2] in (out / rank_log(0)).read_text()
    receipt = FailedReceipt.parse((out / "failed-receipt.json").read_bytes(), file="failed-receipt.json")
    assert rank_flight(0) in receipt.finding.words
    check_clean(hosts, out)


@slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_slow_rank_within_the_limit_is_no_fault(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path], phase: str
) -> None:
    given, out = deployment(tmp_path / "given", hosts.ray), tmp_path / "out"
    check_accepted(hosts.begin(given, out, broken_backend.SLOW, phase), out)


@slow
def test_clocks_that_are_days_apart_prove_nothing_and_harm_nothing(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path]
) -> None:
    given, out = deployment(tmp_path / "given", hosts.ray), tmp_path / "out"
    check_accepted(hosts.begin(given, out, broken_backend.SKEWED, "grpo-0"), out)
    ranks = json.loads((out / RANK_SESSIONS).read_bytes())["ranks"]
    bind, initialize = zip(*((rank["phases"][0], rank["phases"][1]) for rank in ranks), strict=True)
    assert initialize[1]["started_at"] < initialize[0]["started_at"], "the wrong clock is in the evidence as it was"
    assert bind[1]["ended_at"] < bind[1]["started_at"], "and that it was set back in the middle of a phase"


@slow
def test_a_second_driver_of_the_same_plan_is_refused_and_the_first_goes_on(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path]
) -> None:
    given, out, other = deployment(tmp_path / "given", hosts.ray), tmp_path / "out", tmp_path / "other"
    same = ("--run-id", "one", "--instance-nonce", "the same")
    driver = hosts.begin(given, out, broken_backend.STANDS, "grpo-0", *same)
    hosts.reached(driver)

    def status() -> dict[str, str]:
        looked = hosts.ray.mint2m("status", "--ownership", out / "ownership.jsonl", "--format", "json")
        return {row["required"]: row["found"] for row in json.loads(looked.communicate(timeout=120)[0])["requirements"]}

    rows = status()
    assert rows["state"].startswith("running")
    there = rows[f"seen in the cluster at {hosts.ray.address} now"]
    assert [there.count(word) for word in ("-rank-", "-coordinator", "placement-group")] == [2, 1, 1]
    # Rank 0 may not have come so far yet; then it is where it waits for rank 1.
    _wait(lambda: f"({LEDGER['grpo-0']}" in status()["rank 0, by its own word"], driver, "rank 0's word")
    second = hosts.ray.mint2m("run", "--deployment", given, "--output", other, "--format", "json", *same)
    report = json.loads(second.communicate(timeout=120)[0])
    assert [fault["id"] for fault in report["findings"]] == ["ray.start-failed"]
    assert "coordinator" in report["findings"][0]["expected"]
    assert (second.returncode, report["exit_code"]) == (5, 5)
    assert read(other / "ownership.jsonl").closed
    assert (out / "plan.json").read_bytes() == (other / "plan.json").read_bytes()
    assert driver.poll() is None
    assert len(hosts.left()) == 3, "two ranks and the coordinator of the first"
    os.kill(network.driver_of(driver), signal.SIGTERM)
    report = json.loads(driver.communicate(timeout=120)[0])
    assert [fault["id"] for fault in report["findings"]] == ["run.interrupted"]
    check_clean(hosts, out)


OTHER_IMAGE = hashlib.sha256(b"another image").hexdigest()


def _other_image(value: dict[str, Any]) -> None:
    value["image"]["digest"] = f"sha256:{OTHER_IMAGE}"


@pytest.mark.parametrize(
    ("change", "ranks_per_host", "expected"),
    [
        pytest.param(_other_image, 1, f"mint2m_image_{OTHER_IMAGE}", id="image"),
        pytest.param(lambda _value: None, 2, "CPU", id="cpus", marks=slow),
    ],
)
def test_a_node_that_is_not_the_deployments_is_refused_before_anything_is_created(
    tmp_path: Path,
    hosts: Pair,
    deployment: Callable[..., Path],
    change: Callable[[dict[str, Any]], None],
    ranks_per_host: int,
    expected: str,
) -> None:
    given = deployment(tmp_path / "given", hosts.ray, ranks_per_host=ranks_per_host)
    value = json.loads(given.read_text())
    change(value)
    given.write_text(json.dumps(value))
    check_refused(hosts, given, tmp_path / "out", expected)


@slow
def test_two_live_records_of_one_address_are_refused_before_anything_is_created(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path]
) -> None:
    before = network.processes_on(hosts.ray.hosts[1], "raylet")
    hosts.ray.start(hosts.ray.hosts[1], OFFER)
    assert len(hosts.ray.alive(at_least=4)) == 4
    check_refused(hosts, deployment(tmp_path / "given", hosts.ray), tmp_path / "out", "one live node")
    network.kill(sorted({*network.processes_on(hosts.ray.hosts[1], "raylet")} - {*before}))


@slow
def test_another_number_of_accelerators_is_refused_before_anything_is_created(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path]
) -> None:
    host = hosts.ray.hosts[1]
    _replace(hosts.ray, host, ray_hosts.Offer(cpus=1, accelerators=3))
    check_refused(hosts, deployment(tmp_path / "given", hosts.ray), tmp_path / "out", "exactly 1 GPU")
    _end_nodes(hosts.ray, host)


@slow
def test_a_node_that_came_back_leaves_a_stale_record_that_does_not_count(
    tmp_path: Path, hosts: Pair, deployment: Callable[..., Path]
) -> None:
    given = deployment(tmp_path / "given", hosts.ray)
    _replace(hosts.ray, hosts.ray.hosts[1], OFFER)
    check_accepted(hosts.begin(given, tmp_path / "out", "none", "none"), tmp_path / "out")


def check_refused(pair: Pair, given: Path, out: Path, expected: str) -> None:
    """Exit 2 with the node's finding, and neither coordinator, group nor actor was even intended."""
    driver = pair.ray.mint2m("run", "--deployment", given, "--output", out, "--format", "json")
    output, errors = driver.communicate(timeout=120)
    report = json.loads(output)
    assert [fault["id"] for fault in report["findings"]] == ["ray.node-mismatch"], (report["findings"], errors)
    assert expected in report["findings"][0]["expected"]
    assert driver.returncode == 2
    ledger = read(out / "ownership.jsonl")
    assert ledger.closed
    assert {event.resource.kind for event in ledger.events if event.resource} == {"ray"}
    receipt = FailedReceipt.parse((out / "failed-receipt.json").read_bytes(), file="failed-receipt.json")
    assert (receipt.stopped_in, receipt.completed, receipt.finding.id) == ("start", (), "ray.node-mismatch")


def check_accepted(driver: subprocess.Popen[str], out: Path) -> None:
    """The run came through, and an auditor elsewhere accepts it."""
    output, errors = driver.communicate(timeout=400)
    report = json.loads(output)
    assert report["verdict"] == "accepted", (report["findings"], errors)
    TrainingReceipt.parse((out / "receipt.json").read_bytes(), file="receipt.json")
    assert ray_hosts.verify(out, out.with_name("out.pub"))["verdict"] == "accepted"
