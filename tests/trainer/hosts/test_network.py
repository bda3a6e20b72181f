"""Hosts on one machine: apart from each other, cut and mended one by one, and gone afterwards, whoever was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import network
import pytest
from network import Host, Network

HERE = Path(__file__).parent

#: Answers on the host's own address.
SERVER = "import http.server as s; s.test(s.BaseHTTPRequestHandler, bind='{ip}', port=8000)"
KNOCK = "import socket; socket.create_connection(('{ip}', 8000), timeout=0.5)"


@pytest.fixture
def two() -> Iterator[Network]:
    made = network.make(2)
    try:
        if made.why is not None:
            pytest.skip(made.why)
        yield made
    finally:
        network.take_down(made.record)


def knocks(on: Host, ip: str) -> bool:
    words = on.command([sys.executable, "-S", "-c", KNOCK.format(ip=ip)])
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def within(seconds: float, act: object) -> bool:
    deadline = time.monotonic() + seconds
    while not (done := act()) and time.monotonic() < deadline:  # type: ignore[operator]  # a function of the test's
        time.sleep(0.05)
    return bool(done)


def test_a_host_is_reached_at_its_address_while_its_cable_is_in(two: Network, tmp_path: Path) -> None:
    one, other, operator = two.hosts
    server = [sys.executable, "-c", SERVER.format(ip=one.ip)]
    two.start(one, server, log=tmp_path / "log", environment=os.environ)
    assert within(20, lambda: knocks(operator, one.ip))
    assert knocks(other, one.ip)
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert one.link is not None
    assert one.link not in links, "the machine's own interfaces are as they were"
    two.cut(one)
    assert not knocks(operator, one.ip)
    two.mend(one)
    assert within(20, lambda: knocks(operator, one.ip))


def test_a_host_sees_its_own_processes_alone(two: Network) -> None:
    seen = subprocess.run(two.hosts[0].command(["ls", "/proc"]), capture_output=True, text=True, check=True).stdout
    pids = sorted(int(name) for name in seen.split() if name.isdigit())
    assert pids[0] == 1
    assert len(pids) <= 3, "its first process, that one's sleep, and ls"
    assert {two.hosts[0].init.pid} <= set(network.processes_on(two.hosts[0], "sh"))  # type: ignore[union-attr]


def test_what_a_killed_test_has_left_is_swept_up_and_nothing_else(two: Network) -> None:
    code = "import network, time; print(network.make(1), flush=True); time.sleep(60)"
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    doomed = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
    )
    made = doomed.stdout.readline() if doomed.stdout else ""
    assert "switch='m2-" in made, made
    switch = made.partition("switch='")[2].partition("'")[0]
    doomed.send_signal(signal.SIGKILL)
    doomed.communicate()
    assert switch in namespaces()
    network.sweep()
    left = namespaces()
    assert not [name for name in left if name.startswith(switch.removesuffix("switch"))]
    assert two.switch in left


def test_without_namespaces_hosts_are_addresses_and_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: str) -> None:
        raise subprocess.CalledProcessError(
            1, words, stderr="mount --make-shared /run/netns failed: Operation not permitted"
        )

    monkeypatch.setattr(network, "_ip", refuse)
    made = network.make(4)
    try:
        assert [host.ip for host in made.hosts] == [f"127.0.0.{number}" for number in range(2, 7)]
        assert "Operation not permitted" in (made.why or "")
        with pytest.raises(RuntimeError, match="no cable"):
            made.cut(made.hosts[0])
    finally:
        network.take_down(made.record)


def namespaces() -> list[str]:
    shown = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in shown.splitlines()]
