"""A folder of runs in one table: verdicts are computed, a refused run has no numbers, and nothing passes unnamed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from mint2m_verify import layout
from mint2m_verify.anchor import Anchor, ConsistencyOnly, NoAnchor, choose, options
from mint2m_verify.evidence_report import report_runs
from mint2m_verify.exhibits import Table
from mint2m_verify.finding import FindingError, Report
from mint2m_verify.render import render

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
KEY = VECTORS / "test-only-keys/release.pub"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two genuine runs and a third of which a byte of the checkpoint is another."""
    root = tmp_path / "runs"
    for name in ("a", "b", "forged"):
        shutil.copytree(VECTORS / "bases/run", root / name)
    place = root / "forged/checkpoint/metadata.json"
    place.write_bytes(place.read_bytes() + b" ")
    return root


def table(report: Report) -> dict[str, dict[str, str]]:
    """By run, the cells by heading."""
    (shown,) = (item for item in report.exhibits if isinstance(item, Table))
    return {row[0]: dict(zip(shown.heads, row, strict=True)) for row in shown.rows}


def run_with(folder: Path, anchor: Anchor) -> Report:
    return report_runs(folder, anchor, options())


def test_genuine_runs_are_accepted_with_the_numbers_of_their_documents(folder: Path) -> None:
    shutil.rmtree(folder / "forged")
    report = run_with(folder, choose(key=KEY, digest=None, consistency_only=False))
    assert int(report.verdict) == 0
    row = table(report)["a"]
    scores = json.loads((folder / "a" / layout.SCORES).read_bytes())
    ranks = json.loads((folder / "a" / layout.RANK_SESSIONS).read_bytes())["ranks"]
    assert row["verdict"] == "accepted"
    assert float(row["loss"]) == pytest.approx(scores["loss"], rel=1e-5)
    assert float(row["gradient norm"]) == pytest.approx(scores["gradient_norm"], rel=1e-5)
    assert row["placement"].startswith(f"{len(ranks)} rank")


def test_a_refused_run_refuses_the_folder_and_has_a_cause_and_no_numbers(folder: Path) -> None:
    report = run_with(folder, ConsistencyOnly())
    assert int(report.verdict) == 1
    rows = table(report)
    assert rows["forged"]["verdict"] == "failed: tree.file-changed"
    assert {cell for head, cell in rows["forged"].items() if head not in ("run", "verdict")} == {"—"}
    assert rows["a"]["verdict"] == "accepted"
    assert report.roots[0].file == "forged/checkpoint/metadata.json"
    assert report.summary == "2 of 3 runs accepted"


def test_a_verdict_that_is_written_in_a_run_is_not_read(folder: Path) -> None:
    (folder / "forged/report.json").write_text('{"verdict": "accepted", "exit_code": 0}')
    assert table(run_with(folder, ConsistencyOnly()))["forged"]["verdict"].startswith("failed: ")


def test_without_an_anchor_no_run_is_accepted_and_consistent_ones_keep_their_numbers(folder: Path) -> None:
    shutil.rmtree(folder / "forged")
    report = run_with(folder, NoAnchor())
    assert int(report.verdict) == 4
    row = table(report)["a"]
    assert row["verdict"] == "untrusted: trust.no-anchor"
    assert row["loss"] != "—"


def test_a_key_that_lies_beside_the_runs_is_no_anchor(folder: Path) -> None:
    shutil.rmtree(folder / "forged")
    shutil.copy(KEY, folder / "release.pub")
    anchor = choose(key=folder / "release.pub", digest=None, consistency_only=False)
    report = run_with(folder, anchor)
    assert int(report.verdict) == 4
    assert "trust.key-inside-evidence" in {fault.id for fault in report.roots}


def test_a_folder_without_a_run_fails(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    report = run_with(tmp_path, ConsistencyOnly())
    assert (int(report.verdict), [fault.id for fault in report.findings]) == (1, ["tree.empty"])


def test_a_run_given_in_place_of_its_folder_is_told_so(folder: Path) -> None:
    (fault,) = run_with(folder / "a", ConsistencyOnly()).findings
    assert "the folder that holds it" in str(fault.hint)


def test_a_run_that_lost_most_of_its_files_is_still_a_run_that_fails(folder: Path) -> None:
    for path in sorted((folder / "b").iterdir()):
        if path.name != "plan.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert table(run_with(folder, ConsistencyOnly()))["b"]["verdict"].startswith("failed: ")


def test_what_is_no_run_and_what_is_a_link_is_named(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "linked").symlink_to(folder / "a")
    report = run_with(folder, ConsistencyOnly())
    assert "linked" not in table(report)
    assert any("linked, notes" in note for note in report.not_checked)


def test_a_missing_folder_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(FindingError) as caught:
        run_with(tmp_path / "nowhere", ConsistencyOnly())
    assert caught.value.finding.id == "input.missing"


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html", "sarif", "junit", "github"])
def test_every_form_names_the_runs_and_the_first_cause(folder: Path, form: str) -> None:
    shown = render(run_with(folder, ConsistencyOnly()), form)
    assert "tree.file-changed" in shown
    assert "forged" in shown


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_a_run_is_one_row_of_the_table(folder: Path, form: str) -> None:
    shown = render(run_with(folder, ConsistencyOnly()), form)
    loss = f"{json.loads((folder / 'a' / layout.SCORES).read_bytes())['loss']:.6g}"
    rows = re.split(r"</tr>|\n", shown)
    assert any("accepted" in row and loss in row for row in rows)


def test_a_name_that_imitates_the_table_is_harmless(folder: Path) -> None:
    shutil.rmtree(folder / "a")
    (folder / "b").rename(folder / "x | accepted |\x1b[2J`<b>")
    report = run_with(folder, ConsistencyOnly())
    assert "\x1b" not in render(report, "text")
    assert "<b>" not in render(report, "html")
    line = next(row for row in render(report, "markdown").splitlines() if "\\|" in row)
    assert len(re.findall(r"(?<!\\)\|", line)) == len(table(report)["forged"]) + 1
