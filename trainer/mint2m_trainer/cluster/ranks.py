"""The run's placement group, coordinator and rank actors: made, driven in lock step, shut down, proven absent.

The rule: an intent is journalled before each thing is made and its id after; every rank runs the same phase at the
same time; and the group of ranks ends as a whole, since ranks wait for each other inside collectives. Shutting down
comes before killing, because `ray.kill` skips every handler.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mint2m_trainer.cluster.coordinator import Coordinator
from mint2m_trainer.cluster.flight_record import records_of
from mint2m_trainer.cluster.journal import Journal, resource
from mint2m_trainer.cluster.messages import FINDING_IDS, Hello, PhaseReply, Progress, RankError, RankTask, Rendezvous
from mint2m_trainer.cluster.nodes import bundle_resources
from mint2m_trainer.cluster.process import ProcessId, alive
from mint2m_trainer.cluster.pulse import Pulse
from mint2m_trainer.cluster.rank_actor import RankActor
from mint2m_trainer.cluster.whereabouts import diagnosis
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import OwnedResource
from mint2m_verify.finding import Finding, FindingError, found

#: Seconds between looks at the ranks: an interrupt, a dead rank and a word of progress are noticed this soon.
_POLL_S = 0.1

#: Seconds in which Ray says that a rank is dead after the other ranks have noticed. Of a lost node it hears by missing
#: it five times, three seconds apart.
_DEATH_HEARD_S = 30.0

#: Seconds in which the coordinator says where ranks are.
_ANSWER_S = 5.0

#: Seconds in which late ranks write their flight records; their time is over a moment after the driver's.
_RECORDED_S = 5.0

#: Environment of every rank. Without the first, torch compiles for 25 s before the first forward on CPU; one thread
#: a rank, so that two ranks do not fight over cores and results do not depend on a machine's core count.
_RANK_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(slots=True)
class Ranks:
    """Everything of the run inside Ray. Fields fill as things are made; `end` takes down whatever there is."""

    plan: Plan
    journal: Journal
    local: bool
    #: Raises where the operator wants the run to end; looked at wherever this waits.
    check: Callable[[], None]
    #: Of the cluster's head; once it is lost, nothing can be shown to be absent, and `end` journals nothing.
    pulse: Pulse
    #: What becomes a rank's actor; it answers `hello`, `rendezvous`, `phase` and `close`.
    actor_class: type = RankActor
    #: More environment for every rank.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Where late ranks leave their flight records; None where they leave none.
    run_dir: Path | None = None
    group: PlacementGroup | None = None
    coordinator: Any = None
    actors: list[Any] = field(default_factory=list)
    hellos: tuple[Hello, ...] = ()
    rendezvous: Rendezvous | None = None

    def make(self, tasks: Sequence[RankTask]) -> None:
        """Coordinator, placement group and rank actors, each journalled, all answering.

        Raises:
            FindingError: `ray.placement-timeout`, `ray.start-failed`, `rank.*`.
        """
        plan, deadline = self.plan, time.monotonic() + self.plan.timeouts_s.start
        self._make_coordinator(deadline)
        self._make_group(deadline)
        # One more variable of this process's own: where tests keep their doubles, and where an editable install lies.
        environment = _RANK_ENVIRONMENT | {name: os.environ[name] for name in ("PYTHONPATH",) if os.environ.get(name)}
        environment |= self.environment
        remote = ray.remote(self.actor_class)  # once: each call is a class of its own, exported to the cluster
        for planned, task in zip(plan.placement.ranks, tasks, strict=True):
            bundle = plan.placement.bundles[planned.bundle]
            wants = bundle_resources(bundle)
            self.journal.write("intent", resource("actor", planned.actor, node_ip=planned.node_ip))
            actor = remote.options(
                name=planned.actor,
                num_cpus=wants.pop("CPU"),
                num_gpus=wants.pop("GPU", 0),
                resources=wants,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self.group, placement_group_bundle_index=bundle.index
                ),
                runtime_env={"env_vars": environment},
            ).remote(task, self.coordinator)
            self.actors.append(actor)
            self.journal.write(
                "created", resource("actor", planned.actor, id=_actor_id(actor), node_ip=planned.node_ip)
            )
        self.hellos = tuple(self._together("start", lambda actor: actor.hello.remote(), deadline))
        for planned, actor, hello in zip(plan.placement.ranks, self.actors, self.hellos, strict=True):
            # The id again, now with the process: cleanup can then find the process without Ray.
            self.journal.write(
                "created",
                resource(
                    "actor",
                    planned.actor,
                    id=_actor_id(actor),
                    pid=hello.pid,
                    start_ticks=hello.start_ticks,
                    node_ip=hello.node_ip,
                ),
            )
        self.meet(deadline)

    def meet(self, deadline: float) -> None:
        """Have rank 0 name a new place to meet. Groups that are opened anew must not find the store of the old ones."""
        (self.rendezvous,) = self._together(
            "start", lambda actor: actor.rendezvous.remote(), deadline, actors=self.actors[:1]
        )

    def run(self, phase: str, watch: Callable[[Progress], None]) -> tuple[PhaseReply, ...]:
        """One phase on every rank at once; replies by rank. Raises `FindingError` (`rank.*`)."""
        deadline = time.monotonic() + self.plan.timeouts_s.phase
        rendezvous = self.rendezvous
        return tuple(self._together(phase, lambda actor: actor.phase.remote(phase, rendezvous), deadline, watch=watch))

    def actor_ids(self) -> tuple[str, ...]:
        """Ray's ids of the rank actors that were made, by rank."""
        return tuple(_actor_id(actor) for actor in self.actors)

    def close(self, *, limit: float) -> tuple[bool, ...]:
        """Ask every rank to leave its process groups; for each whether it did within `limit` seconds."""
        asked = [actor.close.remote() for actor in self.actors]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=limit) if asked else ([], [])
        return tuple(reference in done and _answered(reference) for reference in asked)

    def end(self) -> tuple[OwnedResource, ...]:
        """Kill actors, remove the group, kill the coordinator, and look until each is gone. Returns what stays."""
        if not self.pulse.reached():
            return ()  # Ray can neither end an actor now nor say whether one ended; its nodes end by themselves
        deadline = time.monotonic() + self.plan.timeouts_s.cleanup
        remaining = []
        for actor in self.actors:  # all of them before any is waited for, so that they end side by side
            ray.kill(actor, no_restart=True)
        for planned, actor in zip(self.plan.placement.ranks, self.actors, strict=False):
            hello = next((h for h in self.hellos if h.rank == planned.rank), None)
            about = resource(
                "actor",
                planned.actor,
                id=_actor_id(actor),
                pid=None if hello is None else hello.pid,
                start_ticks=None if hello is None else hello.start_ticks,
                node_ip=planned.node_ip,
            )
            remaining += self._settle(about, lambda p=planned, h=hello: self._actor_gone(p.actor, h), deadline)
        if self.group is not None:
            remove_placement_group(self.group)
            about = resource("placement-group", self.plan.placement.group, id=self.group.id.hex())
            remaining += self._settle(about, self._group_gone, deadline)
        if self.coordinator is not None:
            ray.kill(self.coordinator, no_restart=True)
            name = self.plan.placement.coordinator
            about = resource("actor", name, id=_actor_id(self.coordinator))
            remaining += self._settle(about, lambda: self._actor_gone(name, None), deadline)
        return tuple(remaining)

    def _look(self, stage: str) -> None:
        """Raise where the operator wants the run to end, or the cluster has lost its head."""
        self.check()
        self.pulse.check(stage)

    def _make_coordinator(self, deadline: float) -> None:
        name, ip = self.plan.placement.coordinator, self.plan.deployment.node_ips[0]
        self.journal.write("intent", resource("actor", name, node_ip=ip))
        bundle = self.plan.placement.bundles[0]
        try:
            self.coordinator = (
                ray.remote(Coordinator)
                .options(
                    name=name,
                    num_cpus=0,
                    resources={item.name: item.amount for item in bundle.resources},
                    max_restarts=0,
                )
                .remote(self.journal.execution_id)
            )
        except ValueError as fault:  # what Ray raises for a name that is taken
            self.journal.write("absent", resource("actor", name), detail="not made: another run has the name")
            raise FindingError(found("ray.start-failed", expected=f"{name} to be free", actual=str(fault))) from fault
        self.journal.write("created", resource("actor", name, id=_actor_id(self.coordinator), node_ip=ip))
        answer = self.coordinator.execution_id.remote()
        if not self._ready(answer, deadline) or not _answered(answer):
            raise FindingError(found("ray.start-failed", expected=f"{name} to answer", actual="nothing in time"))

    def _make_group(self, deadline: float) -> None:
        name = self.plan.placement.group
        self.journal.write("intent", resource("placement-group", name))
        bundles = [bundle_resources(bundle) for bundle in self.plan.placement.bundles]
        self.group = placement_group(bundles, strategy="PACK", name=name)
        self.journal.write("created", resource("placement-group", name, id=self.group.id.hex()))
        if not self._ready(self.group.ready(), deadline):
            limit = f"within {self.plan.timeouts_s.start} s"
            raise FindingError(found("ray.placement-timeout", file=name, expected=limit))

    def _ready(self, reference: Any, deadline: float) -> bool:
        """Wait for one answer, in short steps."""
        while time.monotonic() < deadline:
            self._look("start")
            done, _ = ray.wait([reference], timeout=_POLL_S)
            if done:
                return True
        return False

    def _together(
        self,
        phase: str,
        ask: Callable[[Any], Any],
        deadline: float,
        *,
        actors: Sequence[Any] | None = None,
        watch: Callable[[Progress], None] | None = None,
    ) -> list[Any]:
        """Ask all ranks the same and wait for all; the first fault ends the wait, since the others may wait for it."""
        asked = {ask(actor): rank for rank, actor in enumerate(self.actors if actors is None else actors)}
        waiting, answers = list(asked), {}
        while waiting:
            self._look(phase)
            # Until all have answered, or for one look's time: a look between any two answers would be a call of the
            # coordinator for every rank, each of which brings a word of every rank.
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
            for reference in done:
                try:
                    answers[asked[reference]] = _answer(reference, asked[reference], phase)
                except FindingError as fault:
                    # Those that answered by the same look are among the others: one of them may be the dead one.
                    others = {
                        other: rank for other, rank in asked.items() if rank not in answers and other != reference
                    }
                    dead = _dead_before(fault, others, phase)
                    if dead.finding.id == "rank.died":
                        self.pulse.confirm(phase)
                    raise dead from fault
            if watch is not None and waiting:
                self._watch(watch)
            if waiting and time.monotonic() > deadline:
                raise FindingError(self._late(phase, sorted(asked[reference] for reference in waiting)))
        return [answers[rank] for rank in sorted(answers)]

    def _late(self, phase: str, late: Sequence[int]) -> Finding:
        try:
            words = ray.get(self.coordinator.whereabouts.remote(), timeout=_ANSWER_S)
        except (RayError, GetTimeoutError):
            words = ()
        limit = self.plan.timeouts_s.start if phase == "start" else self.plan.timeouts_s.phase
        waiting = f"waiting for ranks {', '.join(map(str, late))}; {diagnosis(late, words)}"
        if self.run_dir is not None and phase != "start":
            recorded = records_of(self.run_dir, late, seconds=_RECORDED_S, look=self.check)
            waiting += f"; flight records: {recorded}" if recorded else "; no flight record"
        return found("rank.late", stage=phase, expected=f"all ranks within {limit} s", actual=waiting)

    def _watch(self, watch: Callable[[Progress], None]) -> None:
        try:
            words = ray.get(self.coordinator.progress.remote(), timeout=1.0)
        except (RayError, GetTimeoutError):
            return  # progress is for people; a slow coordinator must not end a run
        for word in words:
            watch(word)

    def _actor_gone(self, name: str, hello: Hello | None) -> bool:
        if self.local and hello is not None and alive(ProcessId(pid=hello.pid, start_ticks=hello.start_ticks)):
            return False
        return actor_absent(name, self.plan.namespace)

    def _group_gone(self) -> bool:
        return self.group is None or placement_group_table(self.group).get("state") == "REMOVED"

    def _settle(self, about: OwnedResource, gone: Callable[[], bool], deadline: float) -> list[OwnedResource]:
        while not _surely(gone):
            if time.monotonic() > deadline:
                return [about]
            time.sleep(_POLL_S)
        self.journal.write("absent", about)
        return []


