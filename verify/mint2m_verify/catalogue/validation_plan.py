"""Findings about the validation plan: what a promotion run is judged by."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="validation-plan.not-signed",
        verdict=Verdict.FAILED,
        message="the validation plan carries no signature",
        explanation=(
            "attestations/plan.sigstore.json is absent. A plan that nobody signed could have been written, or loosened, after the\n"
            "run that it judges."
        ),
        hint="sign it with mint2m stage plan --key before the first stage",
    ),
    Entry(
        id="validation-plan.statement-mismatch",
        verdict=Verdict.FAILED,
        message="the plan was signed over other bytes",
        explanation=(
            "The plan/v1 statement names a file by digest, and the plan at hand is another: it was changed after the planner signed\n"
            "it, thresholds perhaps. Judge the run by the plan that was signed."
        ),
    ),
    Entry(
        id="validation-plan.stages-invalid",
        verdict=Verdict.FAILED,
        message="the plan does not name the stages in promotion order",
        explanation=(
            "A promotion run begins with doctor and leaves no stage out: doctor, kernel, nccl, actor, parity-32k, parity-64k,\n"
            "scale-2m. A plan requires a beginning of that list, and plans exactly the stages it requires."
        ),
    ),
    Entry(
        id="validation-plan.unbounded",
        verdict=Verdict.FAILED,
        message="the plan leaves a number of its stage without one bound",
        explanation=(
            "Every number that a stage is about needs exactly one bound in the plan. A number without a bound gates nothing, and\n"
            "with two nobody can say which one counted."
        ),
    ),
    Entry(
        id="validation-plan.scope-mismatch",
        verdict=Verdict.FAILED,
        message="the plan claims a scope that a chain of its hardware class has not",
        explanation=(
            "What a promotion chain may be used for follows from its hardware class, and nobody may award it more: not its planner\n"
            "either. This plan claims the scope of other evidence."
        ),
    ),
    Entry(
        id="validation-plan.wrong-length",
        verdict=Verdict.FAILED,
        message="the plan gives a stage of a cluster another length than its name says",
        explanation=(
            "On a cluster parity-32k computes on 32,768 tokens, parity-64k on 65,536 and scale-2m on 2,097,152. Only the reference\n"
            "class may do with fewer; there the plan's own bounds say how many they were."
        ),
    ),
    Entry(
        id="validation-plan.fixture-missing",
        verdict=Verdict.FAILED,
        message="the plan gives a stage no inputs, or inputs to a stage without any",
        explanation=(
            "Actor, parity and scale stages compute on a fixture with its profile, payload and rollout; doctor, kernel and nccl\n"
            "have none. The plan binds all of them before the run."
        ),
    ),
    Entry(
        id="validation-plan.lock-unresolved",
        verdict=Verdict.FAILED,
        message="the runtime lock that the plan binds is not whole",
        explanation=(
            "A part of it is null, a template's or missing, or it cannot be read at all; the pointer says where. Such a lock names nothing that\n"
            "could have run, and `mint2m stage plan` refuses it."
        ),
    ),
    Entry(
        id="validation-plan.lock-differs",
        verdict=Verdict.FAILED,
        message="what ran is not what the plan locked",
        explanation=(
            "The plan binds a runtime lock and a runtime identity, which every rank held itself against. Interpreter, a package's\n"
            "version or the environment differ between the two: one of them is not of this run."
        ),
    ),
)
