"""The report as GitHub-flavoured Markdown: for job summaries and comments.

The rule: every string that could come from evidence stands in a code span, whose fence is longer than any run of
backticks in it. Inside one nothing is markup, no address becomes a link and no name calls anybody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mint2m_verify.exhibits import Table
from mint2m_verify.finding import Finding, Report, Verdict
from mint2m_verify.render.escape import escape
from mint2m_verify.render.text import WORDS

#: Causes and rows shown; GitHub takes a megabyte of summary.
_MOST = 200


def render_markdown(report: Report) -> str:
    """The whole report, ending in a newline."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"## {WORDS[report.verdict]}: {code(report.subject)}"
    yield ""
    yield f"`mint2m {report.command}` ended with exit {int(report.verdict)}."
    if report.summary:
        yield f"{code(report.summary)}"
    if report.claim_scope is not None:
        yield ""
        yield f"Claim scope {code(report.claim_scope)}."
    if report.verdict is not Verdict.ACCEPTED:
        yield from _causes(report)
    for table in (item for item in report.exhibits if isinstance(item, Table)):
        yield from _table(table)
    if report.requirements:
        yield ""
        yield "### Required and found"
        yield ""
        yield "| required | found | standing |"
        yield "| --- | --- | --- |"
        for row in report.requirements[:_MOST]:
            yield f"| {cell(row.required)} | {cell(row.found)} | {row.standing.value} |"
    yield from _trust(report)
    if report.not_checked:
        yield ""
        yield "### Not checked"
        yield ""
        for item in report.not_checked[:_MOST]:
            yield f"- {code(item)}"


def _causes(report: Report) -> Iterator[str]:
    yield ""
    yield "### What broke first"
    yield ""
    for finding, follow in report.causes()[:_MOST]:
        yield from _cause(finding, follow)
    if len(report.roots) > _MOST:
        yield f"- {len(report.roots) - _MOST} more: `--format json` lists all"


def _cause(finding: Finding, follow: Sequence[Finding]) -> Iterator[str]:
    where = [code(part) for part in (finding.file, finding.pointer) if part]
    if finding.byte_range is not None:
        first, end = finding.byte_range
        where.append(f"bytes {first:,} to {max(first, end - 1):,}")
    yield f"- **`{finding.id}`** {' '.join(where)}".rstrip()
    yield f"  - {code(finding.message)}"
    pairs = (("expected", finding.expected), ("found", finding.actual), ("stage", finding.stage))
    for word, value in pairs:
        if value is not None:
            yield f"  - {word} {code(value)}"
    if finding.hint is not None:
        yield f"  - {code(finding.hint)}"
    ids = list(dict.fromkeys(item.id for item in follow))
    if ids:
        yield f"  - follows from it: {', '.join(f'`{id}`' for id in ids[:20])}"


def _table(table: Table) -> Iterator[str]:
    yield ""
    yield f"### {table.title}"
    yield ""
    yield f"| {' | '.join(table.heads)} |"
    yield f"|{' --- |' * len(table.heads)}"
    for row in table.rows[:_MOST]:
        yield f"| {' | '.join(cell(part) for part in row)} |"
    if len(table.rows) > _MOST:
        yield ""
        yield f"{len(table.rows) - _MOST} more: `--format json` lists all"


def _trust(report: Report) -> Iterator[str]:
    yield ""
    yield "### Trust used"
    yield ""
    yield f"- mode {code(report.trust.mode)}"
    if report.trust.anchor is not None:
        yield f"- anchor {code(report.trust.anchor)}"
    for signer in report.trust.signers:
        yield f"- signer {code(signer)}"
    for item in report.trust.digests:
        yield f"- {item.name} `{item.sha256}`"


def code(text: str) -> str:
    """`text` as a code span, harmless and on one line."""
    shown = escape(text)
    runs = re.findall("`+", shown)
    fence = "`" * (max(map(len, runs), default=0) + 1)
    # A space inside each fence keeps a backtick at the end apart from it; both are dropped when it is shown.
    return f"{fence} {shown} {fence}" if runs or not shown.strip() else f"{fence}{shown}{fence}"


def cell(text: str) -> str:
    """`code` inside a table, where a bar would end the cell even in a code span."""
    return code(text).replace("|", "\\|")
