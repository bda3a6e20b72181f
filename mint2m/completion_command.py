"""`mint2m completion SHELL`: the script that teaches a shell the commands and options."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from mint2m.outcome import Outcome


class Shell(enum.StrEnum):
    """Shells that click can complete for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Add the `completion` command."""
    app.command("completion")(completion)


def completion(shell: Annotated[Shell, typer.Argument(help="Whose script to print.")]) -> Outcome:
    """Print a shell's completion script; for bash: eval "$(mint2m completion bash)"."""
    from mint2m.completion import answer

    return answer(f"{shell.value}_source")
