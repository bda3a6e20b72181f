"""`mint2m online`: many updates in a row, each from the policy that the one before left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Format, Outcome, present


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("online")(online)


def online(
    deployment: Annotated[Path, typer.Option("--deployment", help="Online deployment: model, dataset, sampling, key.")],
    steps: Annotated[int, typer.Option("--steps", min=1, max=9999, help="Updates to make.")],
    output: Annotated[Path | None, typer.Option("--output", metavar="DIR", help="New training directory.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the training in this directory.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> Outcome:
    """Sample, reward, train, seal and verify, step by step; then sign the training as a whole and verify it."""
    from mint2m.progress import stage_log
    from mint2m_trainer.online.loop import OnlineRequest
    from mint2m_trainer.online.loop import online as whole_training
    from mint2m_verify.finding import FindingError, found

    directory = output or resume
    if directory is None or (output is not None and resume is not None):
        actual = "neither" if directory is None else "both"
        raise FindingError(found("usage.invalid", expected="--output or --resume", actual=actual))
    request = OnlineRequest(deployment=deployment, steps=steps, directory=directory, resume=resume is not None)
    with stage_log() as log:
        report = whole_training(request, log)
    outcome = present(report, form)
    if form is Format.TEXT and log.unseen:
        return Outcome(text="\n".join((*log.unseen, "", outcome.text)), verdict=outcome.verdict)
    return outcome
