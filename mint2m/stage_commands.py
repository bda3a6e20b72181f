"""`mint2m stage plan | doctor | kernel | … | all`: a promotion run, from its signed plan to its last sealed stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from mint2m.outcome import Outcome, ReportFormat, present
from mint2m.signer_options import ask
from mint2m_verify.chain.places import LIMIT_S, ORDER
from mint2m_verify.documents.validation import StageName

if TYPE_CHECKING:
    from mint2m_trainer.stages.run import StageRequest

Form: TypeAlias = Annotated[ReportFormat, typer.Option("--format", help="How the report is written.")]
PlanFile: TypeAlias = Annotated[
    Path, typer.Option("--validation-plan", help="Signed validation plan, its inputs beside it.")
]
RunId: TypeAlias = Annotated[str, typer.Option("--run-id", help="A new UUID; the same for all stages of a run.")]
Evidence: TypeAlias = Annotated[
    Path, typer.Option("--evidence", metavar="DIR", help="Evidence directory, outside every source checkout.")
]
Key: TypeAlias = Annotated[Path, typer.Option("--key", help="Private key of the operator, who seals the stage.")]
PlanKey: TypeAlias = Annotated[
    Path | None, typer.Option("--plan-key", help="Public key of the planner; then the plan must be signed by it.")
]

_SUMMARIES: dict[StageName, str] = {
    "doctor": "Begin a run: every prerequisite looked at, plan and inputs copied.",
    "kernel": "Every hot kernel against float64, over adversarial shapes and ties.",
    "nccl": "Every collective between all ranks, with payloads that can be checked.",
    "actor": "Materialize the policy on all ranks; every loaded tensor named by digest.",
    "parity-32k": "Conventional against resident exact gradient, at 32,768 tokens in a full plan.",
    "parity-64k": "The same at 65,536 tokens.",
    "scale-2m": "One whole update at the planned length, 2,097,152 tokens in a full plan.",
}


def register(app: typer.Typer) -> None:
    """Add the `stage` group: the plan, each stage in order, and all of them."""
    group = typer.Typer(help="Plan a promotion run and take its stages in order.", no_args_is_help=True)
    group.command("plan")(plan)
    for stage in ORDER:
        group.command(stage, help=_SUMMARIES[stage])(_command(stage))
    group.command("all")(every)
    app.add_typer(group, name="stage")


def plan(
    deployment: Annotated[
        str, typer.Option("--deployment", help="Validation deployment, or a packaged set: local, local-small.")
    ],
    nonce: Annotated[str, typer.Option("--instance-nonce", help="New text; only its SHA-256 is kept.")],
    key: Annotated[Path, typer.Option("--key", help="Private key of the planner.")],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="New directory for plan and inputs.")],
    through: Annotated[
        str | None, typer.Option("--through", help="Last stage to plan; otherwise the last that has a case.")
    ] = None,
    limit_s: Annotated[int, typer.Option("--limit-s", min=1, help="Seconds that each stage may take.")] = LIMIT_S,
) -> Outcome:
    """Write and sign the validation plan of a promotion run, with every input that it binds."""
    from mint2m_trainer.stages.planner import PlanRequest, plan_named
    from mint2m_verify.chain.options import last_stage
    from mint2m_verify.chain.places import PLAN
    from mint2m_verify.chain.plan_check import described
    from mint2m_verify.signers.choose import key_file_signer

    request = PlanRequest(
        output=output,
        signer=key_file_signer(key, ask=ask),
        nonce=nonce,
        through=last_stage(through),
        limit_s=limit_s,
    )
    made = plan_named(deployment, request)
    return Outcome(text=f"{described(made.plan, made.sha256)}\n{output / PLAN}\nplan  {made.sha256}")


def every(
    validation_plan: PlanFile,
    run_id: RunId,
    evidence: Evidence,
    key: Key,
    plan_key: PlanKey = None,
    form: Form = ReportFormat.TEXT,
) -> Outcome:
    """Take every stage that the plan requires and that has no seal yet; an interrupted run goes on from there."""
    from mint2m.progress import stage_log
    from mint2m_trainer.stages.run import run_all

    request = _request(validation_plan, run_id, evidence, key, plan_key)
    with stage_log() as log:
        report = run_all(request, log)
    return present(report, form)


def _request(validation_plan: Path, run_id: str, evidence: Path, key: Path, plan_key: Path | None) -> StageRequest:
    """The command line's words; the key is opened here, before anything is started."""
    from mint2m_trainer.run import ChosenSigner
    from mint2m_trainer.stages.run import StageRequest
    from mint2m_verify.signers.choose import key_file_signer

    signer = ChosenSigner(signer=key_file_signer(key, ask=ask), source=key)
    return StageRequest(
        validation_plan=validation_plan, run_id=run_id, evidence=evidence, signer=signer, plan_key=plan_key
    )


def _command(stage: StageName) -> Callable[..., Outcome]:
    """The command of one stage."""

    def one(
        validation_plan: PlanFile,
        run_id: RunId,
        evidence: Evidence,
        key: Key,
        plan_key: PlanKey = None,
        form: Form = ReportFormat.TEXT,
    ) -> Outcome:
        from mint2m.progress import stage_log
        from mint2m_trainer.stages.run import run_stage

        request = _request(validation_plan, run_id, evidence, key, plan_key)
        with stage_log() as log:
            report = run_stage(stage, request, log)
        return present(report, form)

    return one
