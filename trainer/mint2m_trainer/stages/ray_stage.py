"""The ranks of one stage on Ray: journalled, started, driven label by label, taken down, and shown to be absent.

The rule: what holds for a training run holds here. Intent before each creation, one way out whatever happens, and no
result unless everything owned is absent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mint2m_trainer.cluster.interrupt import Interrupted, Stop
from mint2m_trainer.cluster.journal import Journal, read
from mint2m_trainer.cluster.leftovers import settle_local
from mint2m_trainer.cluster.messages import Hello, PhaseReply, Progress
from mint2m_trainer.cluster.progress import Watcher
from mint2m_trainer.cluster.pulse import Pulse
from mint2m_trainer.cluster.ray_session import LOCAL, RaySession, close_ray, open_ray, ray_silenced
from mint2m_trainer.stages.observing import Look, observed
from mint2m_trainer.stages.setting import Setting
from mint2m_trainer.stages.task import StageTask
from mint2m_verify.chain.ownership import JOURNAL
from mint2m_verify.documents import Rollout, RunProfile
from mint2m_verify.documents.inputs import Timeouts
from mint2m_verify.documents.plan import DeploymentIdentity, Placement
from mint2m_verify.documents.validation import Setting as EnvironmentSetting
from mint2m_verify.documents.validation import StageRank
from mint2m_verify.finding import FindingError, found
from mint2m_verify.plan import identity_of, placement_of

if TYPE_CHECKING:
    from mint2m_trainer.cluster.ranks import Ranks  # imports ray, which must not be imported before `open_ray`

#: Seconds that ranks get to leave their groups when the stage has failed already.
_FAULT_CLOSE_S = 3

#: Port of the rendezvous and selectors of the fabric, as NCCL and the seeds name them.
_PORT, _INTERFACE, _HCA = "NCCL_MASTER_PORT", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlacement:
    """What the cluster's code needs of a plan: where ranks run, under which names, and for how long."""

    deployment: DeploymentIdentity
    namespace: str
    placement: Placement
    timeouts_s: Timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What the ranks do: `worker` is `module:attribute` of the class, `labels` its steps in order."""

    worker: str
    labels: tuple[str, ...]
    profile: RunProfile | None = None
    rollout: Rollout | None = None


def environment_settings() -> tuple[EnvironmentSetting, ...]:
    """The rendezvous port and the fabric's selectors, where the operator's environment sets them."""
    names = (_PORT, _INTERFACE, _HCA)
    return tuple(EnvironmentSetting(name=name, value=os.environ[name]) for name in names if os.environ.get(name))


def run_ranks(setting: Setting, work: RankWork, watcher: Watcher) -> tuple[StageRank, ...]:
    """Run every label on every rank; the ranks as they were and ended. Raises `FindingError` (`ray.*`, `rank.*`)."""
    deployment, plan = setting.inputs.deployment, setting.plan
    stem = f"{setting.stage}-{setting.run_id}"
    placement = StagePlacement(
        deployment=identity_of(deployment),
        namespace=f"mint2m-{stem}",
        placement=placement_of(deployment, plan.topology, f"mint2m-{stem}"),
        timeouts_s=plan.timeouts_s,
    )
    setting.tree.mkdir(parents=True, exist_ok=True)
    journal = Journal.create(
        setting.tree / JOURNAL, plan_sha256=setting.inputs.sha256, execution_id=setting.execution_id
    )
    with journal:
        journal.write("opened", detail=f"mint2m stage {setting.stage}")
        return _Session(setting, work, placement, journal, watcher).through()


class _Session:
    """The part of a stage during which something is owned."""

    def __init__(
        self, setting: Setting, work: RankWork, placement: StagePlacement, journal: Journal, watcher: Watcher
    ) -> None:
        self._setting, self._work, self._placement = setting, work, placement
        self._journal, self._watcher = journal, watcher
        self._stop = Stop()
        self._session: RaySession | None = None
        self._ranks: Ranks | None = None
        self._label = "start"
        self._replies: dict[str, tuple[PhaseReply, ...]] = {}
        self._after: tuple[Look, ...] = ()

    def through(self) -> tuple[StageRank, ...]:
        """Start, work, take down; what stopped it is raised after everything was taken down."""
        complete = False
        interrupt: BaseException | None = None
        with self._stop.listening(), ray_silenced():
            try:
                self._start()
                self._steps()
                complete = True
            except (Interrupted, SystemExit) as stop:
                interrupt = stop
            finally:
                closed, ids, remaining = self._take_down(complete=complete)
        if interrupt is not None:
            what = f"still there: {', '.join(remaining)}" if remaining else "everything this stage owned is absent"
            raise FindingError(found("run.interrupted", stage=self._label, actual=what)) from interrupt
        if remaining:
            raise FindingError(found("run.cleanup-incomplete", stage=self._setting.stage, actual=", ".join(remaining)))
        return self._stage_ranks(closed, ids)

    def _start(self) -> None:
        self._watcher.advance("ray", 0, 1)
        self._session = open_ray(self._placement, self._journal, self._stop.check)
        self._stop.listen()  # Ray has put its own SIGTERM handler in place of ours

        import ray

        from mint2m_trainer.cluster.nodes import check_nodes, live_nodes
        from mint2m_trainer.cluster.ranks import Ranks
        from mint2m_trainer.stages.rank import StageRankActor

        for fault in check_nodes(self._placement, live_nodes(ray.nodes())):
            raise FindingError(fault)
        self._ranks = Ranks(
            plan=self._placement,
            journal=self._journal,
            local=self._placement.deployment.ray_address == LOCAL,
            check=self._stop.check,
            pulse=Pulse(self._session.address),
            actor_class=StageRankActor,
            environment=_fabric(),
        )
        self._ranks.make([self._task(rank) for rank in range(self._setting.plan.topology.world_size)])
        for hello in self._ranks.hellos:
            self._check_hello(hello)
        self._watcher.advance("ray", 1, 1)

    def _steps(self) -> None:
        if self._ranks is None:
            raise RuntimeError("no ranks to drive")
        for label in self._work.labels:
            self._stop.check()
            self._label, begun = label, time.monotonic()
            if self._replies:
                self._ranks.meet(begun + self._placement.timeouts_s.start)
            self._watcher.advance(label, 0, 1)
            self._replies[label] = self._ranks.run(label, self._tell)
            self._watcher.advance(label, 1, 1)
            self._watcher.stage(label, f"{len(self._replies[label])} ranks, {time.monotonic() - begun:.1f} s")
        self._label = "look"
        looks = self._ranks.run("look", lambda _word: None)
        self._after = tuple(
            Look(identity=str(reply.evidence.runtime_identity_sha256), source=str(reply.evidence.source_sha256))
            for reply in looks
        )

    def _tell(self, word: Progress) -> None:
        if word.rank == 0 and word.phase == self._label:
            self._watcher.advance(self._label, word.done, word.total)

    def _check_hello(self, hello: Hello) -> None:
        plan = self._setting.plan
        for what, want, have in (
            ("runtime identity", plan.runtime_identity.sha256, hello.runtime_identity_sha256),
            ("source", plan.source_sha256, hello.source_sha256),
        ):
            if want != have:
                pointer = f"rank {hello.rank}, {what}"
                raise FindingError(
                    found("rank.identity-mismatch", stage="start", pointer=pointer, expected=want, actual=have)
                )

    def _task(self, rank: int) -> StageTask:
        setting, inputs = self._setting, self._setting.inputs
        return StageTask(
            rank=rank,
            world_size=setting.plan.topology.world_size,
            stage=setting.stage,
            root=setting.work.resolve(),
            plan=setting.plan,
            plan_sha256=inputs.sha256,
            execution_id=setting.execution_id,
            snapshot=inputs.snapshot.resolve(),
            adapter=inputs.adapter.resolve(),
            profile=self._work.profile,
            rollout=self._work.rollout,
            labels=self._work.labels,
            worker=self._work.worker,
            port=_port(),
        )

    def _take_down(self, *, complete: bool) -> tuple[tuple[bool, ...], tuple[str, ...], tuple[str, ...]]:
        closed: tuple[bool, ...] = ()
        ids: tuple[str, ...] = ()
        if self._ranks is not None:
            ids = self._ranks.actor_ids()
            limit = self._placement.timeouts_s.cleanup if complete else _FAULT_CLOSE_S
            closed = self._ranks.close(limit=limit)
            self._ranks.end()
        if self._session is not None:
            close_ray(self._session, self._placement, self._journal)
        if self._placement.deployment.ray_address == LOCAL:
            settle_local(self._journal)
        remaining = [f"{item.kind} {item.name}" for item in read(self._journal.path).owned]
        if complete:
            remaining += [f"open session of rank {rank}" for rank, did in enumerate(closed) if not did]
        if remaining:
            self._journal.write("cleanup-failed", detail="; ".join(remaining))
        else:
            self._journal.write("closed", detail="complete" if complete else f"stopped in {self._label}")
        return closed, ids, tuple(remaining)

    def _stage_ranks(self, closed: tuple[bool, ...], ids: tuple[str, ...]) -> tuple[StageRank, ...]:
        if self._ranks is None:
            raise RuntimeError("no ranks were made")
        each = self._placement.deployment.accelerators_per_node
        ranks = []
        for planned, hello, after in zip(self._placement.placement.ranks, self._ranks.hellos, self._after, strict=True):
            before = Look(identity=hello.runtime_identity_sha256, source=hello.source_sha256)
            files = [ref for label in self._work.labels for ref in self._replies[label][planned.rank].files]
            ranks.append(
                StageRank(
                    rank=planned.rank,
                    actor=planned.actor,
                    actor_id=ids[planned.rank],
                    pid=hello.pid,
                    node_ip=hello.node_ip,
                    slot=hello.bundle % each,
                    device=hello.accelerator,
                    observed=observed(before, after),
                    files=tuple(files),
                    groups_destroyed=closed[planned.rank],
                    absent=True,  # the journal is closed only where every actor was found absent
                )
            )
        return tuple(ranks)


def _port() -> int | None:
    value = os.environ.get(_PORT)
    if not value:
        return None
    if not value.isdigit() or not 0 < int(value) < 65536:
        raise FindingError(found("usage.invalid", expected=f"{_PORT} as a port number", actual=value))
    return int(value)


def _fabric() -> Mapping[str, str]:
    """What ranks need to find each other; Gloo takes its interface under a name of its own."""
    found_names = {name: os.environ[name] for name in (_INTERFACE, _HCA) if os.environ.get(name)}
    if _INTERFACE in found_names:
        found_names["GLOO_SOCKET_IFNAME"] = found_names[_INTERFACE]
    return found_names
