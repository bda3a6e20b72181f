"""`mint2m fixture build | check`: the training input and what binds it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mint2m.outcome import Format, Outcome, present

Form: TypeAlias = Annotated[Format, typer.Option("--format", help="text or json.")]
Model: TypeAlias = Annotated[Path | None, typer.Option("--model", metavar="DIR", help="Model snapshot it is for.")]
ProfileFile: TypeAlias = Annotated[Path | None, typer.Option("--profile", help="Run profile it is for.")]
Revision: TypeAlias = Annotated[str | None, typer.Option("--revision", help="Model revision it is for.")]
Adapter: TypeAlias = Annotated[
    Path | None, typer.Option("--adapter", metavar="DIR", help="PEFT adapter to be trained on; else a fresh one.")
]


def register(app: typer.Typer) -> None:
    """Add the `fixture` group."""
    group = typer.Typer(help="Build and check training fixtures.", no_args_is_help=True)
    group.command("build")(build)
    group.command("check")(check)
    app.add_typer(group, name="fixture")


def build(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Gets fixture, payload and rollout.")],
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="Model snapshot it is for.")],
    revision: Annotated[str, typer.Option("--revision", help="Model revision it is for.")],
    profile: Annotated[Path, typer.Option("--profile", help="Run profile it is for.")],
    adapter: Adapter = None,
    text: Annotated[Path | None, typer.Option("--text", help="UTF-8 document; else a generated ledger.")] = None,
    question: Annotated[str | None, typer.Option("--question", help="Asked after the document.")] = None,
    answer: Annotated[str | None, typer.Option("--answer", help="The right answer.")] = None,
    response: Annotated[list[str] | None, typer.Option("--response", help="A response; twice or more.")] = None,
    license_: Annotated[str | None, typer.Option("--license", help="Licence of the document.")] = None,
    statement: Annotated[str | None, typer.Option("--statement", help="Why you may train on it.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the generated ledger.")] = 0,
) -> Outcome:
    """Build fixture, payload and rollout from a text of yours, or from a generated ledger of the profile's length."""
    from mint2m_trainer.fixture_request import TextRequest, build_from_request

    wanted = TextRequest.of(text, question, answer, tuple(response or ()), license_, statement)
    path = build_from_request(
        output, wanted, seed=seed, model=model, revision=revision, profile=profile, adapter=adapter
    )
    return Outcome(text=f"{path.path}\nsha256  {path.sha256}")


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A training fixture.")],
    model: Model = None,
    revision: Revision = None,
    profile: ProfileFile = None,
    adapter: Adapter = None,
    form: Form = Format.TEXT,
) -> Outcome:
    """Check a fixture and the two files beside it; more strictly the more you say of what it is for."""
    from mint2m_verify.fixture import check_fixture
    from mint2m_verify.fixture_expectations import expected_of

    wanted = expected_of(model=model, revision=revision, profile=profile, adapter=adapter)
    return present(check_fixture(file, wanted), form)
