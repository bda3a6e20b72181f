"""What a command hands back to `main`: the words for stdout and the verdict that becomes the exit code."""

from __future__ import annotations

import enum
import os
import sys
from dataclasses import dataclass

from mint2m_verify.finding import Report, Verdict


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


def present(report: Report, form: Format | ReportFormat) -> Outcome:
    """A report in the form asked for; colour only where stdout is a terminal and NO_COLOR is unset."""
    from mint2m_verify.render import render

    return Outcome(text=render(report, form.value, colour=colour_wanted()), verdict=report.verdict)


def colour_wanted() -> bool:
    """The convention of no-color.org: any non-empty NO_COLOR switches colour off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
