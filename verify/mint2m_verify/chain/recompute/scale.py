"""The scale stage: one whole update at the planned length, as a run directory that has its own verifier.

The rule: nothing of a run is judged here again. `verify run` judges it, every finding of it fails the stage, and what
is added is only that the run is of this plan: its model, inputs, source and length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mint2m_verify import layout
from mint2m_verify.anchor import ConsistencyOnly, VerifyOptions
from mint2m_verify.chain.numbers import Number
from mint2m_verify.chain.recompute.evidence import Evidence, Recomputation
from mint2m_verify.documents import Plan, RankSessions, TrainingReceipt
from mint2m_verify.finding import Finding, FindingError, found
from mint2m_verify.run import verify_run


def recompute(evidence: Evidence, root: Path) -> Recomputation:
    """What `verify run` says of the run below `root`, and whether it is the planned one."""
    tree = f"{evidence.tree}run/"
    try:
        report = verify_run(root / tree, ConsistencyOnly(), VerifyOptions())
        plan = evidence.document(Plan, f"{tree}{layout.PLAN}")
        receipt = evidence.document(TrainingReceipt, f"{tree}{layout.RECEIPT}")
        sessions = evidence.document(RankSessions, f"{tree}{layout.RANK_SESSIONS}")
    except FindingError as fault:
        yield replace(fault.finding, stage="scale-2m")
        return ()
    for finding in report.roots:
        file = None if finding.file is None else f"{tree}{finding.file}"
        yield replace(finding, stage="scale-2m", file=file)
    yield from _as_planned(evidence, plan, f"{tree}{layout.PLAN}")
    if receipt.ends_with_gradient or receipt.files.gradient_before is not None:
        # Its gradient is that of a step which the chain does not hold, or none was stepped on at all.
        yield found(
            "chain.run-not-planned",
            stage="scale-2m",
            file=f"{tree}{layout.RECEIPT}",
            expected="an update of one prompt",
            actual="a run of a step over several",
        )
    steps = sum(phase.evidence.optimizer_steps or 0 for phase in sessions.ranks[0].phases)
    return (
        Number(name="prompt_tokens", value=float(receipt.prompt_tokens), standing="checked"),
        Number(name="responses", value=float(receipt.group_size), standing="checked"),
        Number(name="run.findings", value=float(len(report.roots)), standing="derived"),
        Number(name="optimizer.steps", value=float(steps), standing="attested-only"),
        Number(name="rows.difference", value=receipt.max_row_difference, standing="attested-only"),
        Number(name="loss", value=receipt.loss, standing="derived"),
        Number(name="gradient_norm", value=receipt.gradient_norm, standing="derived"),
    )


def _as_planned(evidence: Evidence, plan: Plan, file: str) -> Iterator[Finding]:
    fixture = evidence.fixture
    for pointer, want, have in (
        ("/deployment/hardware_class", evidence.plan.hardware_class, plan.deployment.hardware_class),
        ("/source_sha256", evidence.plan.source_sha256, plan.source_sha256),
        ("/inputs/runtime_identity/sha256", evidence.plan.runtime_identity.sha256, plan.inputs.runtime_identity.sha256),
        ("/inputs/model_manifest/sha256", evidence.plan.model.manifest.sha256, plan.inputs.model_manifest.sha256),
        ("/inputs/profile/sha256", fixture.profile.sha256, plan.inputs.profile.sha256),
        ("/inputs/rollout/sha256", fixture.rollout.sha256, plan.inputs.rollout.sha256),
        ("/inputs/payload/sha256", fixture.payload.sha256, plan.inputs.payload.sha256),
    ):
        if want != have:
            yield found(
                "chain.run-not-planned", stage="scale-2m", file=file, pointer=pointer, expected=want, actual=have
            )
