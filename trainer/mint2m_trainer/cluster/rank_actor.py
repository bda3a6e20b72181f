"""One rank as a Ray actor: it observes itself, then runs the plan's phases one by one, as the driver asks.

The rule: the actor adds nothing to the update. It hands each phase to the backend, in the order of its task, measures
the time, and names the files that were written by their bytes on disk. Whatever the backend raises reaches the driver
as one kind of error.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import ray

from mint2m_trainer.cluster.directory import hash_written
from mint2m_trainer.cluster.flight_record import recording
from mint2m_trainer.cluster.interface import bind_collectives
from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.cluster.messages import (
    Hello,
    PhaseReply,
    Progress,
    RankTask,
    Rendezvous,
    told_as_rank_error,
)
from mint2m_trainer.cluster.process import identify
from mint2m_trainer.cluster.rank_log import RankLog
from mint2m_trainer.cluster.whereabouts import Teller
from mint2m_trainer.comm.ledger import Position
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import PhaseEvidence
from mint2m_verify.elsewhere import HashedElsewhere
from mint2m_verify.files import read_once
from mint2m_verify.layout import PLAN, rank_flight
from mint2m_verify.runtime_identity import observe
from mint2m_verify.source import source_sha256

#: Seconds between two words of progress: enough for a bar, too few to slow a rank down.
PROGRESS_INTERVAL_S = 0.2


class PhaseOutcome(Protocol):
    """What the backend says of a phase it ran."""

    evidence: PhaseEvidence
    files: tuple[str, ...]
    hashed: tuple[HashedElsewhere, ...]


class Backend(Protocol):
    """One update on one rank: `mint2m_trainer.update.Update`, or a test's double of it."""

    phases: tuple[str, ...]

    def run(self, phase: str, progress: Callable[[str, int, int], None]) -> PhaseOutcome: ...
    def position(self) -> Position | None: ...
    def flight(self) -> bytes | None: ...
    def close(self) -> None: ...


class RankActor:
    """Made a Ray actor by the driver, with its name, bundle and resources."""

    def __init__(self, task: RankTask, coordinator: Any) -> None:
        self._task, self._coordinator = task, coordinator
        self._backend: Backend | None = None
        self._teller: Teller | None = None
        self._log: RankLog | None = None
        self._next = 0
        self._told = 0.0

    def hello(self) -> Hello:
        """Who this process is, where it runs, and what it sees in the run directory."""
        task = self._task
        with told_as_rank_error(task.rank, "start"):
            process = identify(os.getpid())
            if process is None:
                raise RuntimeError("this process is not in /proc")
            plan = Plan.parse(read_once(task.run_dir / PLAN), file=PLAN)
            return Hello(
                rank=task.rank,
                pid=process.pid,
                start_ticks=process.start_ticks,
                node_ip=ray.util.get_node_ip_address(),
                bundle=bundle(),
                accelerator=accelerator(),
                runtime_identity_sha256=observe(image_digest=task.image_digest).sha256,
                source_sha256=source_sha256(),
                plan_sha256=plan.computed_sha256(),
            )

    def rendezvous(self) -> Rendezvous:
        """A port on this rank's node that is free now; asked of rank 0 only."""
        with told_as_rank_error(self._task.rank, "start"):
            return free_rendezvous(None)

    def phase(self, name: str, rendezvous: Rendezvous) -> PhaseReply:
        """Run the next phase, which must be `name`."""
        task = self._task
        with told_as_rank_error(task.rank, name):
            if self._next >= len(task.phases) or task.phases[self._next] != name:
                raise RuntimeError(f"asked for {name}, the plan has {task.phases[self._next :][:1]} next")
            started_at, over = utc_now(), time.monotonic() + task.profile.timeouts_s.phase
            if self._log is None:
                self._log = RankLog(task.run_dir, task.rank)
            with self._log.around(name):
                if self._backend is None:
                    self._backend = self._make(rendezvous)
                    self._teller = Teller(task.rank, self._backend.position, self._coordinator)
                place = task.run_dir / rank_flight(task.rank)
                with recording(place, over - time.monotonic(), self._backend.flight):
                    outcome = self._backend.run(name, self._tell(name))
            ended_at = utc_now()
            self._next += 1
            return PhaseReply(
                rank=task.rank,
                phase=name,
                started_at=started_at,
                ended_at=ended_at,
                evidence=outcome.evidence,
                written=hash_written(task.run_dir, outcome.files, outcome.hashed),
            )

    def close(self) -> bool:
        """Leave the process groups; True once nothing of the backend is left. May be called twice."""
        with told_as_rank_error(self._task.rank, "close"):
            if self._teller is not None:
                self._teller.stop()
            if self._backend is not None:
                self._backend.close()
                self._backend = None
            if self._log is not None:
                self._log.close()
            return True

    def _make(self, rendezvous: Rendezvous) -> Backend:
        task = self._task
        bind_collectives(ray.util.get_node_ip_address())
        os.environ.update(
            RANK=str(task.rank),
            WORLD_SIZE=str(task.world_size),
            MASTER_ADDR=rendezvous.address,
            MASTER_PORT=str(rendezvous.port),
        )
        module, _, attribute = task.backend.partition(":")
        found = importlib.import_module(module)
        inputs = found.RankInputs(
            rank=task.rank,
            world_size=task.world_size,
            master_address=rendezvous.address,
            master_port=rendezvous.port,
            run_dir=task.run_dir,
            snapshot=task.snapshot,
            adapter=task.adapter,
            profile=task.profile,
            rollout=task.rollout,
            plan_sha256=task.plan_sha256,
            execution_id=task.execution_id,
            image_digest=task.image_digest,
            progress=task.progress,
            moments=task.moments,
            steps_before=task.steps_before,
            accumulation=task.accumulation,
            gradient=task.gradient,
        )
        if task.instruments is not None:
            task.instruments.mkdir(parents=True, exist_ok=True)  # each node has a disk of its own
            inputs = replace(inputs, instruments=task.instruments)
        backend: Backend = getattr(found, attribute)(inputs)
        if tuple(backend.phases) != task.phases:
            raise RuntimeError(f"the backend runs {backend.phases}, the plan has {task.phases}")
        return backend

    def _tell(self, phase: str) -> Callable[[str, int, int], None]:
        self._told = 0.0  # the first word of a phase says from where it goes on, and is never held back

        def progress(_label: str, done: int, total: int) -> None:
            now = time.monotonic()
            if now - self._told >= PROGRESS_INTERVAL_S or done == total:
                self._told = now
                self._coordinator.report.remote(Progress(rank=self._task.rank, phase=phase, done=done, total=total))

        return progress


def free_rendezvous(port: int | None) -> Rendezvous:
    """This node's address with `port`, or with one that is free now."""
    address = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, port or 0))
        return Rendezvous(address=address, port=probe.getsockname()[1])


def bundle() -> int:
    """The placement-group bundle that Ray put this actor into.

    Ray names the granted resources `CPU_group_<bundle>_<group id>`; the documented API hides the index.
    """
    granted = ray._private.worker.global_worker.core_worker.resource_ids()
    indices = {
        int(parts[2]) for name in granted if (parts := name.split("_"))[:2] == ["CPU", "group"] and len(parts) == 4
    }
    if len(indices) != 1:
        raise RuntimeError(f"not in exactly one bundle: {sorted(granted)}")
    return indices.pop()


def accelerator() -> str:
    """The accelerator that Ray granted this actor, `cpu` for none."""
    ids = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return f"gpu-{ids[0]}" if ids else "cpu"
