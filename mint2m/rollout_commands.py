"""`mint2m rollout check`: rollouts that another engine drew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.outcome import Format, Outcome, present

Form: TypeAlias = Annotated[Format, typer.Option("--format", help="text or json.")]


def register(app: typer.Typer) -> None:
    """Add the `rollout` group."""
    group = typer.Typer(help="Check rollouts that another engine drew.", no_args_is_help=True)
    group.command("check")(check)
    app.add_typer(group, name="rollout")


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, one rollout-record each.")],
    model: Annotated[
        Path | None, typer.Option("--model", metavar="DIR", help="Model snapshot, for the vocabulary.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Model revision that must have drawn them.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", metavar="DIR", help="PEFT adapter that must have drawn them.")
    ] = None,
    no_adapter: Annotated[bool, typer.Option("--no-adapter", help="No adapter may have been there.")] = False,
    marker: Annotated[
        list[str] | None, typer.Option("--marker", help="Words of the prompt's template, in place of common ones.")
    ] = None,
    max_flagged: Annotated[
        float | None, typer.Option("--max-flagged", min=0.0, max=1.0, help="Bound on each share of the decode audit.")
    ] = None,
    form: Form = Format.TEXT,
) -> Outcome:
    """Check an engine's rollouts: tokens, log-probs, policy, parameters, repeats, and signs of broken decoding."""
    from mint2m_verify.rollout_check import check_rollouts, wanted_of

    wanted = wanted_of(
        model=model,
        revision=revision,
        adapter=adapter,
        no_adapter=no_adapter,
        markers=tuple(marker or ()),
        most_flagged=max_flagged,
    )
    return present(check_rollouts(file, wanted), form)
