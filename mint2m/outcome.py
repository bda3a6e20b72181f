"""What a command hands back to `main`: the words for stdout and the verdict that becomes the exit code."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.finding import FindingError, Report, Verdict, found


class Format(enum.StrEnum):
    """Forms in which every command answers."""

    TEXT = "text"
    JSON = "json"


class ReportFormat(enum.StrEnum):
    """Forms in which a verification answers: for people, for other tools, and for CI systems."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    JUNIT = "junit"
    MARKDOWN = "markdown"
    GITHUB = "github"
    HTML = "html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`text` goes to stdout, ended by a newline; `verdict` is the exit code.

    `exact`: the text is a document that is addressed by the digest of its bytes, so no newline is added to it.
    """

    text: str
    verdict: Verdict = Verdict.ACCEPTED
    exact: bool = False


class VersionAsked(Exception):  # noqa: N818 - not an error
    """`--version` ends the command line early with this outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.text)
        self.outcome = outcome


#: What the end of a report file's name asks for.
_BY_SUFFIX = {
    ".txt": ReportFormat.TEXT,
    ".json": ReportFormat.JSON,
    ".sarif": ReportFormat.SARIF,
    ".xml": ReportFormat.JUNIT,
    ".md": ReportFormat.MARKDOWN,
    ".html": ReportFormat.HTML,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """Where a report is written beside stdout, and in which form."""

    path: Path
    form: ReportFormat


def report_files(paths: Sequence[Path] | None) -> tuple[ReportFile, ...]:
    """The forms that the names ask for; before the work begins, since a wrong name must not cost a verification.

    Raises:
        FindingError: `usage.invalid` for a name with another end, or in a folder that is not there.
    """
    files = []
    for path in paths or ():
        form = _BY_SUFFIX.get(path.suffix)
        if form is None:
            expected = f"--report with a name that ends in {', '.join(_BY_SUFFIX)}"
            raise FindingError(found("usage.invalid", expected=expected, actual=str(path)))
        if not path.parent.is_dir():
            raise FindingError(found("usage.invalid", expected="--report in a folder that is there", actual=str(path)))
        files.append(ReportFile(path=path, form=form))
    return tuple(files)


def present(report: Report, form: Format | ReportFormat, files: Sequence[ReportFile] = ()) -> Outcome:
    """A report in the form asked for, written to `files` as well; colour only on a terminal without NO_COLOR."""
    from mint2m_verify.render import render

    for file in files:
        from mint2m_verify.files import write_atomic

        write_atomic(file.path, render(report, file.form.value).encode("utf-8"))
    return Outcome(text=render(report, form.value, colour=colour_wanted()), verdict=report.verdict)


def colour_wanted() -> bool:
    """The convention of no-color.org: any non-empty NO_COLOR switches colour off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
