"""The command tree. Command modules import what they need when they run, so `--help` and `--version` stay light."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from mint2m.outcome import Outcome, VersionAsked
from mint2m_verify import __version__

#: Modules that each add their commands with `register(app)`, in the order of `mint2m --help`.
COMMAND_MODULES = (
    "mint2m.run_commands",
    "mint2m.verify_commands",
    "mint2m.sign_commands",
    "mint2m.keys_commands",
    "mint2m.parity_commands",
    "mint2m.model_commands",
    "mint2m.fixture_commands",
    "mint2m.schema_commands",
    "mint2m.explain_command",
)


def build() -> typer.Typer:
    """The whole command tree."""
    app = typer.Typer(
        name="mint2m",
        help="Run one attested GRPO update over a very long prompt; verify the evidence of others offline.",
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for module in COMMAND_MODULES:
        importlib.import_module(module).register(app)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")] = False,
) -> Outcome | None:
    if version:
        raise VersionAsked(Outcome(text=f"mint2m {__version__}"))
    if context.invoked_subcommand is None:
        return Outcome(text=context.get_help())
    return None
