"""The report as JUnit XML, for CI systems that show test results.

The rule: a suite holds the checks of a stage, a case is one check. A requirement that was not reached is skipped, never
passed; a finding that no requirement's row tells of is a case of its own, so a refused report never shows all green.
Format: what Jenkins, GitLab and GitHub's reporters read (testsuites, testsuite, testcase, failure, error, skipped).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from mint2m_verify.finding import Finding, Report, Requirement, Standing, Verdict
from mint2m_verify.render.escape import escape
from mint2m_verify.render.places import place, sentence

#: Findings that say the check itself could not be made.
_ERRORS = (Verdict.IO_ERROR, Verdict.INTERNAL)

#: Cases shown of one suite's findings; a report of ten thousand is told by fewer.
_MOST_CASES = 5000
_MOST_FOLLOWING = 100


def render_junit(report: Report) -> str:
    """An XML document: the requirements as one suite, then the causes by stage."""
    root = ElementTree.Element("testsuites", name=f"mint2m {report.command}")
    if report.requirements:
        _suite(root, report.command, [_row(report, row) for row in report.requirements])
    by_stage: dict[str | None, list[tuple[Finding, tuple[Finding, ...]]]] = {}
    for finding, following in report.causes():
        by_stage.setdefault(finding.stage, []).append((finding, following))
    for stage, causes in by_stage.items():
        cases = [_cause(report, finding, following) for finding, following in causes[:_MOST_CASES]]
        if len(causes) > _MOST_CASES:
            cases.append(_more(report, len(causes) - _MOST_CASES))
        _suite(root, f"stage {escape(stage)}" if stage else "findings", cases)
    if not report.requirements and not report.findings:
        _suite(root, report.command, [_nothing(report)])
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(root: ElementTree.Element, name: str, cases: list[ElementTree.Element]) -> None:
    def count(tag: str) -> str:
        return str(sum(case.find(tag) is not None for case in cases))

    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=name,
        tests=str(len(cases)),
        failures=count("failure"),
        errors=count("error"),
        skipped=count("skipped"),
    )
    suite.extend(cases)


def _case(report: Report, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=escape(report.subject), name=name)


def _row(report: Report, row: Requirement) -> ElementTree.Element:
    case = _case(report, escape(row.required))
    words = f"{escape(row.found)} ({row.standing.value})"
    if row.standing is Standing.FAILED:
        ElementTree.SubElement(case, "failure", message=words, type="requirement")
    elif row.standing is Standing.UNVERIFIABLE:
        ElementTree.SubElement(case, "skipped", message=words)
    else:
        ElementTree.SubElement(case, "system-out").text = words
    return case


def _cause(report: Report, finding: Finding, following: Sequence[Finding]) -> ElementTree.Element:
    where = place(finding)
    case = _case(report, f"{finding.id} {where}" if where else finding.id)
    tag = "error" if finding.verdict in _ERRORS else "failure"
    told = ElementTree.SubElement(case, tag, message=sentence(finding), type=finding.id)
    told.text = "\n".join(_details(finding, following))
    return case


def _details(finding: Finding, following: Sequence[Finding]) -> Iterator[str]:
    yield f"exit {int(finding.verdict)} ({finding.verdict.word})"
    for consequence in following[:_MOST_FOLLOWING]:
        yield f"follows from it: {consequence.id} {place(consequence)}".rstrip()
    yield f"mint2m explain {finding.id}"


def _more(report: Report, count: int) -> ElementTree.Element:
    case = _case(report, f"{count} more findings")
    ElementTree.SubElement(case, "failure", message="--format json lists all", type="verify.more-findings")
    return case


def _nothing(report: Report) -> ElementTree.Element:
    case = _case(report, "something was checked")
    ElementTree.SubElement(case, "failure", message="nothing was checked, and that proves nothing", type="empty")
    return case
