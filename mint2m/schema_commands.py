"""`mint2m schema list | show NAME | check FILE`: the published document types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mint2m.outcome import Format, Outcome, present


def register(app: typer.Typer) -> None:
    """Add the `schema` group."""
    group = typer.Typer(help="List, show and apply the JSON Schemas of all documents.", no_args_is_help=True)
    group.command("list")(list_)
    group.command("show")(show)
    group.command("check")(check)
    app.add_typer(group, name="schema")


def list_() -> Outcome:
    """Name every document type that this tool reads."""
    from mint2m_verify import schema

    return Outcome(text="\n".join(f"mint2m.{name}/v1" for name in schema.names()))


def show(name: Annotated[str, typer.Argument(help="Document type, e.g. plan.")]) -> Outcome:
    """Print a schema as published."""
    from mint2m_verify import schema
    from mint2m_verify.finding import FindingError, found

    wanted = name.removeprefix("mint2m.").removesuffix("/v1")
    if wanted not in schema.names():
        raise FindingError(found("usage.invalid", expected=f"one of {', '.join(schema.names())}", actual=name))
    return Outcome(text=schema.schema_text(wanted))


def check(
    file: Annotated[Path, typer.Argument(help="A JSON document with a `schema` member.")],
    form: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> Outcome:
    """Hold a document against the schema that it names; says nothing about who wrote it."""
    from mint2m_verify import schema

    return present(schema.check_file(file), form)
