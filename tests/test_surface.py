"""The public surface cannot grow or shrink unseen: commands with their options, finding ids, names of packages.

`python tests/test_surface.py > tests/surface.txt` writes the list anew; the change then shows what users will notice.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import click

from mint2m.app import build
from mint2m_verify import schema
from mint2m_verify.catalogue import entries

LIST = Path(__file__).with_name("surface.txt")

#: Packages whose `__all__` is a promise.
PACKAGES = ("mint2m", "mint2m_verify.catalogue", "mint2m_verify.documents", "mint2m_verify.render")


def surface() -> Iterator[str]:
    """One line for each thing that a user can name."""
    yield from sorted(_commands(build(), "mint2m"))
    yield from sorted(f"finding {entry.id} {int(entry.verdict)}" for entry in entries().values())
    yield from (f"schema mint2m.{name}/v1" for name in schema.names())
    for package in PACKAGES:
        yield from sorted(f"name {package}.{name}" for name in importlib.import_module(package).__all__)


def _commands(command: click.Command, name: str) -> Iterator[str]:
    options = sorted(max(parameter.opts, key=len) for parameter in command.params)
    yield " ".join(["command", name, *options])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            assert inner is not None, word
            yield from _commands(inner, f"{name} {word}")


def test_the_public_surface_is_the_one_that_is_written_down() -> None:
    written = LIST.read_text(encoding="utf-8").splitlines()
    now = list(surface())
    assert [line for line in now if line not in written] == []
    assert [line for line in written if line not in now] == []
    assert now == written


if __name__ == "__main__":
    print("\n".join(surface()))
