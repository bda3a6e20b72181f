"""One rank of a stage as a Ray actor: it observes itself, hands each label to its worker, and observes itself again."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import ray

from mint2m_trainer.cluster.directory import hash_written
from mint2m_trainer.cluster.interface import bind_collectives
from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.cluster.messages import Hello, PhaseReply, Progress, Rendezvous, told_as_rank_error
from mint2m_trainer.cluster.process import identify
from mint2m_trainer.cluster.rank_actor import PROGRESS_INTERVAL_S, accelerator, bundle, free_rendezvous
from mint2m_trainer.stages.observing import look
from mint2m_trainer.stages.task import StageTask
from mint2m_verify.documents.records import PhaseEvidence

#: The last thing every rank is asked: what it runs now.
LOOK = "look"


class Worker(Protocol):
    """What a stage does on one rank."""

    def run(self, label: str, rendezvous: Rendezvous, progress: Callable[[str, int, int], None]) -> tuple[str, ...]:
        """Do one step, meeting the others at `rendezvous`; the files it wrote, relative to the work directory."""
        ...

    def close(self) -> None: ...


class StageRankActor:
    """Made a Ray actor by the driver, with its name, bundle and resources."""

    def __init__(self, task: StageTask, coordinator: Any) -> None:
        self._task, self._coordinator = task, coordinator
        self._worker: Worker | None = None
        self._told = 0.0
        self._met = 0

    def hello(self) -> Hello:
        """Who this process is, where it runs, and what it runs."""
        task = self._task
        with told_as_rank_error(task.rank, "start"):
            process = identify(os.getpid())
            if process is None:
                raise RuntimeError("this process is not in /proc")
            now = look(task.plan.image_digest)
            return Hello(
                rank=task.rank,
                pid=process.pid,
                start_ticks=process.start_ticks,
                node_ip=ray.util.get_node_ip_address(),
                bundle=bundle(),
                accelerator=accelerator(),
                runtime_identity_sha256=now.identity,
                source_sha256=now.source,
                plan_sha256=task.plan_sha256,
            )

    def rendezvous(self) -> Rendezvous:
        """A port on this rank's node for the next groups: from the planned one up, or one that is free now."""
        with told_as_rank_error(self._task.rank, "start"):
            self._met += 1
            port = self._task.port
            return free_rendezvous(None if port is None else port + self._met - 1)

    def phase(self, name: str, rendezvous: Rendezvous) -> PhaseReply:
        """Run one label; `look` is answered by the actor itself."""
        task = self._task
        with told_as_rank_error(task.rank, name):
            started_at = utc_now()
            evidence, files = PhaseEvidence(), ()
            if name == LOOK:
                now = look(task.plan.image_digest)
                evidence = PhaseEvidence(runtime_identity_sha256=now.identity, source_sha256=now.source)
            else:
                if self._worker is None:
                    self._worker = self._make()
                self._tell_where(rendezvous)
                files = self._worker.run(name, rendezvous, self._tell(name))
            return PhaseReply(
                rank=task.rank,
                phase=name,
                started_at=started_at,
                ended_at=utc_now(),
                evidence=evidence,
                written=hash_written(task.root, files),
            )

    def close(self) -> bool:
        """Leave the process groups; True once nothing of the worker is left. May be called twice."""
        with told_as_rank_error(self._task.rank, "close"):
            if self._worker is not None:
                self._worker.close()
                self._worker = None
            return True

    def _tell_where(self, rendezvous: Rendezvous) -> None:
        """What libraries read from the environment about this rank."""
        task = self._task
        bind_collectives(ray.util.get_node_ip_address())
        os.environ.update(
            RANK=str(task.rank),
            WORLD_SIZE=str(task.world_size),
            MASTER_ADDR=rendezvous.address,
            MASTER_PORT=str(rendezvous.port),
        )

    def _make(self) -> Worker:
        module, _, attribute = self._task.worker.partition(":")
        worker: Worker = getattr(importlib.import_module(module), attribute)(self._task)
        return worker

    def _tell(self, label: str) -> Callable[[str, int, int], None]:
        def progress(_word: str, done: int, total: int) -> None:
            now = time.monotonic()
            if now - self._told >= PROGRESS_INTERVAL_S or done == total:
                self._told = now
                self._coordinator.report.remote(Progress(rank=self._task.rank, phase=label, done=done, total=total))

        return progress
