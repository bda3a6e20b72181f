"""The HTML report in a real browser: it loads nothing, runs nothing, clips nothing, and a screen reader can use it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.exhibits import (
    Chain,
    Exhibit,
    Link,
    LinkState,
    Measure,
    Measures,
    PhaseBar,
    PlacedRank,
    Placement,
    Timeline,
)
from mint2m_verify.finding import Finding, Report, Requirement, Standing, Trust, Verdict
from mint2m_verify.render import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

HOSTILE = "<img src=http://example.invalid/x onerror=alert(1)>'\"&lt;\u202egnp.exe\x1b[2K {{ 7*7 }} {% raw %}"

PHASES = ("bind", "capture-prefix", "grpo-0", "grpo-1", "prefix-backward", "optimizer-step", "checkpoint")


def exhibits(ranks: int, *, name: str = "10.0.0") -> tuple[Exhibit, ...]:
    placed = tuple(
        PlacedRank(rank=rank, node=f"{name}.{rank // 8}", slot=rank % 8, device=f"cpu {rank}", as_planned=rank != 3)
        for rank in range(ranks)
    )
    bars = tuple(
        PhaseBar(rank=rank, phase=phase, begin_s=float(index), end_s=index + 1 + rank / 100)
        for rank in range(ranks)
        for index, phase in enumerate(PHASES)
    )
    links = (
        Link(name="seal", note=name, state=LinkState.INTACT),
        Link(name="plan", note=name, state=LinkState.BROKEN),
        Link(name="receipt", note=name, state=LinkState.FOLLOWS),
    )
    rows = (Measure(label=name, value=3.0, shown="3 s"), Measure(label="none", value=0.0, shown="0 s"))
    return (
        Chain(title="What binds what", links=links),
        Placement(ranks=placed),
        Timeline(bars=bars),
        Measures(title="Time by phase", note="of the slowest rank", rows=rows),
    )


def refused(text: str, count: int = 2) -> Report:
    findings = [
        Finding(
            id="tree.file-changed",
            verdict=Verdict.FAILED,
            message="m",
            stage=text,
            file=f"{text}{index}",
            pointer=text,
            expected=text,
            actual=text,
            hint=text,
        )
        for index in range(count)
    ]
    findings.append(Finding(id="tree.file-missing", verdict=Verdict.FAILED, message="m", file=text, cause=findings[0]))
    rows = [Requirement(required=text, found=text, standing=standing) for standing in Standing]
    return Report(
        subject=text,
        command="verify run",
        requirements=tuple(rows),
        findings=tuple(findings),
        not_checked=(text,),
        trust=Trust(mode="managed-key", anchor=text, signers=(text,)),
        summary=text,
        exhibits=exhibits(32, name=text),
    )


def accepted() -> Report:
    row = Requirement(required="signature by --key", found="4b1d…77", standing=Standing.CHECKED)
    return Report(
        subject="out",
        command="verify run",
        requirements=(row,),
        claim_scope="reference_cpu_execution",
        evaluated_at="2026-01-01T00:00:00Z",
        exhibits=exhibits(2),
    )


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.references += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]


def tags_of(report: Report) -> Tags:
    read = Tags()
    read.feed(render(report, "html"))
    return read


def test_what_comes_from_evidence_adds_no_tag_and_no_attribute() -> None:
    plain, hostile = tags_of(refused("name")), tags_of(refused(HOSTILE))
    assert plain.tags == hostile.tags
    assert plain.attributes == hostile.attributes
    assert "script" not in plain.tags
    assert not {name for name in plain.attributes if name.startswith("on")}
    assert plain.references == ["#content"]
    text = render(refused(HOSTILE), "html")
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "{{ 7*7 }}" in text.replace("&#39;", "'"), "a template in a name is text"


def test_a_report_of_nothing_says_that_it_proves_nothing() -> None:
    text = render(Report(subject="out", command="verify run"), "html")
    assert "Nothing was checked" in text
    assert "ACCEPTED" not in text


def test_the_page_is_the_same_every_time() -> None:
    assert render(refused(HOSTILE), "html") == render(refused(HOSTILE), "html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a report from disk; afterwards the page must have asked for nothing and complained of nothing."""
    contexts, asked, said = [], [], []

    def opened(report: Report, *, width: int = 1200, scheme: str = "light") -> Any:
        file = tmp_path / "report.html"
        file.write_text(render(report, "html"), encoding="utf-8")
        # The page forbids scripts; what measures it runs beside it.
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append("a dialog"))
        page.goto(file.as_uri())
        return page

    yield opened
    assert {url.rsplit("/", 1)[-1] for url in asked} == {"report.html"}
    assert said == []
    for context in contexts:
        context.close()


VIEWS = [
    *((refused(HOSTILE), width, scheme) for width in (1200, 390) for scheme in ("light", "dark")),
    (accepted(), 1200, "light"),
]


@pytest.mark.parametrize(("report", "width", "scheme"), VIEWS, ids=lambda value: getattr(value, "subject", value))
def test_the_page_is_usable_with_assistive_technology_and_clips_nothing(
    show: Callable[..., Any], report: Report, width: int, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = show(report, width=width, scheme=scheme)
    violations = Axe().run(page).response["violations"]
    assert [(rule["id"], [node["target"] for node in rule["nodes"]][:3]) for rule in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    clipped = page.evaluate(
        """[...document.querySelectorAll('main *')].filter(e => e.scrollWidth > e.clientWidth + 1
        && getComputedStyle(e).overflowX === 'hidden').length"""
    )
    assert clipped == 0


def test_on_a_phone_no_requirement_is_squeezed_into_a_column(show: Callable[..., Any]) -> None:
    page = show(refused("checkpoint/ as its manifest"), width=390)
    names = page.locator("table.rows tbody th")
    assert {names.nth(index).bounding_box()["width"] > 300 for index in range(names.count())} == {True}
    assert page.get_by_role("row").count() >= names.count(), "a table to a screen reader all the same"
    assert page.get_by_role("rowheader", name="checkpoint/ as its manifest").count() >= names.count()


def test_the_first_cause_and_the_verdict_stand_before_everything_else(show: Callable[..., Any]) -> None:
    page = show(refused("the-file"))
    words = page.inner_text("main")
    assert words.index("REFUSED") < words.index("What broke first") < words.index("tree.file-changed")
    assert words.index("tree.file-changed") < words.index("What binds what") < words.index("Required and found")
    assert "The first broken link is plan." in words
    assert page.inner_text("h1") == "the-file"
    assert page.locator("td.moved").count() == 1, "the rank that is not where it was planned"
    assert page.locator("svg[role=img] rect").count() == 32 * len(PHASES)


def test_ten_thousand_findings_make_a_page_that_opens(show: Callable[..., Any]) -> None:
    page = show(replace(refused("f", count=10_000), exhibits=()))
    assert page.locator("article.finding li").count() == 10_000
