"""Several hosts on one machine: each a namespace of network, processes and mounts, behind one switch.

The rule: whatever is made is written to a record first, by name or by pid and start tick, and `take_down` needs the
record alone. So a test that was killed is swept up by the next one, and nobody else's namespace or process is touched.

A host has its own address, loopback and process numbers; disks and clock are the machine's, as with a shared file
system. The switch lies in a namespace of its own: the machine's interfaces and routes stay as they are. Where
namespaces are not permitted, `loopback` gives hosts that are only addresses (127.0.0.2, …), and says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_trainer.cluster.process import ProcessId, alive, end, identify

#: Where records lie; a name is this and a random token, so the sweep finds those of tests that were killed. It is
#: short: Ray's sockets lie below it, and a socket's name has at most 107 characters.
_PREFIX = "m2h-"

#: The first process of a host: it waits, and takes in what other processes leave behind.
_INIT = "while :; do sleep 3600 & wait $!; done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host; `init` is its first process, as the machine numbers it. None where a host is only an address."""

    name: str
    ip: str
    link: str | None = None
    init: ProcessId | None = None

    def command(self, words: Sequence[object]) -> list[str]:
        """`words`, run on this host."""
        enter = [] if self.init is None else ["nsenter", "--target", str(self.init.pid), "--net", "--pid", "--mount"]
        return [*enter, *map(str, words)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Hosts that reach each other; the last one is the operator's. `why` says why they are not namespaces."""

    record: Path
    hosts: tuple[Host, ...]
    switch: str | None
    why: str | None = None

    def start(
        self, host: Host, words: Sequence[object], *, log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """A process on `host`, in the record before this returns."""
        with log.open("ab") as stream:
            process = subprocess.Popen(
                host.command(words), env=dict(environment), stdout=stream, stderr=stream, start_new_session=True
            )
        _note(self.record, process=identify(process.pid))
        return process

    def cut(self, host: Host) -> None:
        """Pull the host's cable."""
        self._link(host, "down")

    def mend(self, host: Host) -> None:
        """Put it back."""
        self._link(host, "up")

    def _link(self, host: Host, state: str) -> None:
        if self.switch is None or host.link is None:
            raise RuntimeError(f"{host.name} is only an address: it has no cable")
        _ip("-n", self.switch, "link", "set", host.link, state)


def make(count: int) -> Network:
    """`count` hosts and the operator's, in namespaces where they are permitted."""
    sweep()
    token = secrets.token_hex(3)
    place = Path(tempfile.gettempdir()) / f"{_PREFIX}{token}"
    place.mkdir(mode=0o700)
    record = place / "record.jsonl"
    _note(record, process=None, creator=identify(os.getpid()))
    try:
        return _namespaces(record, token, count)
    except (OSError, subprocess.CalledProcessError) as fault:
        remove_namespaces(record)
        words = fault.stderr.strip() if isinstance(fault, subprocess.CalledProcessError) else str(fault)
        hosts = [Host(name=f"host{number + 1}", ip=f"127.0.0.{number + 2}") for number in range(count)]
        operator = Host(name="operator", ip=f"127.0.0.{count + 2}")
        return Network(record=record, hosts=(*hosts, operator), switch=None, why=f"no namespaces here: {words}")


def _namespaces(record: Path, token: str, count: int) -> Network:
    switch, bridge = f"m2-{token}-switch", f"m2b{token}"
    _note(record, namespace=switch)
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", bridge, "type", "bridge")
    _ip("-n", switch, "link", "set", bridge, "up")
    hosts = []
    for number, name in enumerate([*(f"host{n + 1}" for n in range(count)), "operator"], 1):
        namespace, outer = f"m2-{token}-{name}", f"m2v{token}{number}"
        _note(record, namespace=namespace)
        _ip("netns", "add", namespace)
        _ip("-n", switch, "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("-n", switch, "link", "set", outer, "master", bridge, "up")
        address = f"10.213.7.{number}"
        for words in (("addr", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            _ip("-n", namespace, *words)
        _ip("-n", namespace, "link", "set", "lo", "up")
        hosts.append(Host(name=name, ip=address, link=outer, init=_init(record, namespace)))
    return Network(record=record, hosts=tuple(hosts), switch=switch)


def _init(record: Path, namespace: str) -> ProcessId:
    """The first process of a new process namespace in `namespace`; with it every other process of the host ends."""
    words = ["ip", "netns", "exec", namespace, "unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    outer = subprocess.Popen(
        [*words, "sh", "-c", _INIT], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    _note(record, process=identify(outer.pid))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if outer.poll() is not None:
            raise OSError(f"no process namespace: unshare ended with {outer.returncode}")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text(encoding="ascii").split()
        if children and (process := identify(int(children[0]))) is not None:
            _note(record, process=process)
            # Its mounts are what `nsenter` enters; they are complete once the shell has taken unshare's place.
            if (Path("/proc") / children[0] / "comm").read_text(encoding="ascii").strip() == "sh":
                return process
        time.sleep(0.01)
    raise OSError("no process namespace: unshare started nothing")


def take_down(record: Path) -> None:
    """Everything of a record: processes first, then namespaces, then the record's directory."""
    end(_processes(record), grace_s=5.0)
    remove_namespaces(record)
    shutil.rmtree(record.parent)


def remove_namespaces(record: Path) -> None:
    """The namespaces of a record; interfaces go with them."""
    end(_processes(record), grace_s=5.0)
    for line in _lines(record):
        if line.get("namespace"):
            # Gone already, or never made: the line comes first.
            with contextlib.suppress(subprocess.CalledProcessError, OSError):
                _ip("netns", "delete", line["namespace"])


def sweep() -> None:
    """Take down what tests that were killed have left."""
    for record in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/record.jsonl"):
        creators = [line["creator"] for line in _lines(record) if line.get("creator")]
        if creators and not any(alive(ProcessId(**creator)) for creator in creators):
            take_down(record)


def driver_of(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> int:
    """The pid, as the machine numbers it, of what `nsenter` runs; its own where nothing was entered."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        entered = (Path("/proc") / str(process.pid) / "comm").read_text(encoding="ascii").strip() == "nsenter"
    except FileNotFoundError as fault:
        raise ProcessLookupError(process.pid) from fault
    return int(children[0]) if entered and children else process.pid


def processes_on(host: Host, name: str | None) -> list[int]:
    """Pids, as the machine numbers them, of the host's processes whose program is called `name`; None for all."""
    if host.init is None:
        raise RuntimeError(f"{host.name} is only an address: its processes cannot be told from others")
    space = Path(f"/proc/{host.init.pid}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "ns/pid").readlink() == space and name in (None, (entry / "comm").read_text().strip()):
                    found.append(int(entry.name))
    return sorted(found)


def clear(host: Host) -> None:
    """End every process of the host but its first."""
    if host.init is None:
        raise RuntimeError(f"{host.name} is only an address")
    ours = {host.init.pid}
    for pid in processes_on(host, None):
        if pid not in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kill(pids: Sequence[int]) -> None:
    """SIGKILL to each."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _processes(record: Path) -> list[ProcessId]:
    return [ProcessId(**line["process"]) for line in _lines(record) if line.get("process")]


def _lines(record: Path) -> list[dict[str, dict[str, int] | str]]:
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def _note(record: Path, **members: ProcessId | str | None) -> None:
    line = {
        name: {"pid": value.pid, "start_ticks": value.start_ticks} if isinstance(value, ProcessId) else value
        for name, value in members.items()
        if value is not None
    }
    with record.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
