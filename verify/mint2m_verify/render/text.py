"""The report for people: the verdict first, then why, then what to do.

The same words with and without colour; only strings of the tool itself are coloured, and every string that could come
from evidence passes `escape`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from mint2m_verify.exhibits import Measures, Table
from mint2m_verify.finding import Finding, Report, Verdict
from mint2m_verify.render.escape import escape

#: The verdict as people read it first.
WORDS = {
    Verdict.ACCEPTED: "ACCEPTED",
    Verdict.FAILED: "REFUSED",
    Verdict.BLOCKED: "BLOCKED",
    Verdict.INCOMPLETE: "INCOMPLETE",
    Verdict.UNTRUSTED: "NOT TRUSTED",
    Verdict.IO_ERROR: "NOT JUDGED",
    Verdict.INTERNAL: "INTERNAL ERROR",
}
_GREEN, _RED, _YELLOW, _BOLD, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"

#: Findings shown in full; a tree that was replaced whole would otherwise scroll its cause away.
_SHOWN = 20


def render_text(report: Report, *, colour: bool = False) -> str:
    """The whole report, ending in a newline."""
    return "\n".join(_lines(report, colour=colour)).rstrip("\n") + "\n"


def _lines(report: Report, *, colour: bool) -> Iterator[str]:
    yield _headline(report, colour=colour)
    if report.verdict is Verdict.ACCEPTED:
        yield from _accepted(report)
    else:
        yield from _refused(report, colour=colour)


def _headline(report: Report, *, colour: bool) -> str:
    verdict = report.verdict
    mark = {Verdict.ACCEPTED: _GREEN, Verdict.FAILED: _RED, Verdict.INTERNAL: _RED}.get(verdict, _YELLOW)
    word = WORDS[verdict]
    parts = [f"{_BOLD}{mark}{word}{_PLAIN}" if colour else word, escape(report.subject)]
    if verdict is Verdict.ACCEPTED:
        parts += [escape(report.summary)] if report.summary else []
        if report.claim_scope is not None:
            parts.append(f"claim scope {escape(report.claim_scope)}")
    else:
        parts.append(f"exit {int(verdict)}")
    return "  ".join(parts)


def _accepted(report: Report) -> Iterator[str]:
    yield ""
    yield from _body(report)
    if report.trust.digests:
        yield ""
        width = max(len(item.name) for item in report.trust.digests)
        for item in report.trust.digests:
            yield f"{escape(item.name).ljust(width)}  {item.sha256}"
    for shown in report.exhibits:
        if isinstance(shown, Measures):
            yield from _measures(shown)
    yield from _not_checked(report.not_checked)


def _refused(report: Report, *, colour: bool) -> Iterator[str]:
    roots = report.roots
    yield ""
    column = max((len(root.id) for root in roots[:_SHOWN]), default=0) + 3
    for root, follow in report.causes()[:_SHOWN]:
        yield from _finding(root, column=column, colour=colour)
        if follow:
            ids = list(dict.fromkeys(finding.id for finding in follow))
            yield f"  follows from it   {', '.join(ids[:6])}{' …' if len(ids) > 6 else ''}"
        yield ""
    if len(roots) > _SHOWN:
        yield f"… and {len(roots) - _SHOWN} more; --format json lists all"
        yield ""
    if report.comparison:
        yield from _body(report)
        yield ""
    yield from _closing(report)


def _finding(finding: Finding, *, column: int, colour: bool) -> Iterator[str]:
    """The id, then where, what and what to do, in one column."""
    about: list[str] = []
    place = " ".join(escape(part) for part in (finding.file, finding.pointer) if part)
    if place:
        about.append(place)
    about.append(escape(finding.message))
    if finding.byte_range is not None:
        first, end = finding.byte_range
        about.append(f"bytes {first:,} to {max(first, end - 1):,}")
    if finding.expected is not None or finding.actual is not None:
        pair = (("expected", finding.expected), ("found", finding.actual))
        about += [f"{word} {escape(value)}" for word, value in pair if value is not None]
    if finding.stage is not None:
        about.append(f"stage {escape(finding.stage)}")
    if finding.hint is not None:
        about.append(escape(finding.hint))
    head = f"{_BOLD}{finding.id}{_PLAIN}" if colour else finding.id
    yield f"{head}{' ' * (column - len(finding.id))}{about[0]}"
    for line in about[1:]:
        yield f"{' ' * column}{line}"


def _closing(report: Report) -> Iterator[str]:
    causes, consequences = len(report.roots), len(report.findings) - len(report.roots)
    words = [f"{causes} cause{'' if causes == 1 else 's'}"]
    if consequences:
        words.append(f"{consequences} consequence{'' if consequences == 1 else 's'}")
    yield f"{', '.join(words)}.{f' {escape(report.summary)}' if report.summary else ''}"
    if report.roots:
        yield f"More: mint2m explain {report.roots[0].id}"


def _body(report: Report) -> Iterator[str]:
    """The report's own table where it has one, which says the same in fewer lines; else the rows."""
    tables = [item for item in report.exhibits if isinstance(item, Table)]
    for item in tables:
        yield from _table(item.heads, item.rows)
    if not tables:
        cells = [(row.required, row.found, row.standing.value) for row in report.requirements]
        yield from _table(("required", "found", "standing"), cells)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    cells = [heads, *([escape(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    for row in cells:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _measures(shown: Measures) -> Iterator[str]:
    yield ""
    yield f"{shown.title}, {shown.note}:"
    words = ", ".join(f"{escape(row.label)} {row.shown}".replace(" ", "\N{NO-BREAK SPACE}") for row in shown.rows)
    for line in textwrap.wrap(words, width=110, break_on_hyphens=False, break_long_words=False):
        yield f"  {line}".replace("\N{NO-BREAK SPACE}", " ")


def _not_checked(items: Sequence[str]) -> Iterator[str]:
    if not items:
        return
    yield ""
    yield "Not checked:"
    for item in items:
        yield f"  {escape(item)}"
