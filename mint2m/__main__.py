"""One way in and one way out of the command line: every ending becomes an outcome, printed once.

The only broad `except` of the project is here: a bug is exit 70, never a verdict on evidence.
"""

from __future__ import annotations

import gc
import io
import itertools
import os
import signal
import sys
from collections.abc import Sequence

import click

from mint2m.outcome import Outcome, ReportFormat, VersionAsked, present
from mint2m_verify.finding import Finding, FindingError, Report, Verdict, found

_STDOUT, _STDERR = 1, 2

#: New objects after which the collector of cycles looks: a command makes many at once and few cycles, so that looking
#: every 700 took a twelfth of `verify run`.
_COLLECT_EVERY = 200_000


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(_COLLECT_EVERY)
    _occupy_standard_streams()
    # A terminated command ends like an interrupted one: half-written files go, and it says so.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcome = run(arguments)
    finally:
        signal.signal(signal.SIGTERM, before)
    raise SystemExit(int(_deliver(outcome)))


def _deliver(outcome: Outcome) -> Verdict:
    """Print the outcome; the verdict to leave with, which is no acceptance where nobody could be told of it."""
    text = outcome.text if outcome.exact or outcome.text.endswith("\n") else f"{outcome.text}\n"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that knows ASCII only
    try:
        sys.stdout.write(text if outcome.text else "")
        sys.stdout.flush()
        return outcome.verdict
    except BrokenPipeError:
        verdict = outcome.verdict  # the reader went away; the verdict stands
    except OSError as fault:
        lost = found("tool.io", file="standard output", actual=fault.strerror)
        sys.stderr.write(f"{lost.id}   {lost.message}: {lost.file}: {lost.actual}\n")
        verdict = outcome.verdict or Verdict.IO_ERROR
    # What is still buffered cannot be written, and the interpreter must not complain of it at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return verdict


def _occupy_standard_streams() -> None:
    """Where the shell closed one, its number would go to the next file opened, and a library's prints into that."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdout is None:
        sys.stdout = open(_STDOUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(_STDERR, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def run(arguments: Sequence[str]) -> Outcome:
    """The outcome of one command line; never raises for anything but a request to stop the interpreter."""
    arguments = list(arguments)
    debug = "--debug" in arguments
    # --debug is welcome anywhere on the line, not only before the command.
    words = [word for word in arguments if word != "--debug"]
    try:
        if instruction := os.environ.get("_MINT2M_COMPLETE"):
            from mint2m.completion import answer

            return answer(instruction)
        from mint2m.app import build

        root = build()
        # Not through click's own `main`, which would print, and leave with codes of its own.
        with root.make_context("mint2m", words) as context:
            result = root.invoke(context)
    except VersionAsked as asked:
        return asked.outcome
    except click.exceptions.Exit:  # help was shown
        return Outcome(text="")
    except click.exceptions.NoArgsIsHelpError as fault:
        return Outcome(text=fault.format_message(), verdict=Verdict.BLOCKED)
    except click.ClickException as fault:
        return _fault(_usage(fault), words)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _fault(found("usage.interrupted"), words)
    except FindingError as fault:
        if debug:
            _print_traceback()  # with the rank's own, where it came from one
        return _fault(fault.finding, words)
    except MemoryError:
        return _fault(found("tool.io", actual="out of memory"), words)
    except SystemExit:  # a library's handler of SIGTERM
        return _fault(found("usage.interrupted"), words)
    except OSError as fault:
        if debug:
            _print_traceback()
        return _fault(found("tool.io", file=_name(fault.filename), actual=fault.strerror or str(fault)), words)
    except Exception as fault:  # noqa: BLE001 - the one broad catch of the project
        if debug:
            _print_traceback()
        return _fault(found("tool.internal", actual=f"{type(fault).__name__}: {fault}"), words)
    if not isinstance(result, Outcome):
        return _fault(found("tool.internal", actual=f"the command ended with {result!r}"), words)
    return result


def _print_traceback() -> None:
    import traceback  # seldom wanted, and slow to load

    traceback.print_exc()


def _fault(finding: Finding, words: Sequence[str]) -> Outcome:
    command = " ".join(word for word in words[:2] if not word.startswith("-"))
    report = Report(subject=command or "mint2m", command=command or "mint2m", findings=(finding,))
    return present(report, _form_asked_for(words))


def _form_asked_for(words: Sequence[str]) -> ReportFormat:
    """The form in which even a refusal of the command line is told: a machine that reads the answer reads this, too."""
    given = [word.removeprefix("--format=") for word in words if word.startswith("--format=")]
    given += [following for word, following in itertools.pairwise(words) if word == "--format"]
    known = [form for form in ReportFormat if form.value in given]
    return known[0] if known else ReportFormat.TEXT


def _usage(fault: click.ClickException) -> Finding:
    if isinstance(fault, click.NoSuchOption | click.BadParameter | click.MissingParameter):
        # click breaks lines and indents; a finding's words stand on one.
        return found("usage.invalid", actual=" ".join(fault.format_message().split()))
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
