"""`mint2m replay RUN`: the auditor's own machine repeats an update from its bound inputs and compares the numbers.

The rule: the evidence must verify first, and nothing of it is executed: the snapshot is safetensors and JSON, the
adapter too, and the run's checkpoint, whose metadata is a pickle, is not opened. What is compared is what this machine
computed with what the evidence holds; a number of the evidence is never compared with itself.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mint2m_trainer.local_ranks import free_port
from mint2m_trainer.parity_export import run_local
from mint2m_trainer.update import RankInputs
from mint2m_verify import layout
from mint2m_verify.anchor import Anchor, VerifyOptions
from mint2m_verify.deployment_parts import because
from mint2m_verify.documents import Deployment, ModelManifest, Plan, Rollout, RunProfile, Scores
from mint2m_verify.files import read_once
from mint2m_verify.finding import Finding, FindingError, Report, Requirement, Standing, found
from mint2m_verify.input_checks import MODEL_TREE
from mint2m_verify.recompute import parity, step
from mint2m_verify.recompute.tensors import Tensors, read_tensors
from mint2m_verify.run import verify_run
from mint2m_verify.tree import manifest

#: Gradients are a few gigabytes at most.
_TENSOR_LIMIT = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a repetition may be from the evidence: absolute of log-probs and loss, relative L2 of tensors.

    On the machine and packages of the run all of these are zero; elsewhere a matrix product may add in another order.
    """

    logprob: float = 1e-4
    loss: float = 1e-4
    relative_l2: float = 1e-4
    cosine: float = 1 - 1e-7
    delta_relative_l2: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What the auditor asked for; `model` is the snapshot where it did not come with the run."""

    run: Path
    anchor: Anchor
    model: Path | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """One run's numbers: of the evidence, or of the repetition; `after` is None where no step was taken."""

    scores: Scores
    gradient: Tensors
    before: Tensors
    after: Tensors | None


def replay(request: ReplayRequest) -> Report:
    """Verify, repeat, compare.

    Raises:
        FindingError: `replay.model-missing`, `replay.model-mismatch`, `rank.*`, or a run that is no directory.
    """
    root = request.run
    verified = verify_run(root, request.anchor, VerifyOptions())
    if verified.findings:
        # What does not verify is not repeated: there would be nothing to compare with.
        return Report(
            subject=str(root),
            command="replay",
            requirements=verified.requirements,
            findings=verified.findings,
            not_checked=("the numbers: the evidence does not verify, so nothing was repeated",),
            trust=verified.trust,
        )
    rows, findings = repeat(root, request.model, request.tolerance)
    return Report(
        subject=str(root),
        command="replay",
        requirements=rows,
        findings=findings,
        not_checked=("when and on what hardware the evidence was made; that the repeated numbers were made only once",),
        trust=verified.trust,
        claim_scope=verified.claim_scope if not findings else None,
        summary="repeated here from its inputs" if not findings else "",
    )


def repeat(root: Path, model: Path | None, tolerance: Tolerance) -> tuple[tuple[Requirement, ...], tuple[Finding, ...]]:
    """The update of a run that verified, once more, against what it left.

    Raises:
        FindingError: `replay.model-missing`, `replay.model-mismatch` or `rank.*`.
    """
    have = numbers_of(root)
    with tempfile.TemporaryDirectory(prefix="mint2m-replay-") as folder:
        run_local(_inputs(root, snapshot_of(root, model), Path(folder)))
        again = numbers_of(Path(folder))
    return compare(have, again, tolerance)


def compare(have: Numbers, again: Numbers, tolerance: Tolerance) -> tuple[tuple[Requirement, ...], tuple[Finding, ...]]:
    """The repetition against the evidence, row by row."""
    report = parity.compare(
        _side("the repetition", again),
        _side("the evidence", have),
        parity.Thresholds(
            logprob=tolerance.logprob,
            loss=tolerance.loss,
            cosine=tolerance.cosine,
            relative_l2=tolerance.relative_l2,
            zero_mask=1 << 62,  # an element may round to zero on one machine and not on another
        ),
    )
    findings = [_differs(fault) for fault in report.findings]
    delta = None if have.after is None and again.after is None else _delta(have, again)
    if delta is not None and not delta <= tolerance.delta_relative_l2:
        findings.append(
            found(
                "replay.differs",
                file=step.ADAPTER,
                pointer="optimizer delta, relative L2",
                expected=f"at most {tolerance.delta_relative_l2:g}",
                actual=f"{delta:.6g}",
            )
        )
    overall = report.overall
    rows = (
        ("log-probs, largest difference", report.logprob_max_abs),
        ("loss, difference", report.loss_abs),
        ("gradient, relative L2", None if overall is None else overall.relative_l2),
        ("gradient, largest difference", None if overall is None else overall.max_abs),
        *(() if delta is None else (("optimizer delta, relative L2", delta),)),
    )
    standing = Standing.FAILED if findings else Standing.REPLAYED
    return tuple(
        Requirement(required=name, found="no value" if value is None else f"{value:.3g}", standing=standing)
        for name, value in rows
    ), tuple(findings)


