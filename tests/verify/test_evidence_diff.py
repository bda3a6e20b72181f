"""Two runs beside each other: what differs is named by member, numbers by bound; what always differs is no fault."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mint2m_verify import layout
from mint2m_verify.evidence_diff import diff_runs, differences
from mint2m_verify.finding import Report, Standing
from mint2m_verify.recompute.parity import Thresholds

BASES = Path(__file__).resolve().parents[1] / "vectors" / "bases"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    base = next(path for path in sorted(BASES.iterdir()) if (path / "receipt.json").exists())
    for name in ("one", "other"):
        shutil.copytree(base, tmp_path / name)
    return tmp_path / "one", tmp_path / "other"


def edit(root: Path, path: str, **changes: object) -> None:
    document = json.loads((root / path).read_bytes())
    document.update(changes)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    (root / path).write_text(text, encoding="utf-8")


def found(report: Report) -> dict[str, str]:
    return {row.required: row.found for row in report.requirements}


def test_a_run_and_itself_agree_in_everything(pair: tuple[Path, Path]) -> None:
    report = diff_runs(*pair, Thresholds())
    assert int(report.verdict) == 0
    words = found(report)
    assert {words[name] for name in ("same profile", "same model", "source", "execution", "placement")} == {"equal"}
    assert words["time of capture-prefix"].endswith(", 1.00 of it")


def test_another_input_is_named_by_member_with_both_values(pair: tuple[Path, Path]) -> None:
    one, other = pair
    profile = json.loads((one / layout.PROFILE).read_bytes())
    edit(other, layout.PROFILE, prefix=profile["prefix"] | {"chunk_tokens": profile["prefix"]["chunk_tokens"] + 1})
    report = diff_runs(one, other, Thresholds())
    assert int(report.verdict) == 1
    (fault,) = report.findings
    assert (fault.id, fault.file, fault.pointer) == ("diff.input", layout.PROFILE, "/prefix/chunk_tokens")
    assert int(fault.actual or 0) == int(fault.expected or 0) + 1


def test_one_gradient_of_two_prompts_and_of_three_are_not_called_the_same_inputs(tmp_path: Path) -> None:
    base, other = BASES / "training-prompts" / "steps" / "0000" / "gradient-0000", tmp_path / "other"
    shutil.copytree(base, other)
    assert int(diff_runs(base, other, Thresholds()).verdict) == 0
    place = json.loads((other / layout.DEPLOYMENT).read_bytes())["accumulation"]
    edit(other, layout.DEPLOYMENT, accumulation=place | {"prompts": 3})
    (fault,) = diff_runs(base, other, Thresholds()).findings
    assert (fault.id, fault.file, fault.pointer) == ("diff.input", layout.DEPLOYMENT, "/accumulation/prompts")
    assert (fault.expected, fault.actual) == ("2", "3")


@pytest.mark.parametrize(("by", "code"), [(4e-3, 0), (6e-3, 1)])
def test_a_loss_within_its_bound_is_no_difference_and_past_it_is_one(
    pair: tuple[Path, Path], by: float, code: int
) -> None:
    one, other = pair
    scores = json.loads((one / layout.SCORES).read_bytes())
    edit(other, layout.SCORES, loss=scores["loss"] + by)
    report = diff_runs(one, other, Thresholds(loss=5e-3))
    assert int(report.verdict) == code
    assert [fault.id for fault in report.findings] == ["parity.threshold-exceeded"] * code


def test_ids_and_clocks_are_shown_and_are_no_fault(pair: tuple[Path, Path]) -> None:
    one, other = pair
    edit(other, layout.RECEIPT, execution_id="ab" * 32)
    report = diff_runs(one, other, Thresholds())
    assert int(report.verdict) == 0
    row = next(row for row in report.requirements if row.required == "execution")
    assert row.found.endswith("abababab…abab")
    assert row.standing is Standing.ATTESTED_ONLY


@pytest.mark.parametrize("path", [layout.SCORES, layout.GRADIENT, layout.RECEIPT, layout.PROFILE])
def test_a_run_with_a_part_missing_is_compared_with_nothing(pair: tuple[Path, Path], path: str) -> None:
    one, other = pair
    (other / path).unlink()
    report = diff_runs(one, other, Thresholds())
    assert int(report.verdict) == 1
    assert [fault.id for fault in report.findings] == ["file.missing"]


def test_values_are_told_apart_by_type_and_lists_by_length() -> None:
    assert list(differences({"a": True}, {"a": 1})) == [("/a", "True", "1")]
    assert list(differences([1, 2], [1])) == [("", "2 entries", "1 entries")]
    assert list(differences({"a/b": None}, {})) == [("/a~1b", "nothing", "nothing")]
