"""`mint2m replay EVIDENCE --stage S`: the auditor's own machine repeats a stage of a promotion run and compares.

The rule: the chain through the stage must verify first; then its computations are made again from the plan's inputs,
side by side, and nothing of the evidence is compared with itself. Two sides that agree better with each other than the
repetition's two do were not both computed: one was copied, which no arithmetic over the evidence alone can show.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from mint2m_trainer.cluster.messages import told_as_rank_error
from mint2m_trainer.local_ranks import free_port
from mint2m_trainer.parity_export import on_local_ranks, run_local
from mint2m_trainer.replay import Numbers, Tolerance, compare, numbers_of, snapshot_of
from mint2m_trainer.stages.actor_worker import loaded_tensors
from mint2m_trainer.update import RankInputs, Update
from mint2m_verify.anchor import Anchor, read_key
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.chain import places
from mint2m_verify.chain.cases import COMPUTATIONS, Case, Side, profile_of
from mint2m_verify.chain.options import ChainOptions
from mint2m_verify.chain.recompute import actor, parity
from mint2m_verify.chain.verify import verify_chain
from mint2m_verify.documents import Rollout, RunProfile, Scores
from mint2m_verify.documents.validation import LoadedTensors, PlannedFixture, StageArtifacts, StageName, ValidationPlan
from mint2m_verify.files import read_once, write_atomic
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.recompute.shard_file import ShardFile, Union
from mint2m_verify.recompute.tensors import Tensors

Repeatable = Literal["actor", "parity-32k", "parity-64k"]
REPEATABLE: tuple[Repeatable, ...] = ("actor", "parity-32k", "parity-64k")

#: Two sides are as far apart here as there, but for how sums round on another machine.
_AS_FAR = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplayRequest:
    """What the auditor asked for; `model` is the snapshot where it did not come with the evidence."""

    evidence: Path
    stage: Repeatable
    anchor: Anchor
    plan_anchor: Anchor | None
    model: Path | None
    tolerance: Tolerance


def stage_request(
    evidence: Path,
    stage: str | None,
    *,
    anchor: Anchor,
    plan_key: Path | None,
    model: Path | None,
    tolerance: Tolerance,
) -> StageReplayRequest:
    """The command line's words; raises `FindingError` (`usage.invalid`, `key.*`)."""
    known = next((name for name in REPEATABLE if name == stage), None)
    if known is None:
        expected = f"--stage {' or '.join(REPEATABLE)}; the run of scale-2m is a run directory of its own"
        raise FindingError(found("usage.invalid", expected=expected, actual=stage or "none"))
    return StageReplayRequest(
        evidence=evidence,
        stage=known,
        anchor=anchor,
        plan_anchor=None if plan_key is None else read_key(plan_key),
        model=model,
        tolerance=tolerance,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeating:
    """The evidence as far as a repetition needs it; `digests` are of the stage's raw artifacts, below its tree."""

    root: Path
    stage: Repeatable
    plan: ValidationPlan
    digests: Mapping[str, str]
    snapshot: Path

    def inputs(self, folder: Path) -> RankInputs:
        """What rank 0 of the stage needs; its own files go to `folder`."""
        fixture = self.fixture
        profile = RunProfile.parse(
            read_once(self.root / fixture.profile.path), file=fixture.profile.path, canonical_form=False
        )
        rollout = Rollout.parse(read_once(self.root / fixture.rollout.path), file=fixture.rollout.path)
        return RankInputs(
            rank=0,
            world_size=self.plan.topology.world_size,
            master_address="127.0.0.1",
            master_port=free_port(),
            run_dir=folder,
            snapshot=self.snapshot.resolve(),
            adapter=(self.root / places.INPUTS / "adapter").resolve(),
            profile=profile,
            rollout=rollout,
            plan_sha256=self.plan.sha256,
            execution_id=secrets.token_hex(32),  # a repetition is an execution of its own
            image_digest=None,
        )

    @property
    def fixture(self) -> PlannedFixture:
        planned = self.plan.stage(self.stage)
        if planned is None or planned.fixture is None:
            raise FindingError(found("validation-plan.fixture-missing", stage=self.stage))
        return planned.fixture

    def artifact(self, name: str) -> bytes:
        """The bytes of a raw artifact, as they were verified."""
        raw = read_once(self.root / places.PLACES[self.stage].tree / name, name=name)
        if sha256_hex(raw) != self.digests[name]:
            raise FindingError(found("tree.changed-while-read", stage=self.stage, file=name))
        return raw

    def tensors(self, name: str) -> ShardFile:
        """A raw artifact that holds tensors, as it was verified."""
        return ShardFile(self.root / places.PLACES[self.stage].tree / name, name=name, sha256=self.digests[name])

    @property
    def adapter(self) -> ShardFile:
        """The adapter that both sides started from."""
        ref = next(ref for ref in self.plan.model.adapter if ref.path == actor.ADAPTER)
        return ShardFile(self.root / ref.path, name=ref.path, sha256=ref.sha256)


def replay_stage(request: StageReplayRequest) -> Report:
    """Verify the chain through the stage, repeat the stage, compare.

    Raises:
        FindingError: `replay.model-missing`, `replay.model-mismatch`, `rank.*`, or evidence that is no directory.
    """
    options = ChainOptions(through=_last(request.evidence, request.stage), plan_anchor=request.plan_anchor)
    verified = verify_chain(request.evidence, request.anchor, options)
    if verified.findings:
        return Report(
            subject=str(request.evidence),
            command=f"replay --stage {request.stage}",
            requirements=verified.requirements,
            findings=verified.findings,
            not_checked=("the numbers: the evidence does not verify, so nothing was repeated",),
            trust=verified.trust,
        )
    plan = ValidationPlan.parse(read_once(request.evidence / places.PLAN), file=places.PLAN)
    where = places.PLACES[request.stage].artifacts
    artifacts = StageArtifacts.parse(read_once(request.evidence / where), file=where)
    repeating = _Repeating(
        root=request.evidence,
        stage=request.stage,
        plan=plan,
        digests={entry.path: entry.sha256 for entry in artifacts.files},
        snapshot=snapshot_of(request.evidence, request.model, manifest_path=plan.model.manifest.path),
    )
    if request.stage == "actor":
        rows, findings = _actor(repeating)
    else:
        rows, findings = _parity(repeating, request.tolerance)
    return Report(
        subject=str(request.evidence),
        command=f"replay --stage {request.stage}",
        requirements=rows,
        findings=findings,
        not_checked=(
            "any other stage",
            "when and on what hardware the evidence was made; that the repeated numbers were made only once",
        ),
        trust=verified.trust,
        claim_scope=verified.claim_scope if not findings else None,
        summary=f"{request.stage} repeated here from the plan's inputs" if not findings else "",
    )


def _last(evidence: Path, stage: StageName) -> StageName:
    """The last stage that is sealed there, so that all of the evidence is judged; at least the one asked for."""
    sealed = [name for name in places.ORDER if (evidence / places.PLACES[name].seal).exists()]
    return max((stage, *sealed), key=places.ORDER.index)


# The actor stage


def _actor(repeating: _Repeating) -> tuple[tuple[Requirement, ...], tuple[Finding, ...]]:
    findings: list[Finding] = []
    count = 0
    with tempfile.TemporaryDirectory(prefix="mint2m-replay-") as name:
        folder = Path(name)
        inputs = repeating.inputs(folder)
        on_local_ranks(_materialize, inputs)
        for rank in range(inputs.world_size):
            file = actor.tensors_file(rank)
            again = LoadedTensors.parse(read_once(folder / file), file=file)
            have = LoadedTensors.parse(repeating.artifact(file), file=file)
            count += len(again.base) + len(again.adapter)
            findings += _held(again, have, f"{places.PLACES['actor'].tree}{file}")
    standing = Standing.FAILED if findings else Standing.REPLAYED
    row = Requirement(required="every loaded tensor, on every rank", found=f"{count} tensors", standing=standing)
    return (row,), tuple(findings)


def _materialize(update: Update, inputs: RankInputs) -> None:
    """One rank up to materialization; its list of tensors goes into its run directory."""
    for phase in actor.PHASES:
        with told_as_rank_error(inputs.rank, phase):
            update.run(phase)
    held = loaded_tensors(update, "actor", inputs.execution_id, inputs.rank)
    write_atomic(inputs.run_dir / actor.tensors_file(inputs.rank), held.encode())


def _held(again: LoadedTensors, have: LoadedTensors, file: str) -> Iterator[Finding]:
    """Tensors that one of the two does not hold, or holds with other bytes; then the optimizer."""
    for part in ("base", "adapter"):
        mine = {tensor.name: tensor for tensor in getattr(again, part)}
        theirs = {tensor.name: tensor for tensor in getattr(have, part)}
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                yield found(
                    "replay.differs",
                    stage="actor",
                    file=file,
                    pointer=f"/{part} {name}",
                    expected=mine[name].sha256 if name in mine else "not held",
                    actual=theirs[name].sha256 if name in theirs else "not held",
                )
    if (again.optimizer, again.optimizer_steps) != (have.optimizer, have.optimizer_steps):
        yield found("replay.differs", stage="actor", file=file, pointer="/optimizer")


# A parity stage


def _parity(repeating: _Repeating, tolerance: Tolerance) -> tuple[tuple[Requirement, ...], tuple[Finding, ...]]:
    rows: list[Requirement] = []
    findings: list[Finding] = []
    again: dict[tuple[Case, Side], Tensors] = {}
    have: dict[tuple[Case, Side], Tensors] = {}
    for case, side in COMPUTATIONS:
        label = f"{case}, {side}"
        theirs = _evidence(repeating, case, side)
        with tempfile.TemporaryDirectory(prefix="mint2m-replay-") as folder:
            inputs = repeating.inputs(Path(folder))
            run_local(replace(inputs, profile=profile_of(case, inputs.profile), baseline=side == "conventional"))
            mine = numbers_of(Path(folder))
        compared, faults = compare(theirs, mine, tolerance)
        rows += (replace(row, required=f"{label}: {row.required}") for row in compared)
        findings += (replace(fault, stage=repeating.stage, pointer=f"{label}: {fault.pointer}") for fault in faults)
        again[case, side], have[case, side] = mine.gradient, theirs.gradient
    for case in dict.fromkeys(case for case, _ in COMPUTATIONS):
        mine_apart = _apart(again[case, "conventional"], again[case, "exact"])
        theirs_apart = _apart(have[case, "conventional"], have[case, "exact"])
        copied = theirs_apart < mine_apart / _AS_FAR
        if copied:
            findings.append(
                found(
                    "replay.differs",
                    stage=repeating.stage,
                    file=f"{places.PLACES[repeating.stage].tree}{parity.shard_file(case, 'exact', 0)}",
                    pointer=f"{case}: exact against conventional, relative L2",
                    expected=f"about {mine_apart:.3g}, as here",
                    actual=f"{theirs_apart:.3g}",
                    hint="a side that was copied from the other agrees with it better than two computations do",
                )
            )
        rows.append(
            Requirement(
                required=f"{case}: two computations, not one and its copy",
                found=f"relative L2 {theirs_apart:.3g}, here {mine_apart:.3g}",
                standing=Standing.FAILED if copied else Standing.REPLAYED,
            )
        )
    return tuple(rows), tuple(findings)


def _evidence(repeating: _Repeating, case: Case, side: Side) -> Numbers:
    """What the evidence holds of one computation; it has verified, so nothing of it is missing."""
    ranks = range(repeating.plan.topology.world_size)
    scores = parity.scores_file(case, side)
    return Numbers(
        scores=Scores.parse(repeating.artifact(scores), file=scores),
        gradient=Union([repeating.tensors(parity.shard_file(case, side, rank)) for rank in ranks]),
        before=repeating.adapter,
        after=repeating.tensors(parity.stepped_file(case, side)),
    )


def _apart(reference: Tensors, candidate: Tensors) -> float:
    """Relative L2 of two gradients of one adapter, all elements at once; 0 where both are zero."""
    difference = whole = 0.0
    for name in reference:
        right = reference[name].astype(np.float64)
        difference += float(np.sum((candidate[name] - right) ** 2))
        whole += float(np.sum(right**2))
    if whole == 0:
        return 0.0 if difference == 0 else float("inf")
    return float(np.sqrt(difference / whole))
