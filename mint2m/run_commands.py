"""`mint2m doctor | plan | run | train | cleanup | status`: to a sealed run, and back from a broken one."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.option_groups import grouped
from mint2m.outcome import Format, Outcome, present
from mint2m.signer_options import Signing
from mint2m.verify_options import At, Chain, Policy, TrustedRoot

Form: TypeAlias = Annotated[Format, typer.Option("--format", help="text or json.")]
Deployment: TypeAlias = Annotated[Path, typer.Option("--deployment", help="Deployment file.")]
Profile: TypeAlias = Annotated[
    Path | None, typer.Option("--profile", help="Run profile, where the deployment names none.")
]
PlanFile: TypeAlias = Annotated[Path, typer.Option("--plan", help="Plan of the run.")]
Progress: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--progress", metavar="DIR", help="Keep the prefix's work here; the same folder again goes on from it."
    ),
]
Ownership: TypeAlias = Annotated[Path, typer.Option("--ownership", help="Ownership journal of the run.")]


class Scope(enum.StrEnum):
    """What the doctor looks at."""

    CHECKOUT = "checkout"
    RUN = "run"
    VALIDATION = "validation"


def register(app: typer.Typer) -> None:
    """Add the commands of a run, in the order in which they are used."""
    for command in (doctor, plan, run, train, cleanup, status):
        app.command(command.__name__)(command)


def doctor(
    scope: Annotated[Scope, typer.Option("--scope", help="checkout: a source tree; run, validation: a deployment.")],
    deployment: Annotated[
        Path | None, typer.Option("--deployment", help="Deployment file, for run and validation.")
    ] = None,
    profile: Profile = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="Another deployment that must share what runs.")
    ] = None,
    root: Annotated[Path, typer.Option("--root", help="Source tree, for scope checkout.")] = Path(),
    output: Annotated[Path | None, typer.Option("--output", help="Also write the doctor document here.")] = None,
    chain: Chain = None,
    policy: Policy = None,
    trusted_root: TrustedRoot = None,
    at: At = None,
    form: Form = Format.TEXT,
) -> Outcome:
    """Look at every prerequisite and name every blocker, importing neither ray nor torch nor megatron."""
    from mint2m.run_texts import doctor_outcome
    from mint2m_verify.doctor import examine
    from mint2m_verify.files import write_atomic
    from mint2m_verify.promotion import read_promoting

    promoting = read_promoting(chain=chain, policy=policy, trusted_root=trusted_root, at=at)
    examination = examine(
        scope.value, deployment=deployment, profile=profile, root=root, promoting=promoting, against=against
    )
    if output is not None:
        write_atomic(output, examination.doctor.encode())
    return doctor_outcome(examination, str(deployment or root), form)


def plan(
    deployment: Deployment,
    run_id: Annotated[str, typer.Option("--run-id", help="Label of the run; names of actors begin with it.")],
    instance_nonce: Annotated[str, typer.Option("--instance-nonce", help="New text; only its SHA-256 is kept.")],
    output: Annotated[Path, typer.Option("--output", help="Where to write the plan.")],
    profile: Profile = None,
    form: Form = Format.TEXT,
) -> Outcome:
    """Write the content-addressed plan of a run; nothing is started or connected to."""
    from mint2m.run_texts import plan_outcome
    from mint2m_verify.planning import plan_deployment, write_plan

    made = plan_deployment(deployment, profile=profile, run_id=run_id, instance_nonce=instance_nonce)
    if made.plan is not None:
        write_plan(output, made.plan)
    return plan_outcome(made, output, form)


@grouped
def run(
    deployment: Annotated[str, typer.Option("--deployment", help="Deployment file, or a packaged one: local.")],
    profile: Profile = None,
    instance_nonce: Annotated[str | None, typer.Option("--instance-nonce", help="New text; random if absent.")] = None,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Label of the run.")] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="DIR", help="New run directory.")] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="The same ranks over a short generated prompt; counts as no run.")
    ] = False,
    progress: Progress = None,
    instruments: Annotated[
        Path | None, typer.Option("--instruments", metavar="DIR", help="New directory for traces, routing and audit.")
    ] = None,
    *,
    signing: Signing,
    form: Form = Format.TEXT,
) -> Outcome:
    """Doctor, plan, train, sign and verify one run; without a signer, the deployment's signs."""
    from mint2m.progress import stage_log
    from mint2m.run_texts import run_outcome
    from mint2m_trainer.run import ChosenSigner, RunRequest
    from mint2m_trainer.run import run as whole_run

    request = RunRequest(
        deployment=deployment,
        profile=profile,
        output=output,
        signer=ChosenSigner(signer=signing.choose(), source=signing.key) if signing.options.given else None,
        run_id=run_id,
        instance_nonce=instance_nonce,
        progress=progress,
        instruments=instruments,
        rehearse=rehearse,
    )
    with stage_log() as log:
        result = whole_run(request, log)
    return run_outcome(result, log.unseen, form)


def train(
    plan: PlanFile, ownership: Ownership, deployment: Deployment, profile: Profile = None, progress: Progress = None
) -> Outcome:
    """Train as planned, into the directory of the ownership journal; refuses an altered plan before Ray starts."""
    from mint2m.progress import stage_log
    from mint2m.run_texts import train_outcome
    from mint2m_trainer.train import train_planned

    with stage_log() as log:
        trained = train_planned(plan, ownership, deployment, profile=profile, watcher=log, progress=progress)
    return train_outcome(trained, ownership.parent, log.unseen)


def cleanup(plan: PlanFile, ownership: Ownership, form: Form = Format.TEXT) -> Outcome:
    """Remove what an interrupted run owns, and prove that nothing of it is left."""
    from mint2m_trainer.cluster.cleanup import cleanup as clean

    return present(clean(plan, ownership), form)


def status(ownership: Ownership, form: Form = Format.TEXT) -> Outcome:
    """Say what a run's journal, this machine and its cluster know of it; nothing is changed."""
    from mint2m_trainer.cluster.status import status as look

    return present(look(ownership), form)
