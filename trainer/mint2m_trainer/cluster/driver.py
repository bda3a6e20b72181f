"""One run from plan to receipt: refuse, claim, start, drive the phases, shut down, prove absence, write the receipt.

The rule: everything that can be refused is refused before Ray starts; from the first journal line on, every way out
goes through the same shutdown; and a receipt is written only when all phases ran and everything owned is absent. A
failure or an interrupt leaves inputs, plan and journal, finished files of the phases that were completed, and instead
of the receipt a failed receipt, which says where it stopped and that no weight was changed.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mint2m_trainer.cluster.directory import prepare, remove_half_written
from mint2m_trainer.cluster.failure import Stopped, discard_unreceipted, write_failed_receipt
from mint2m_trainer.cluster.interrupt import Interrupted, Stop
from mint2m_trainer.cluster.journal import Journal, opened_words, read, utc_now
from mint2m_trainer.cluster.leftovers import settle_local
from mint2m_trainer.cluster.messages import Hello, PhaseReply, Progress, RankTask
from mint2m_trainer.cluster.narration import phase_line, stage_name
from mint2m_trainer.cluster.outcome import Ended, disagreements, rank_sessions, write_receipt
from mint2m_trainer.cluster.progress import Silent, Watcher
from mint2m_trainer.cluster.pulse import Pulse
from mint2m_trainer.cluster.ray_session import LOCAL, RaySession, close_ray, open_ray, ray_silenced
from mint2m_trainer.outputs import present
from mint2m_trainer.resume.folder import Progress as KeptProgress
from mint2m_trainer.resume.folder import ProgressFolder, input_identity
from mint2m_verify import layout
from mint2m_verify.deployment_files import PlannedInputs
from mint2m_verify.doctor import Examination
from mint2m_verify.doctor.machine import backend_fault
from mint2m_verify.documents.plan import Plan
from mint2m_verify.documents.records import TrainingReceipt
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.plan import check_address, differences, plan_of
from mint2m_verify.runtime_identity import observe
from mint2m_verify.source import observed_sha256

if TYPE_CHECKING:
    from mint2m_trainer.cluster.ranks import Ranks  # imports ray, which must not be imported before `open_ray`

#: The class that makes the update; tests of the lifecycle put a double in its place.
BACKEND = "mint2m_trainer.update:Update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a finished run left: its receipt, and the ranks' replies by phase."""

    receipt: TrainingReceipt
    replies: dict[str, tuple[PhaseReply, ...]]


def check_plan(plan: Plan, inputs: PlannedInputs, *, file: str) -> None:
    """Refuse a plan that was altered, or whose inputs were; raises `FindingError` (`plan.*`)."""
    check_address(plan, file=file)
    if plan.deployment.image_digest is None and plan.deployment.hardware_class != "reference-cpu":
        raise FindingError(found("plan.review-only", file=file, pointer="/deployment/image_digest", actual="null"))
    for fault in differences(plan, plan_of(inputs, run_id=plan.run_id, nonce_sha256=plan.nonce_sha256), file=file):
        raise FindingError(fault)