def _surely(gone: Callable[[], bool]) -> bool:
    try:
        return gone()
    except RayError:
        return False  # Ray cannot say, and its timeout would pass for an error of the disk


def actor_absent(name: str, namespace: str) -> bool:
    """Whether Ray knows no live actor of this name."""
    try:
        ray.get_actor(name, namespace=namespace)
    except ValueError:
        return True
    return False


def _actor_id(actor: Any) -> str:
    return str(actor._actor_id.hex())


def _answered(reference: Any) -> bool:
    try:
        return bool(ray.get(reference, timeout=1.0))
    except (RayError, GetTimeoutError):
        return False


def _answer(reference: Any, rank: int, phase: str) -> Any:
    """A rank's answer, or the finding that says what happened to it."""
    try:
        return ray.get(reference)
    except RayActorError as fault:
        actual = f"rank {rank}: {str(fault).splitlines()[0]}"
        raise FindingError(found("rank.died", stage=phase, actual=actual)) from fault
    except RayTaskError as fault:
        cause = fault.cause
        if not isinstance(cause, RankError):
            raise FindingError(found("rank.failed", stage=phase, actual=f"rank {rank}: {cause}")) from fault
        actual = f"rank {rank}: {cause.kind}: {cause.text}"
        raise RankFailedError(found(FINDING_IDS[cause.cause], stage=phase, actual=actual), cause.trace) from fault
    except RayError as fault:
        actual = f"rank {rank}: {str(fault).splitlines()[0]}"
        raise FindingError(found("rank.died", stage=phase, actual=actual)) from fault


def _dead_before(fault: FindingError, waiting: Mapping[Any, int], phase: str) -> FindingError:
    """The death of a rank, where that is what the others' fault comes from.

    Ranks hear of a lost peer at once, through the collective they share with it, and Ray hears of the process later.
    """
    deadline, pending = time.monotonic() + _DEATH_HEARD_S, list(waiting)
    while pending and fault.finding.id != "rank.died" and time.monotonic() < deadline:
        done, pending = ray.wait(pending, num_returns=1, timeout=_POLL_S)
        for reference in done:
            try:
                _answer(reference, waiting[reference], phase)
            except FindingError as other:
                if other.finding.id == "rank.died":
                    return other
    return fault


class RankFailedError(FindingError):
    """A finding together with the rank's own traceback, for `--debug`."""

    def __init__(self, finding: Any, trace: str) -> None:
        super().__init__(finding)
        self.add_note(trace)
