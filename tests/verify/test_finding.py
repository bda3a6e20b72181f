"""A verdict is a function of findings and requirements; nothing checked is never accepted."""

from __future__ import annotations

import itertools

import pytest

from mint2m_verify import schema
from mint2m_verify.catalogue import Entry, entries
from mint2m_verify.finding import Finding, Report, Requirement, Standing, Verdict, found, merge_findings

ROW = Requirement(required="a", found="a", standing=Standing.CHECKED)


def test_a_report_that_required_nothing_is_incomplete() -> None:
    assert Report(subject="x", command="verify").verdict is Verdict.INCOMPLETE


def test_the_worst_verdict_wins_in_the_published_order() -> None:
    order = [Verdict.INTERNAL, Verdict.FAILED, Verdict.UNTRUSTED, Verdict.INCOMPLETE, Verdict.BLOCKED, Verdict.IO_ERROR]
    for worse, milder in itertools.combinations(order, 2):
        findings = tuple(Finding(id="a.b", verdict=verdict, message="m") for verdict in (milder, worse))
        report = Report(subject="x", command="verify", requirements=(ROW,), findings=findings)
        assert report.verdict is worse


def test_a_cause_is_listed_once_and_before_what_follows_from_it() -> None:
    root = found("file.missing", file="a")
    middle = found("file.unreadable", file="b", cause=root)
    leaf = found("file.too-large", file="c", cause=middle)
    merged = merge_findings([[leaf], [root, middle]])
    assert merged == (root, middle, leaf)
    report = Report(subject="x", command="verify", findings=merged)
    assert report.roots == (root,)
    assert dict(report.causes())[root] == (middle, leaf)
    assert [f["cause"] for f in report.document()["findings"]] == [None, 0, 1]  # type: ignore[attr-defined]  # JSON


def test_every_report_keeps_to_its_schema() -> None:
    report = Report(subject="x", command="verify", requirements=(ROW,), findings=(found("file.missing", file="a"),))
    assert schema.check(report.document(), "report", file="report") == ()  # type: ignore[arg-type]  # JSON by schema


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: entry.id)
def test_every_finding_id_says_what_it_means(entry: Entry) -> None:
    assert entry.verdict is not Verdict.ACCEPTED
    assert len(entry.message) >= 8
    assert len(entry.explanation.split()) >= 10


def test_an_unknown_finding_id_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        found("tree.no-such-fault")
