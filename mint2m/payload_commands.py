"""`mint2m payload build`: the deterministic long prompt, streamed to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Outcome
from mint2m_verify.render.escape import escape


def register(app: typer.Typer) -> None:
    """Add the `payload` group."""
    group = typer.Typer(help="Build the deterministic payload of a long prompt.", no_args_is_help=True)
    group.command("build")(build)
    app.add_typer(group, name="payload")


def build(
    tokens: Annotated[int, typer.Option("--tokens", min=2, max=2_097_152, help="Byte tokens of the prompt, exactly.")],
    output: Annotated[
        Path | None, typer.Option("--output", help="Gets the payload; else only its digest is told.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the generated ledger.")] = 0,
) -> Outcome:
    """Build the training payload of a generated ledger, in bounded memory; the same bytes each time."""
    from mint2m_trainer.contract.payload import build_payload

    made = build_payload(seed, tokens=tokens, output=output)
    place = "not written (no --output)" if output is None else escape(made.path)
    return Outcome(text=f"{place}\ntokens  {tokens}\nbytes   {made.size}\nsha256  {made.sha256}")
