"""What people and machines see of a report, whatever the evidence says its names are."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from mint2m_verify.finding import Finding, Report, Requirement, Standing, Verdict, found
from mint2m_verify.render import render
from mint2m_verify.render.escape import escape
from mint2m_verify.schema import schema_directory

HOSTILE = [
    ("\x1b[2K\x1b[32mACCEPTED", "\\x1b[2K\\x1b[32mACCEPTED"),
    ("a\nACCEPTED", "a\\x0aACCEPTED"),
    ("a\rb", "a\\x0db"),
    ("a\x9bb", "a\\x9bb"),  # one-byte control sequence introducer
    ("\u202egnp.exe", "\\u202egnp.exe"),  # right-to-left override
    ("a\u2066b", "a\\u2066b"),
    ("a\u200bb", "a\\u200bb"),  # zero width
    ("a\u2028b", "a\\u2028b"),  # line separator
    ("a\ufeffb", "a\\ufeffb"),
    ("\U000e0041", "\\U000e0041"),  # a tag character
    ("e\u0301\u0301", "e\\u0301\\u0301"),
    ("\\x1b", "\\\\x1b"),  # an escape that was spelled out is not one that was made
    ("größe 漢字 file", "größe 漢字 file"),
]


def refused(**fields: object) -> Report:
    fault = Finding(id="tree.file-changed", verdict=Verdict.FAILED, message="m", **fields)  # type: ignore[arg-type]
    return Report(subject="out", command="verify run", findings=(fault,))


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_what_is_not_plainly_printable_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert escape(text) == shown


@pytest.mark.parametrize("field", ["file", "pointer", "expected", "actual", "hint", "stage"])
@pytest.mark.parametrize("text", [text for text, _ in HOSTILE[:11]])
def test_no_field_of_a_finding_reaches_the_terminal_raw(field: str, text: str) -> None:
    shown = render(refused(**{field: text}), "text")
    assert text not in shown
    assert all(char == "\n" or char.isprintable() for char in shown)


def test_a_line_break_in_a_name_adds_no_line() -> None:
    plain = render(refused(file="name"), "text")
    hostile = render(refused(file="name\nACCEPTED  out"), "text")
    assert len(hostile.splitlines()) == len(plain.splitlines())
    assert not any(line.startswith("ACCEPTED") for line in hostile.splitlines())


@pytest.mark.parametrize("text", [text for text, _ in HOSTILE])
def test_json_stays_json_and_ascii(text: str) -> None:
    shown = render(refused(file=text), "json")
    assert shown.isascii()
    assert json.loads(shown)["findings"][0]["file"] == text
    assert all(char == "\n" or 0x20 <= ord(char) < 0x7F for char in shown)


def test_a_long_value_is_cut_and_says_so() -> None:
    assert escape("x" * 2000).endswith("… (2000 characters)")


def test_colour_changes_no_word() -> None:
    report = refused(file="f", expected="1", actual="2")
    coloured = render(report, "text", colour=True)
    assert "\x1b[" in coloured
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[1m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == render(report, "text")


def test_causes_come_with_what_follows_from_them() -> None:
    cause = found("tree.file-changed", file="checkpoint/x")
    consequence = found("receipt.checkpoint-root-mismatch", cause=cause)
    shown = render(Report(subject="out", command="c", findings=(cause, consequence)), "text")
    assert shown.splitlines()[0] == "REFUSED  out  exit 1"
    assert "  follows from it   receipt.checkpoint-root-mismatch" in shown
    assert "1 cause, 1 consequence." in shown
    assert shown.count("receipt.checkpoint-root-mismatch") == 1


def test_an_accepted_report_shows_its_table_and_what_it_did_not_look_at() -> None:
    row = Requirement(required="everything", found="all of it", standing=Standing.CHECKED)
    report = Report(
        subject="out", command="c", requirements=(row,), not_checked=("the weather",), summary="signed by k"
    )
    lines = render(report, "text").splitlines()
    assert lines[0] == "ACCEPTED  out  signed by k"
    assert "everything   all of it   checked" in lines
    assert lines[-2:] == ["Not checked:", "  the weather"]


def test_a_report_of_nothing_is_incomplete_and_not_accepted() -> None:
    assert render(Report(subject="out", command="c"), "text").splitlines()[0] == "INCOMPLETE  out  exit 3"


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.ACCEPTED])
def test_every_verdict_has_a_word_and_its_exit_code(verdict: Verdict) -> None:
    fault = Finding(id="a.b", verdict=verdict, message="m")
    first = render(Report(subject="out", command="c", findings=(fault,)), "text").splitlines()[0]
    assert first.endswith(f"  out  exit {int(verdict)}")
    assert "ACCEPTED" not in first


def test_json_keeps_the_published_schema() -> None:
    schemas = [json.loads(path.read_text()) for path in schema_directory().glob("*.json")]
    registry: Registry[object] = Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in schemas)
    (schema,) = (s for s in schemas if s["$id"].endswith(":report:v1"))
    cause = found("tree.file-changed", file="f", byte_range=(0, 9), stage="checkpoint")
    report = Report(
        subject="out",
        command="verify run",
        findings=(cause, found("receipt.mismatch", cause=cause)),
        requirements=(Requirement(required="r", found="f", standing=Standing.FAILED),),
    )
    document = json.loads(render(report, "json"))
    assert list(Draft202012Validator(schema, registry=registry).iter_errors(document)) == []
    assert (document["exit_code"], document["findings"][1]["cause"]) == (1, 0)
