"""The same report in every form: what others' readers make of it, and what a hostile name cannot do in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import junitparser
import pytest
from markdown_it import MarkdownIt

from mint2m_verify.finding import Finding, NamedDigest, Report, Requirement, Standing, Trust, Verdict
from mint2m_verify.render import FORMS, render
from mint2m_verify.render.markdown import cell, code

HOSTILE = [
    "\x1b[2K\x1b[32mACCEPTED",
    "a\n::error::injected",
    "a%0A::error::injected,title=x:y",
    "</failure><testcase name='ok'/>",
    "]]><x/>",
    "&lt;b&gt; &#x1b; %s",
    "<script>alert(1)</script>",
    "![x](http://example.invalid/a.png)",
    "[x](javascript:alert(1))",
    "`code` ``more``",
    "```\n# heading",
    "a | b \\| c \\\\| d",
    "@somebody #1 www.example.invalid me@example.invalid http://example.invalid",
    "| --- | --- |",
    "\u202egnp.exe",
    "a\ud800b",
    "\x00\x01\x7f\x85",
    " ",
    "`",
    "C:\\x\\",
    "größe 漢字",
]


def report_of(*texts: str) -> Report:
    """A refused report in which each text stands in every member that evidence can choose."""
    findings: list[Finding] = []
    digests = (NamedDigest(name="key", sha256="0f" * 32),)
    for text in texts:
        root = Finding(
            id="tree.file-changed",
            verdict=Verdict.FAILED,
            message="the file is not what was committed",
            stage=text,
            file=text,
            pointer=text,
            byte_range=(0, 10),
            expected=text,
            actual=text,
            hint=text,
        )
        findings += [
            root,
            Finding(id="receipt.checkpoint-root-mismatch", verdict=Verdict.FAILED, message="m", file=text, cause=root),
        ]
    return Report(
        subject=texts[0],
        command="verify run",
        requirements=tuple(Requirement(required=t, found=t, standing=Standing.FAILED) for t in texts),
        findings=tuple(findings),
        not_checked=texts,
        trust=Trust(mode="managed-key", anchor=texts[0], signers=texts, digests=digests),
        summary=texts[0],
    )


def accepted() -> Report:
    rows = (
        Requirement(required="signature by --key", found="4b1d…77", standing=Standing.CHECKED),
        Requirement(required="exactly one step", found="1, 1", standing=Standing.ATTESTED_ONLY),
    )
    return Report(subject="out", command="verify run", requirements=rows, claim_scope="reference_cpu_execution")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", HOSTILE)
def test_no_form_holds_a_control_character_or_a_line_of_the_evidences_own(form: str, text: str) -> None:
    plain, hostile = render(report_of("name"), form), render(report_of(text), form)
    assert all(char == "\n" or char.isprintable() for char in hostile)
    assert hostile.count("\n") == plain.count("\n")
    hostile.encode("utf-8")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_tells_the_same_first_cause_and_the_exit_code(form: str) -> None:
    report = report_of("one", "two")
    shown = render(report, form)
    assert "tree.file-changed" in shown
    first, later = shown.find("tree.file-changed"), shown.find("receipt.checkpoint-root-mismatch")
    assert later == -1 or first < later or form in ("sarif",)
    if form == "sarif":
        results = json.loads(shown)["runs"][0]["results"]
        assert [result["ruleId"] for result in results[:2]] == ["tree.file-changed"] * 2
        assert [result["level"] for result in results] == ["error", "error", "note", "note"]


@pytest.mark.parametrize("form", [form for form in FORMS if form != "text"])
def test_a_report_of_nothing_is_accepted_in_no_form(form: str) -> None:
    shown = render(Report(subject="out", command="verify run"), form)
    assert "accepted" not in shown.lower()
    if form == "junit":
        suites = junitparser.JUnitXml.fromstring(shown.encode())
        assert suites.failures + suites.errors > 0


@pytest.mark.parametrize("text", HOSTILE)
def test_junit_is_read_by_its_consumers_with_one_case_a_requirement_and_cause(text: str) -> None:
    shown = render(report_of(text, "two"), "junit")
    suites = junitparser.JUnitXml.fromstring(shown.encode())
    cases = [case for suite in suites for case in suite]
    assert len(cases) == 4
    assert (suites.tests, suites.failures, suites.errors, suites.skipped) == (4, 4, 0, 0)
    assert [result.type for case in cases for result in case.result] == [
        *["requirement"] * 2,
        *["tree.file-changed"] * 2,
    ]
    assert {node.tag for node in ElementTree.fromstring(shown).iter()} == {
        "testsuites",
        "testsuite",
        "testcase",
        "failure",
    }


def test_junit_counts_an_accepted_report_as_passed_and_what_was_not_reached_as_skipped() -> None:
    suites = junitparser.JUnitXml.fromstring(render(accepted(), "junit").encode())
    assert (suites.tests, suites.failures, suites.errors, suites.skipped) == (2, 0, 0, 0)
    row = Requirement(required="step", found="not reached", standing=Standing.UNVERIFIABLE)
    missed = Report(subject="out", command="verify run", requirements=(row,))
    suites = junitparser.JUnitXml.fromstring(render(missed, "junit").encode())
    assert (suites.tests, suites.skipped) == (1, 1)


def test_a_fault_of_the_machine_is_an_error_and_not_a_failure() -> None:
    fault = Finding(id="file.unreadable", verdict=Verdict.IO_ERROR, message="m", file="f")
    suites = junitparser.JUnitXml.fromstring(
        render(Report(subject="o", command="c", findings=(fault,)), "junit").encode()
    )
    assert (suites.tests, suites.failures, suites.errors) == (1, 0, 1)


class Tags(HTMLParser):
    """What a browser would make of a page: its tags, and the text in code spans."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.code: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self._inside = tag == "code"
        if self._inside:
            self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.code[-1] += data


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_makes_no_markup_of_what_comes_from_evidence(text: str) -> None:
    reader = MarkdownIt("gfm-like", {"html": True})
    page, plain = Tags(), Tags()
    page.feed(reader.render(render(report_of(text), "markdown")))
    plain.feed(reader.render(render(report_of("name"), "markdown")))
    assert page.tags == plain.tags
    assert len(page.code) == len(plain.code)


