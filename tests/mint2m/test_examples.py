"""The help of every command ends with examples, and every example is a line that the command takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest

from mint2m.__main__ import run
from mint2m.app import build
from mint2m.examples import EXAMPLES, examples_of


def leaves(command: click.Command, words: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, f"{words} {name}".strip())


LEAVES = dict(leaves(build()))
LINES = [(words, line) for words in LEAVES for line in examples_of(words)]


def test_every_command_has_an_example_and_every_example_a_command() -> None:
    assert [words for words in LEAVES if not examples_of(words)] == []
    assert [words for words in EXAMPLES if words not in LEAVES] == []


@pytest.mark.parametrize(("words", "line"), LINES, ids=[line[:60] for _, line in LINES])
def test_an_example_is_a_line_that_its_command_takes(words: str, line: str) -> None:
    """Parsed by the command itself, which does not run: an option that is gone or was never there is an error."""
    assert line == words or line.startswith(f"{words} ")
    arguments = shlex.split(line.partition(" > ")[0])[len(words.split()) :]
    LEAVES[words].make_context(words, arguments)


@pytest.mark.parametrize("words", LEAVES)
def test_help_shows_each_example_on_a_line_of_its_own(words: str) -> None:
    shown = LEAVES[words].get_help(
        click.Context(LEAVES[words], info_name=words, terminal_width=200, max_content_width=200)
    )
    for line in examples_of(words):
        assert f"mint2m {line}" in [row.strip() for row in shown.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["verify", "run", "DIR", "--polcy", "x"], "--policy"),
        (["verify", "run", "DIR", "--consistency"], "--consistency-only"),
        (["verify", "rum", "DIR"], "run"),
        (["explain", "tree.file-chnged"], "tree.file-changed"),
        (["schema", "show", "training-reciept"], "training-receipt"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_what_was_meant(arguments: list[str], meant: str) -> None:
    outcome = run(arguments)
    assert int(outcome.verdict) == 2
    assert meant in outcome.text
