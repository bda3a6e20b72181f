"""`mint2m replay RUN`: an update or a stage again, on the auditor's own machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Outcome, ReportFormat, present
from mint2m.verify_options import Consistency, Digest, Form, Key, Policy, TrustedRoot


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run directory; with --stage, evidence of a promotion run; with --step, of a training."
        ),
    ],
    model: Annotated[
        Path | None, typer.Option("--model", metavar="DIR", help="Model snapshot, where the run has none.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="Of a promotion run, not a run: actor, parity-32k or parity-64k.")
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Of an online training, not a run: the step to repeat.")
    ] = None,
    plan_key: Annotated[
        Path | None, typer.Option("--plan-key", help="Public key of the planner, with --stage and --key.")
    ] = None,
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    key: Key = None,
    digest: Digest = None,
    consistency_only: Consistency = False,
    logprob: Annotated[float, typer.Option("--max-logprob", min=0, help="Largest log-prob difference.")] = 1e-4,
    loss: Annotated[float, typer.Option("--max-loss", min=0, help="Largest loss difference.")] = 1e-4,
    relative_l2: Annotated[float, typer.Option("--max-relative-l2", min=0, help="Of the gradient.")] = 1e-4,
    form: Form = ReportFormat.TEXT,
) -> Outcome:
    """Repeat an update from its bound inputs on this machine and compare; reads safetensors and JSON only."""
    from mint2m_verify.anchor import choose
    from mint2m_verify.doctor.machine import require_trainer
    from mint2m_verify.finding import FindingError, found

    require_trainer()
    from mint2m_trainer.replay import ReplayRequest, Tolerance
    from mint2m_trainer.replay import replay as repeat

    anchor = choose(
        policy=policy, trusted_root=trusted_root, key=key, digest=digest, consistency_only=consistency_only, at=None
    )
    bounds = Tolerance(logprob=logprob, loss=loss, relative_l2=relative_l2)
    if step is not None:
        from mint2m_trainer.online.replay_step import StepReplay, replay_step

        if stage is not None or plan_key is not None:
            raise FindingError(found("usage.invalid", expected="--step or --stage", actual="both"))
        return present(
            replay_step(StepReplay(training=directory, step=step, anchor=anchor, model=model, tolerance=bounds)), form
        )
    if stage is None and plan_key is None:
        return present(repeat(ReplayRequest(run=directory, anchor=anchor, model=model, tolerance=bounds)), form)
    from mint2m_trainer.stages.replay_stage import replay_stage, stage_request

    wanted = stage_request(directory, stage, anchor=anchor, plan_key=plan_key, model=model, tolerance=bounds)
    return present(replay_stage(wanted), form)
