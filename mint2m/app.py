"""The command tree. A command's module is imported when the command is asked for, so that nothing waits for another.

The rule: what `mint2m --help` shows stands in the table below; a test holds each summary to the beginning of the
command's own help.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import click

from mint2m.examples import add_examples
from mint2m.outcome import Outcome, VersionAsked
from mint2m_verify import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A command or group of the first level: its module adds it with `register(app)`."""

    name: str
    module: str
    summary: str


def _listed(name: str, module: str, summary: str) -> Listed:
    return Listed(name=name, module=f"mint2m.{module}", summary=summary)


#: In the order of `mint2m --help`.
COMMANDS = (
    _listed("doctor", "run_commands", "Look at every prerequisite and name every blocker."),
    _listed("plan", "run_commands", "Write the content-addressed plan of a run."),
    _listed("run", "run_commands", "Doctor, plan, train, sign and verify one run."),
    _listed("online", "online_command", "Sample, reward, train, seal and verify, step by step."),
    _listed("train", "run_commands", "Train as planned."),
    _listed("cleanup", "run_commands", "Remove what an interrupted run owns."),
    _listed("status", "run_commands", "Say what a run's journal, this machine and its cluster know of it."),
    _listed("stage", "stage_commands", "Plan a promotion run and take its stages in order."),
    _listed("verify", "verify_commands", "Verify evidence offline, from its raw artifacts."),
    _listed("replay", "replay_command", "Repeat an update from its bound inputs on this machine and compare."),
    _listed("sign", "sign_commands", "Sign evidence."),
    _listed("keys", "keys_commands", "Make and show signing keys."),
    _listed("trust", "trust_commands", "Write, explain and export what trust rests on."),
    _listed("parity", "parity_commands", "Export and compare the numbers of an update."),
    _listed("evidence", "evidence_commands", "Compare runs, and bind what is published."),
    _listed(
        "model",
        "model_commands",
        "Make or train a tiny model snapshot, or the manifest of one; write an adapter for another loader.",
    ),
    _listed("fixture", "fixture_commands", "Build and check training fixtures."),
    _listed("rollout", "rollout_commands", "Check rollouts that another engine drew."),
    _listed("payload", "payload_commands", "Build the deterministic payload of a long prompt."),
    _listed("schema", "schema_commands", "List, show and apply the JSON Schemas of all documents."),
    _listed("release", "release_commands", "Make releases, and say what stands in their way."),
    _listed("explain", "explain_command", "Say what a finding means, what follows from it and what to do."),
    _listed("completion", "completion_command", "Print a shell's completion script"),
)


class Root(click.Group):
    """`mint2m`, whose commands are built one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            module = next((command.module for command in COMMANDS if command.name == cmd_name), None)
            if module is None:
                return None
            self.commands.update(_commands_of(module))
        return self.commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(command.name, command.summary) for command in COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def build() -> Root:
    """The command line as a whole."""
    return Root(
        name="mint2m",
        help="Run one attested GRPO update over a very long prompt; verify the evidence of others offline.",
        no_args_is_help=True,
        invoke_without_command=True,
        callback=_root,
        params=[
            click.Option(["--version"], is_flag=True, help="Show the version and leave."),
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an internal error."),
        ],
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _commands_of(module: str) -> dict[str, click.Command]:
    """The commands that a module registers, as typer builds them from annotated functions."""
    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(_nothing)  # keeps typer from taking a lone command for the whole application
    importlib.import_module(module).register(app)
    made: Any = typer.main.get_command(app)
    commands: dict[str, click.Command] = made.commands
    for name, command in commands.items():
        add_examples(command, name)
    return commands


def _nothing() -> None:
    """Typer's own root, which is not used."""


@click.pass_context
def _root(context: click.Context, version: bool, debug: bool) -> Outcome | None:
    if version:
        raise VersionAsked(Outcome(text=f"mint2m {__version__}"))
    return Outcome(text=context.get_help()) if context.invoked_subcommand is None else None