def train(
    root: Path,
    plan: Plan,
    examination: Examination,
    *,
    journal_path: Path | None = None,
    watcher: Watcher | None = None,
    backend: str = BACKEND,
    progress: KeptProgress | None = None,
    instruments: Path | None = None,
) -> Trained:
    """Run the plan in the run directory `root`.

    Args:
        root: gets copies of the inputs, the artifacts and the receipt; made if it does not exist.
        plan: checked here again against the inputs.
        examination: of this deployment, by the doctor, just now.
        journal_path: `root/ownership.jsonl` unless given.
        backend: `module:attribute` of the update; its module also has `RankInputs`.
        progress: where capture and reverse keep their work, and go on from it; None keeps nothing.
        instruments: directory, outside `root`, for what the ranks' instruments see; None watches nothing.

    Raises:
        FindingError: `backend.unavailable`, `plan.*`, `ownership.exists`, `progress.*`, `ray.*`, `rank.*`, `run.*`.
    """
    watcher = watcher or Silent()
    unavailable = backend_fault()
    if unavailable is not None:
        raise FindingError(unavailable)
    inputs = None if examination.gathered is None else examination.gathered.inputs
    if examination.blocked or inputs is None:
        raise FindingError(found("run.blocked", actual=examination.doctor.primary_failure))
    check_plan(plan, inputs, file=layout.PLAN)
    journal_path = journal_path or root / layout.OWNERSHIP
    if journal_path.exists() or journal_path.is_symlink():
        raise FindingError(found("ownership.exists", file=str(journal_path)))
    execution_id = secrets.token_hex(32)
    started_at = utc_now()
    with contextlib.ExitStack() as held:
        folder: ProgressFolder | None = None
        if progress is not None:
            folder = held.enter_context(
                ProgressFolder.hold(progress.folder, input_identity(plan, inputs), run=root.resolve())
            )
        root.mkdir(parents=True, exist_ok=True)
        prepare(root, plan, inputs, examination.doctor)
        found_there = present(root)
        with Journal.create(journal_path, plan_sha256=plan.plan_sha256, execution_id=execution_id) as journal:
            kept = None if folder is None else folder.path
            journal.write("opened", detail=opened_words(plan.run_id, kept, root=root.resolve()))
            run = _Run(
                root=root.resolve(),
                plan=plan,
                inputs=inputs,
                journal=journal,
                watcher=watcher,
                backend=backend,
                progress=kept,
                instruments=instruments,
            )
            try:
                ended = run.through()
                sessions = rank_sessions(plan, execution_id, run.hellos, run.replies, ended)
                written = {file.file.path: file for phase in run.replies.values() for r in phase for file in r.written}
                receipt = write_receipt(
                    root, plan, sessions, ended, written=written, started_at=started_at, ended_at=utc_now()
                )
            except BaseException as fault:
                discarded = discard_unreceipted(root, run.stage, but=found_there)
                write_failed_receipt(
                    root,
                    plan,
                    fault,
                    Stopped(
                        execution_id=execution_id,
                        started_at=started_at,
                        stage=run.stage,
                        completed=tuple(run.replies),
                        discarded=discarded,
                    ),
                )
                raise
        if folder is not None and progress is not None and progress.removed_after:
            _remove(folder, watcher)
    return Trained(receipt=receipt, replies=run.replies)


def _remove(folder: ProgressFolder, watcher: Watcher) -> None:
    """Remove what has served; the update stands, whether or not its folder can be removed."""
    try:
        folder.remove()
    except OSError as fault:
        watcher.stage("progress", f"{folder.path} is no longer needed and could not be removed: {fault.strerror}")


def drift(plan: Plan) -> Iterator[Finding]:
    """Where what this process runs from is no longer what the plan names; files are hashed again."""
    now = replace(observe(image_digest=plan.deployment.image_digest), source_sha256=observed_sha256())
    for what, want, have in (
        ("source", plan.source_sha256, now.source_sha256),
        ("runtime identity", plan.inputs.runtime_identity.sha256, now.sha256),
    ):
        if want != have:
            yield found("run.identity-drift", stage="receipt", pointer=what, expected=want, actual=have)


