"""`mint2m trust init | show | private-root`: policies, and the roots they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Format, Outcome, present


def register(app: typer.Typer) -> None:
    """Add the `trust` group."""
    from mint2m import private_root_command

    group = typer.Typer(help="Write, explain and export what trust rests on.", no_args_is_help=True)
    group.command("init")(init)
    group.command("show")(show)
    private_root_command.add_to(group)
    app.add_typer(group, name="trust")


def init(
    output: Annotated[
        Path | None, typer.Option("--output", help="New file; without it the template is printed.")
    ] = None,
) -> Outcome:
    """Write a policy template; it is refused until its <places> are filled in."""
    from mint2m_verify.policy import material
    from mint2m_verify.render.escape import escape

    if output is None:
        return Outcome(text=material.template(), exact=True)
    material.write_template(output)
    return Outcome(text=f"policy  {escape(str(output))}\n        fill in its <places>, then: mint2m trust show FILE")


def show(
    policy: Annotated[
        str, typer.Argument(metavar="FILE|public-good", help="A policy, or the root that sigstore ships.")
    ],
    form: Annotated[Format, typer.Option("--format", help="Of a report on a policy with faults.")] = Format.TEXT,
) -> Outcome:
    """Say in plain words what a policy accepts and what not; `public-good` prints that trusted root, byte for byte."""
    from mint2m_verify.policy.showing import root_text, show_policy

    root = root_text(policy)
    if root is not None:
        return Outcome(text=root, exact=True)
    report, words = show_policy(Path(policy))
    return present(report, form) if words is None else Outcome(text=words)
