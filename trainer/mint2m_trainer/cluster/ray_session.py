"""The Ray under a run: one started for it on this machine, or the operator's own.

The rule: whatever is started is journalled first, carries the run's marker in its environment, binds to loopback and
asks for a token made for this run, so nothing else on the machine or the network can use it, and everything of it can
be found again by a process that knows only the journal.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from mint2m_trainer.cluster.journal import Journal, resource
from mint2m_trainer.cluster.process import MARKER, ProcessId, command_name, end, marked, ray_holders
from mint2m_trainer.cluster.pulse import PATIENCE, answer
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import OwnedResource
from mint2m_verify.finding import FindingError, found

LOCAL = "local"

#: Ray wants at least 75 MiB; documents and phase replies are the only objects that pass through it.
_OBJECT_STORE_BYTES = 80 << 20

#: Ray's sockets lie about 65 characters below its directory, and a Unix socket path has at most 107.
_LONGEST_DIRECTORY = 40

_PREFIX = "mint2m-ray-"

#: Seconds between SIGTERM and SIGKILL for the processes of a start that failed.
_GRACE_S = 3.0

#: Seconds in which an operator's head node must answer the knock.
_ANSWER_S = 10.0

#: What a local Ray consists of. Workers are not among them: those that matter are actors, and the marker finds all.
RAY_PROCESSES = (
    "gcs_server",
    "raylet",
    "monitor",
    "log_monitor",
    "dashboard",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
)


def ray_directory(execution_id: str) -> Path:
    """Where a Ray started for this execution keeps its sockets and logs; the name carries 64 random bits."""
    name = f"{_PREFIX}{execution_id[:16]}"
    place = Path(tempfile.gettempdir()) / name
    return place if len(str(place)) <= _LONGEST_DIRECTORY else Path("/tmp") / name


def processes_of(execution_id: str) -> tuple[ProcessId, ...]:
    """Every live process of this execution: by its marker, or, for Ray's agents, by files of its Ray directory."""
    return tuple(sorted({*marked(execution_id), *ray_holders(ray_directory(execution_id))}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySession:
    """A connected Ray; `directory` is set for one that this run started."""

    address: str
    directory: Path | None


def open_ray(plan: Plan, journal: Journal, check: Callable[[], None]) -> RaySession:
    """Start or reach the Ray of the plan, in the plan's namespace.

    Args:
        check: raises where the operator wants the run to end.

    Raises:
        FindingError: `ray.start-failed`; what had been started is in the journal.
    """
    if plan.deployment.ray_address == LOCAL:
        return _start(plan, journal, check)
    return _connect(plan, journal)


def _start(plan: Plan, journal: Journal, check: Callable[[], None]) -> RaySession:
    directory = ray_directory(journal.execution_id)
    ips = plan.deployment.node_ips
    journal.write("intent", resource("directory", str(directory)))
    directory.mkdir(mode=0o700)
    journal.write("created", resource("directory", str(directory), node_ip=ips[0]))
    journal.write("intent", resource("ray", plan.namespace))
    for role in RAY_PROCESSES:
        journal.write("intent", resource("process", role))
    address = _start_until(plan, journal, directory, check)
    processes = {}
    for process in marked(journal.execution_id):
        role = command_name(process)
        if role in RAY_PROCESSES and role not in processes:
            journal.write("created", _process(role, process, ips[0]))
            processes[role] = process
    for role in RAY_PROCESSES:
        if role not in processes:
            journal.write("absent", resource("process", role), detail="this Ray starts none")
    head = processes.get("gcs_server")
    journal.write(
        "created",
        resource(
            "ray",
            plan.namespace,
            id=address,
            pid=None if head is None else head.pid,
            start_ticks=None if head is None else head.start_ticks,
            node_ip=ips[0],
        ),
    )
    return RaySession(address=address, directory=directory)


def _start_until(plan: Plan, journal: Journal, directory: Path, check: Callable[[], None]) -> str:
    """The address of a new local Ray, tried again while the plan's start timeout lasts.

    Ray gives its own processes 30 fixed seconds to come up, which a busy machine exceeds.
    """
    deadline = time.monotonic() + plan.timeouts_s.start
    while True:
        check()
        try:
            return _init(plan, journal, directory)
        except FindingError:
            end(processes_of(journal.execution_id), grace_s=_GRACE_S)
            if time.monotonic() > deadline:
                raise


def _init(plan: Plan, journal: Journal, directory: Path) -> str:
    slots = plan.deployment.accelerators_per_node
    resources = {} if plan.deployment.image_resource is None else {plan.deployment.image_resource: 1.0}
    with _environment(_local_environment(journal.execution_id)):
        import ray

        with _told_as_start_failure("a local Ray"):
            context = ray.init(
                num_cpus=slots,
                num_gpus=slots if plan.deployment.hardware_class != "reference-cpu" else 0,
                resources=resources,
                namespace=plan.namespace,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                logging_level="ERROR",
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=str(directory),
                _node_ip_address=plan.deployment.node_ips[0],
            )
    return str(context.address_info["address"])


class _told_as_start_failure:  # noqa: N801 - used like a function
    """Scope in which what Ray raises becomes `ray.start-failed`; Ray raises bare `Exception` for a slow start."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if not isinstance(fault, Exception):
            return False
        import ray

        ray.shutdown()
        actual = f"{type(fault).__name__}: {fault}"[:500]
        raise FindingError(found("ray.start-failed", expected=self._wanted, actual=actual)) from fault


def _connect(plan: Plan, journal: Journal) -> RaySession:
    address = plan.deployment.ray_address
    journal.write("intent", resource("ray", plan.namespace))
    try:
        connect(address, plan.namespace)
    except FindingError:
        journal.write("absent", resource("ray", plan.namespace), detail="never connected")
        raise
    journal.write("created", resource("ray", plan.namespace, id=address))
    return RaySession(address=address, directory=None)


def connect(address: str, namespace: str) -> None:
    """Join the operator's cluster as a driver; raises `FindingError` (`ray.start-failed`)."""
    _check_listening(address)
    os.environ[PATIENCE[0]] = PATIENCE[1]
    import ray

    with _told_as_start_failure(address):
        ray.init(
            address=address, namespace=namespace, log_to_driver=False, configure_logging=False, logging_level="ERROR"
        )


def _check_listening(address: str) -> None:
    """Ray itself asks a dead address again for minutes, deaf to signals, and then ends the process."""
    silent = answer(address, _ANSWER_S)
    if silent is not None:
        wanted = f"the head of a Ray cluster at {address}"
        raise FindingError(found("ray.start-failed", expected=wanted, actual=silent))


@contextlib.contextmanager
def ray_silenced() -> Iterator[None]:
    """Scope in which Ray's threads print into nothing.

    Ray tells of a worker's death on the driver's stdout, whatever its logging options are, and stdout is the report's
    alone. Nothing of this project prints while a run is on.
    """
    with Path(os.devnull).open("w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        yield


def close_ray(session: RaySession, plan: Plan, journal: Journal) -> None:
    """Leave Ray, and ask it to stop where this run started it. `leftovers` looks whether it did."""
    import ray

    ray.shutdown()
    if session.directory is None:
        # The operator's cluster goes on; what ended is this run's connection to it.
        journal.write("absent", resource("ray", plan.namespace, id=session.address), detail="disconnected")


def _process(name: str, process: ProcessId, node_ip: str | None) -> OwnedResource:
    return resource("process", name, pid=process.pid, start_ticks=process.start_ticks, node_ip=node_ip)


def _local_environment(execution_id: str) -> dict[str, str]:
    return {
        MARKER: execution_id,
        # Loopback as the node's address: without this Ray picks the machine's outward one, and listens there.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # A token of this process only. Unset, Ray would write one into the home directory. Ray's client reads it once a
        # process, so a second run in this process keeps the first one's.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        PATIENCE[0]: PATIENCE[1],
        # Ray kills workers when the machine's memory runs low, whoever uses it. The byte plan was checked already.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_enable_metrics_collection": "false",
        # Ray starts workers at niceness 15. Here the workers are the run, and on a busy machine they would hardly run.
        "RAY_worker_niceness": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for Ray's processes; afterwards this process keeps only what its own Ray client still reads."""
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.pop(MARKER, None)
