"""The scale stage: one whole update at the planned length, run and sealed like any other, inside the stage's tree.

It may span sittings: capture and reverse keep their work beside the evidence, and the next attempt, whose execution is
another one and says so, goes on from there. It does not begin at all where the rate measured in the stage before says
that it would not end in the time that the plan gives it.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from mint2m_trainer.cluster.driver import train
from mint2m_trainer.cluster.journal import utc_now
from mint2m_trainer.cluster.progress import Watcher
from mint2m_trainer.resume.folder import Progress
from mint2m_trainer.stages.observing import Look, look, observed
from mint2m_trainer.stages.setting import Setting
from mint2m_trainer.stages.writing import Done
from mint2m_verify import layout
from mint2m_verify.chain.places import NAMED_TOKENS, PLACES, parent_of
from mint2m_verify.doctor import examine_run
from mint2m_verify.documents import RankSessions, Rollout, RunProfile
from mint2m_verify.documents.base import FileRef
from mint2m_verify.documents.validation import RankPhases, StageRank
from mint2m_verify.files import read_once
from mint2m_verify.finding import FindingError, found
from mint2m_verify.phases import CAPTURE_PREFIX, PREFIX_BACKWARD
from mint2m_verify.plan import build_plan
from mint2m_verify.sealing import seal_run

#: The run directory, below the stage's tree.
RUN = "run"


def work(setting: Setting, watcher: Watcher) -> Done:
    """Train and seal; raises `FindingError` (`stage.too-slow` and whatever stops a run)."""
    started_at = utc_now()
    fixture = setting.planned.fixture
    if fixture is None or fixture.deployment is None:
        raise FindingError(found("stage.plan-unsound", stage=setting.stage, expected="a training deployment"))
    _check_time(setting)
    deployment = setting.inputs.directory / fixture.deployment.path
    root = setting.tree / RUN
    examination = examine_run(deployment, profile=None, output=root, of_a_stage=True)
    for fault in examination.findings:
        raise FindingError(fault)
    gathered = examination.gathered
    if gathered is None or gathered.inputs is None:
        raise FindingError(found("run.blocked", actual=examination.doctor.primary_failure))
    plan = build_plan(gathered.inputs, run_id=f"scale-{setting.run_id}", instance_nonce=setting.execution_id)
    # What was kept goes when the stage is sealed, and not before.
    train(root, plan, examination, watcher=watcher, progress=Progress(folder=setting.progress, removed_after=False))
    seal_run(root, setting.signing.signer)
    sessions = RankSessions.parse(read_once(root / layout.RANK_SESSIONS), file=layout.RANK_SESSIONS)
    after = look(setting.plan.image_digest)
    return Done(
        started_at=started_at,
        ended_at=utc_now(),
        after=after,
        ranks=tuple(_rank(setting, root, sessions, number, after) for number in range(len(sessions.ranks))),
    )


def _rank(setting: Setting, root: Path, sessions: RankSessions, number: int, after: Look) -> StageRank:
    """A rank of the run, as its session has it."""
    session = sessions.ranks[number]
    raw = read_once(root / layout.RANK_SESSIONS)
    bound = session.phases[0].evidence
    before = Look(identity=str(bound.runtime_identity_sha256), source=str(bound.source_sha256))
    return StageRank(
        rank=session.rank,
        actor=session.actor,
        actor_id=session.actor_id,
        pid=session.pid,
        node_ip=session.placement.observed_node_ip,
        slot=session.placement.observed_slot,
        device=session.placement.observed_accelerator,
        # A rank of a run observes itself when it binds; what it ran at its end is the driver's look.
        observed=observed(before, after),
        files=(FileRef.of(f"{PLACES[setting.stage].tree}{RUN}/{layout.RANK_SESSIONS}", raw),),
        groups_destroyed=session.cleanup.groups_destroyed,
        absent=session.cleanup.actor_absent,
    )


def _check_time(setting: Setting) -> None:
    """Refuse a length that the rate of the stage before would not reach within the planned seconds."""
    parent = parent_of(setting.stage)
    fixture = setting.planned.fixture
    if parent is None or fixture is None or parent not in NAMED_TOKENS:
        return
    tokens = len(Rollout.parse(read_once(setting.evidence / fixture.rollout.path), file="rollout").prompt_tokens)
    name = f"{PLACES[parent].tree}ratio1/exact/rank-0.phases.json"
    record = RankPhases.parse(read_once(setting.evidence / name), file=name)
    measured = setting.plan.stage(parent)
    if measured is None or measured.fixture is None:
        return
    path = measured.fixture.profile.path
    profile = RunProfile.parse(read_once(setting.evidence / path), file=path, canonical_form=False)
    seconds = sum(
        (_time(phase.ended_at) - _time(phase.started_at)).total_seconds()
        for phase in record.phases
        if phase.phase in (CAPTURE_PREFIX, PREFIX_BACKWARD)
    )
    # Selection scores every earlier row, so the time of a prefix grows with the square of its length at worst.
    ratio = tokens / profile.context.prompt_tokens
    least = seconds * ratio
    if least > setting.planned.limit_s:
        rate = profile.context.prompt_tokens / max(seconds, 1e-9)
        raise FindingError(
            found(
                "stage.too-slow",
                stage=setting.stage,
                expected=f"{tokens} tokens in {setting.planned.limit_s} s",
                actual=f"{rate:.0f} tokens/s at {profile.context.prompt_tokens}: {least:.0f} s at least",
            )
        )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
