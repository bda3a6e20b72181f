"""One way in and one way out of the command line: every ending becomes an outcome, printed once.

The only broad `except` of the project is here: a bug is exit 70, never a verdict on evidence.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections.abc import Sequence

import click

from mint2m.outcome import Format, Outcome, present
from mint2m_verify.finding import Finding, FindingError, Report, found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    outcome = run(arguments)
    try:
        if outcome.text:
            ended = outcome.exact or outcome.text.endswith("\n")
            sys.stdout.write(outcome.text if ended else outcome.text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away; the verdict stands, and the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(int(outcome.verdict))


def run(arguments: Sequence[str]) -> Outcome:
    """The outcome of one command line; never raises for anything but a request to stop the interpreter."""
    from mint2m.app import VersionAsked, build

    arguments = list(arguments)
    debug = "--debug" in arguments
    # --debug is welcome anywhere on the line, not only before the command.
    words = [word for word in arguments if word != "--debug"]
    try:
        import typer

        result = typer.main.get_command(build()).main(args=words, prog_name="mint2m", standalone_mode=False)
    except VersionAsked as asked:
        return asked.outcome
    except click.ClickException as fault:
        return _fault(_usage(fault), words)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _fault(found("usage.interrupted"), words)
    except FindingError as fault:
        return _fault(fault.finding, words)
    except OSError as fault:
        if debug:
            traceback.print_exc()
        return _fault(found("tool.io", file=_name(fault.filename), actual=fault.strerror or str(fault)), words)
    except Exception as fault:  # noqa: BLE001 - the one broad catch of the project
        if debug:
            traceback.print_exc()
        return _fault(found("tool.internal", actual=f"{type(fault).__name__}: {fault}"), words)
    return result if isinstance(result, Outcome) else Outcome(text="")


def _fault(finding: Finding, words: Sequence[str]) -> Outcome:
    command = " ".join(word for word in words[:2] if not word.startswith("-"))
    report = Report(subject=command or "mint2m", command=command or "mint2m", findings=(finding,))
    return present(report, Format.JSON if _wants_json(words) else Format.TEXT)


def _wants_json(words: Sequence[str]) -> bool:
    return "--format=json" in words or any(
        word == "--format" and following == "json" for word, following in itertools.pairwise(words)
    )


def _usage(fault: click.ClickException) -> Finding:
    if isinstance(fault, click.NoSuchOption | click.BadParameter | click.MissingParameter):
        return found("usage.invalid", actual=fault.format_message())
    return found("usage.invalid", actual=_suggest(fault))


def _suggest(fault: click.ClickException) -> str:
    """`No command "verifi". Did you mean "verify"?` for a mistyped command; click's words for anything else."""
    context = getattr(fault, "ctx", None)
    message = fault.format_message()
    if context is None or not message.startswith("No such command"):
        return message
    import difflib

    word = message.split("'")[1]
    known = context.command.list_commands(context)
    close = difflib.get_close_matches(word, known, n=1)
    return f'No command "{word}".' + (f' Did you mean "{close[0]}"?' if close else f" There are: {', '.join(known)}.")


def _name(filename: object) -> str | None:
    return os.fsdecode(filename) if isinstance(filename, str | bytes) else None


if __name__ == "__main__":
    main()