class _Run:
    """The part of a run during which something is owned."""

    def __init__(
        self,
        *,
        root: Path,
        plan: Plan,
        inputs: PlannedInputs,
        journal: Journal,
        watcher: Watcher,
        backend: str,
        progress: Path | None,
        instruments: Path | None,
    ) -> None:
        self._root, self._plan, self._inputs, self._progress = root, plan, inputs, progress
        self._journal, self._watcher, self._backend = journal, watcher, backend
        self._instruments = instruments
        self._stop = Stop()
        self._session: RaySession | None = None
        self._ranks: Ranks | None = None
        self.stage = "start"
        self.hellos: tuple[Hello, ...] = ()
        self.replies: dict[str, tuple[PhaseReply, ...]] = {}

    def through(self) -> Ended:
        """All of it; returns how it ended, or raises what stopped it after everything was taken down."""
        complete = False
        interrupt: BaseException | None = None
        # Signals only set a flag, and taking down never looks at it: a second Ctrl-C cannot stop the cleanup that the
        # first one began.
        with self._stop.listening(), ray_silenced():
            try:
                self._start()
                self._phases()
                complete = True
            except (Interrupted, SystemExit) as stop:
                # SystemExit is what Ray's own SIGTERM handler raises until ours is back in its place.
                interrupt = stop
            finally:
                ended, remaining = self._taken_down(complete=complete)
        hint = f"{self._cleanup_command()} looks again"
        if self._progress is not None:
            hint += f"; a new run with --progress {shlex.quote(str(self._progress))} goes on from what was kept"
        if interrupt is not None:
            what = f"still there: {', '.join(remaining)}" if remaining else "everything this run owned is absent"
            raise FindingError(found("run.interrupted", stage=self.stage, actual=what, hint=hint)) from interrupt
        if remaining:
            raise FindingError(found("run.cleanup-incomplete", actual=", ".join(remaining), hint=hint))
        return ended

    def _start(self) -> None:
        plan = self._plan
        self._watcher.advance("ray", 0, 1)
        self._session = open_ray(plan, self._journal, self._stop.check)
        self._stop.listen()  # Ray has put its own SIGTERM handler in place of ours
        self._stop.check()

        import ray

        from mint2m_trainer.cluster.nodes import check_nodes, live_nodes
        from mint2m_trainer.cluster.ranks import Ranks

        for fault in check_nodes(plan, live_nodes(ray.nodes())):
            raise FindingError(fault)
        self._ranks = Ranks(
            plan=plan,
            journal=self._journal,
            local=plan.deployment.ray_address == LOCAL,
            check=self._stop.check,
            pulse=Pulse(self._session.address),
            run_dir=self._root,
        )
        self._ranks.make([self._task(rank) for rank in range(plan.profile.topology.world_size)])
        self.hellos = self._ranks.hellos
        for fault in _observed(plan, self.hellos):
            raise FindingError(fault)
        self._watcher.advance("ray", 1, 1)

    def _phases(self) -> None:
        if self._ranks is None:
            raise RuntimeError("no ranks to drive")
        for phase in self._plan.phases:
            self._stop.check()
            self.stage, begun = phase, time.monotonic()
            self._watcher.advance(stage_name(phase), 0, 1)
            replies = self._ranks.run(phase, self._tell)
            for fault in disagreements(replies):
                raise FindingError(fault)
            self.replies[phase] = replies
            self._watcher.advance(stage_name(phase), 1, 1)
            line = phase_line(self._plan, self._inputs.fixture.rollout, replies, time.monotonic() - begun)
            if line is not None:
                self._watcher.stage(line.name, line.text)
        self.stage = "receipt"
        for fault in drift(self._plan):
            raise FindingError(fault)

    def _tell(self, word: Progress) -> None:
        # All ranks work on the same units in lock step, so rank 0 speaks for all.
        if word.rank == 0 and word.phase == self.stage:
            self._watcher.advance(stage_name(word.phase), word.done, word.total)

    def _task(self, rank: int) -> RankTask:
        inputs, plan = self._inputs, self._plan
        adapter = None if inputs.adapter is None else self._root / layout.ADAPTER_INITIAL.rstrip("/")
        start = inputs.deployment.optimizer
        return RankTask(
            rank=rank,
            world_size=plan.profile.topology.world_size,
            run_dir=self._root,
            snapshot=inputs.snapshot.resolve(),
            adapter=adapter,
            profile=inputs.profile,
            rollout=inputs.fixture.rollout,
            phases=plan.phases,
            plan_sha256=plan.plan_sha256,
            execution_id=self._journal.execution_id,
            image_digest=plan.deployment.image_digest,
            backend=self._backend,
            progress=self._progress,
            instruments=self._instruments,
            moments=None if start is None else self._root / layout.OPTIMIZER_INITIAL,
            steps_before=0 if start is None else start.steps,
            accumulation=inputs.deployment.accumulation,
            gradient=None if inputs.gradient is None else self._root / layout.GRADIENT_INITIAL,
        )

    def _cleanup_command(self) -> str:
        plan, journal = shlex.quote(str(self._root / layout.PLAN)), shlex.quote(str(self._journal.path))
        return f"mint2m cleanup --plan {plan} --ownership {journal}"

    def _taken_down(self, *, complete: bool) -> tuple[Ended, tuple[str, ...]]:
        """`_take_down`, with the way out for an operator whose disk cannot even hold the journal."""
        try:
            return self._take_down(complete=complete)
        except OSError as fault:
            hint = f"make room, then {self._cleanup_command()}"
            raise FindingError(found("tool.io", file=fault.filename, actual=fault.strerror, hint=hint)) from fault

    def _take_down(self, *, complete: bool) -> tuple[Ended, tuple[str, ...]]:
        """Ranks leave their groups, actors end, group and coordinator go, Ray stops; returns what stays."""
        closed: tuple[bool, ...] = ()
        ids: tuple[str, ...] = ()
        if self._ranks is not None:
            ids = self._ranks.actor_ids()
            # After a fault a rank may sit in a collective that never ends; it is not worth the whole cleanup time.
            closed = self._ranks.close(limit=self._plan.timeouts_s.cleanup if complete else _FAULT_CLOSE_S)
            self._ranks.end()
        if self._session is not None:
            close_ray(self._session, self._plan, self._journal)
        if self._plan.deployment.ray_address == LOCAL:
            settle_local(self._journal)
        owned = read(self._journal.path).owned
        remaining = [f"{item.kind} {item.name}" for item in owned]
        remaining += [str(path) for path in remove_half_written(self._root).stayed]
        if complete:
            remaining += [f"open session of rank {rank}" for rank, did in enumerate(closed) if not did]
        if remaining:
            self._journal.write("cleanup-failed", detail="; ".join(remaining))
        else:
            self._journal.write("closed", detail="complete" if complete else f"stopped in {self.stage}")
        names, placement = {item.name for item in owned}, self._plan.placement
        ended = Ended(
            actor_ids=ids,
            closed=closed,
            actors_absent=not any(rank.actor in names for rank in placement.ranks),
            placement_group_absent=placement.group not in names,
            coordinator_absent=placement.coordinator not in names,
        )
        return ended, tuple(remaining)


