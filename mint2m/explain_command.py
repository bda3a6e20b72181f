"""`mint2m explain ID`: the page of a finding."""

from __future__ import annotations

from typing import Annotated

import typer

from mint2m.outcome import Outcome


def register(app: typer.Typer) -> None:
    """Add the `explain` command."""
    app.command("explain")(explain)


def explain(
    finding: Annotated[str | None, typer.Argument(metavar="FINDING", help="An id such as tree.file-changed.")] = None,
    everything: Annotated[bool, typer.Option("--list", help="Name every finding with its exit code.")] = False,
) -> Outcome:
    """Say what a finding means, what follows from it and what to do."""
    from mint2m_verify.explain import explain as page
    from mint2m_verify.explain import listing

    return Outcome(text=listing() if everything or finding is None else page(finding))