@pytest.mark.parametrize("text", ["a|b", "a\\|b", "a\\\\|b", "|", "`|`", "a", "` `", "``"])
def test_a_code_span_shows_exactly_the_escaped_text_alone_and_in_a_table(text: str) -> None:
    want = text.replace("\\", "\\\\")
    reader = MarkdownIt("gfm-like", {"html": True})
    page = Tags()
    page.feed(reader.render(code(text)))
    assert page.code == [want]
    page = Tags()
    page.feed(reader.render(f"| x | y |\n| --- | --- |\n| {cell(text)} | {cell('next')} |"))
    assert page.code == [want, "next"]


@pytest.mark.parametrize("text", HOSTILE)
def test_every_line_for_github_is_one_command_of_ours(text: str) -> None:
    lines = render(report_of(text), "github").splitlines()
    assert len(lines) == 2
    assert all(re.fullmatch(r"::error title=[^:,\r\n]*::[^\r\n]*", line) for line in lines)


def test_github_shows_an_accepted_report_as_a_notice() -> None:
    assert render(accepted(), "github").startswith("::notice title=out::mint2m verify run: accepted, exit 0")


def test_sarif_fingerprints_tell_faults_apart_and_survive_another_run() -> None:
    def prints(report: Report) -> list[str]:
        results = json.loads(render(report, "sarif"))["runs"][0]["results"]
        return [result["partialFingerprints"]["mint2mFinding/v1"] for result in results]

    assert prints(report_of("one", "two")) == prints(report_of("one", "two"))
    assert len(set(prints(report_of("one", "two")))) == 4


def test_ten_thousand_findings_stay_inside_the_limits_of_the_services() -> None:
    findings = tuple(
        Finding(id="tree.file-unlisted", verdict=Verdict.FAILED, message="m", file=f"f{index}")
        for index in range(10_000)
    )
    report = Report(subject="out", command="verify run", findings=findings)
    run = json.loads(render(report, "sarif"))["runs"][0]
    assert len(run["results"]) == 5000
    assert run["properties"]["resultsNotShown"] == 5000
    assert len(render(report, "markdown").encode()) < 1 << 20
    assert len(render(report, "github").splitlines()) == 10
    assert len(json.loads(render(report, "json"))["findings"]) == 10_000
