"""The causes of a refusal as GitHub workflow commands: one annotation each, shown beside the job.

The rule: a workflow command is a line, and its parts end at `%`, line ends, `:` and `,`; in what comes from evidence
these are written as the runner's own escapes, so that no file name can give a command of its own.
"""

from __future__ import annotations

from mint2m_verify.finding import Report, Verdict
from mint2m_verify.render.escape import escape
from mint2m_verify.render.places import place, sentence

#: Annotations of one step that GitHub shows.
_MOST = 10


def render_github(report: Report) -> str:
    """Annotation lines, the verdict last; every line begins with `::`."""
    kind = "error" if report.verdict in (Verdict.FAILED, Verdict.UNTRUSTED, Verdict.INTERNAL) else "warning"
    lines = []
    for finding in report.roots[: _MOST - 1]:
        where = place(finding)
        words = f"{where}: {sentence(finding)}" if where else sentence(finding)
        lines.append(f"::{kind} title={_property(finding.id)}::{_message(words)}")
    verdict = f"mint2m {report.command}: {report.verdict.word}, exit {int(report.verdict)}"
    more = len(report.roots) - (_MOST - 1)
    words = f"{verdict}; {more} more causes" if more > 0 else verdict
    last = "notice" if report.verdict is Verdict.ACCEPTED else kind
    lines.append(f"::{last} title={_property(escape(report.subject))}::{_message(words)}")
    return "\n".join(lines) + "\n"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