def _differs(fault: Finding) -> Finding:
    """What the comparison found, as something that the evidence does not repeat."""
    return found("replay.differs", pointer=fault.pointer or fault.id, expected=fault.expected, actual=fault.actual)


def _side(name: str, numbers: Numbers) -> parity.Side:
    scores = numbers.scores
    return parity.Side(
        name=name,
        gradients=numbers.gradient,
        logprobs=tuple(entry.policy for entry in scores.responses),
        loss=scores.loss,
        gradient_norm=scores.gradient_norm,
        clip_coefficient=scores.clip_coefficient,
        clipped_low=scores.clipped_low,
        clipped_high=scores.clipped_high,
    )


def _delta(have: Numbers, again: Numbers) -> float:
    """Relative L2 of the two optimizer deltas; infinite where the adapters are not of one shape."""
    names = again.before.keys()
    if have.after is None or again.after is None:
        return float("inf")
    if have.before.keys() != names or have.after.keys() != names or again.after.keys() != names:
        return float("inf")
    difference = whole = 0.0
    for name in names:
        mine = again.after[name].astype(np.float64) - again.before[name]
        theirs = have.after[name].astype(np.float64) - have.before[name]
        if mine.shape != theirs.shape:
            return float("inf")
        difference += float(np.sum((theirs - mine) ** 2))
        whole += float(np.sum(mine**2))
    if whole == 0:
        return 0.0 if difference == 0 else float("inf")
    return float(np.sqrt(difference / whole))


def numbers_of(root: Path) -> Numbers:
    """The numbers that lie in a run directory."""
    scores = Scores.parse(read_once(root / layout.SCORES), file=layout.SCORES)
    stepped = os.path.lexists(root / step.ADAPTER)
    return Numbers(
        scores=scores,
        gradient=_tensors(root, layout.GRADIENT),
        before=_tensors(root, step.ADAPTER_BEFORE),
        after=_tensors(root, step.ADAPTER) if stepped else None,
    )


def _tensors(root: Path, name: str) -> Tensors:
    return read_tensors(read_once(root / name, name=name, limit=_TENSOR_LIMIT), file=name)


def snapshot_of(root: Path, model: Path | None, *, manifest_path: str = layout.MODEL_MANIFEST) -> Path:
    """The snapshot, which must be the run's, file by file."""
    place = model or root / layout.MODEL_CONFIG.rpartition("/")[0]
    if not place.is_dir():
        raise FindingError(found("replay.model-missing", file=str(place)))
    want = ModelManifest.parse(read_once(root / manifest_path), file=manifest_path)
    try:
        have = manifest("model", place, MODEL_TREE)
    except FindingError as fault:
        raise FindingError(because("replay.model-missing", fault.finding)) from fault
    if have.sha256 != want.sha256:
        raise FindingError(
            found("replay.model-mismatch", file=str(place), expected=want.root_sha256, actual=have.root_sha256)
        )
    return place


def _inputs(root: Path, snapshot: Path, folder: Path) -> RankInputs:
    profile = RunProfile.parse(read_once(root / layout.PROFILE), file=layout.PROFILE, canonical_form=False)
    plan = Plan.parse(read_once(root / layout.PLAN), file=layout.PLAN)
    given = root / layout.ADAPTER_INITIAL
    deployment = Deployment.parse(read_once(root / layout.DEPLOYMENT), file=layout.DEPLOYMENT, canonical_form=False)
    start, accumulation = deployment.optimizer, deployment.accumulation
    gradient = None if accumulation is None else accumulation.gradient
    return RankInputs(
        rank=0,
        world_size=profile.topology.world_size,
        master_address="127.0.0.1",
        master_port=free_port(),
        run_dir=folder,
        snapshot=snapshot.resolve(),
        adapter=given.resolve() if given.is_dir() else None,
        profile=profile,
        rollout=Rollout.parse(read_once(root / layout.ROLLOUT), file=layout.ROLLOUT),
        plan_sha256=plan.plan_sha256,
        execution_id=secrets.token_hex(32),  # a repetition is an execution of its own
        image_digest=None,
        moments=None if start is None else (root / layout.OPTIMIZER_INITIAL).resolve(),
        steps_before=0 if start is None else start.steps,
        accumulation=accumulation,
        gradient=None if gradient is None else (root / layout.GRADIENT_INITIAL).resolve(),
    )