#: Seconds that ranks get to leave their groups when the run has failed already.
_FAULT_CLOSE_S = 3


def _observed(plan: Plan, hellos: tuple[Hello, ...]) -> Iterator[Finding]:
    """Where ranks are, and what they run, against the plan."""
    each = plan.deployment.accelerators_per_node
    for planned, hello in zip(plan.placement.ranks, hellos, strict=True):
        rows = (
            ("rank.placement-mismatch", "node", planned.node_ip, hello.node_ip),
            ("rank.placement-mismatch", "slot", str(planned.slot), str(hello.bundle % each)),
            (
                "rank.identity-mismatch",
                "runtime identity",
                plan.inputs.runtime_identity.sha256,
                hello.runtime_identity_sha256,
            ),
            ("rank.identity-mismatch", "source", plan.source_sha256, hello.source_sha256),
            ("rank.identity-mismatch", "plan in the run directory", plan.plan_sha256, hello.plan_sha256),
        )
        for fault_id, what, want, have in rows:
            if want != have:
                pointer = f"rank {planned.rank}, {what}"
                yield found(fault_id, stage="start", pointer=pointer, expected=want, actual=have)
    if plan.deployment.hardware_class != "reference-cpu":
        seen = [(hello.node_ip, hello.accelerator) for hello in hellos]
        for place in sorted({place for place in seen if seen.count(place) > 1}):
            yield found(
                "rank.placement-mismatch", stage="start", pointer=place[0], expected="one rank each", actual=place[1]
            )
