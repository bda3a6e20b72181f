"""The documents say what is true today: commands, exit codes and links are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mint2m.app import build
from mint2m_verify.finding import Verdict

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])


def commands(group: click.Command, name: str = "mint2m") -> Iterator[tuple[str, click.Command]]:
    """Every command of the tree with its whole name."""
    if isinstance(group, click.Group):
        context = click.Context(group)
        for word in group.list_commands(context):
            command = group.get_command(context, word)
            assert command is not None, word
            yield from commands(command, f"{name} {word}")
    else:
        yield name, group


ALL = dict(commands(build()))


def test_every_command_says_what_it_proves() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(mint2m [a-z -]+)`", text, flags=re.MULTILINE))
    known = {*ALL, *(name.rsplit(" ", 1)[0] for name in ALL)}
    assert listed <= known
    assert {name for name in ALL if name not in listed and name.rsplit(" ", 1)[0] not in listed} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_names_an_option_or_a_file_that_is_not_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^\s*(?:\$ )?(mint2m [^\n]*)", text, flags=re.MULTILINE):
        words = line.split("#")[0].split()
        name = next((" ".join(words[:n]) for n in (3, 2) if " ".join(words[:n]) in ALL), None)
        assert name is not None, line
        known = {option for parameter in ALL[name].params for option in parameter.opts}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= known, line
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / target).exists(), target


def test_the_readme_lists_every_exit_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)} == {*map(int, Verdict)}
