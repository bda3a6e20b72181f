"""Counts of the router: what they come to, and that they must be those of the rows each rank holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.finding import Report, Verdict
from mint2m_verify.run import verify_run


def _captures(ranks: Any) -> list[dict[str, Any]]:
    return [record["evidence"] for rank in ranks for record in rank["phases"] if record["phase"] == "capture-prefix"]


def _counted(ranks: Any) -> None:
    for seen in _captures(ranks):
        few = seen["page_rows"] // 4
        seen["expert_tokens"] = [few, seen["page_rows"] - few]


def _checked(folder: Path, builder: ModuleType, *edits: Callable[[Any], Any]) -> Report:
    def edit(ranks: Any) -> None:
        for each in edits:
            each(ranks)

    builder.build_run(folder / "run", edits={"sessions": edit})
    return verify_run(folder / "run", read_key(folder / "run.pub"), VerifyOptions())


def test_the_load_of_all_ranks_together_is_in_the_report(tmp_path: Path, builder: ModuleType) -> None:
    held: list[int] = []
    report = _checked(tmp_path, builder, _counted, lambda ranks: held.extend(s["page_rows"] for s in _captures(ranks)))
    assert report.verdict is Verdict.ACCEPTED, report.findings
    most, mean = sum(rows - rows // 4 for rows in held), sum(held) / 2
    words = f"busiest expert 1 has {most / mean:.3f} of the mean load"
    assert any(words in row.found for row in report.requirements)


def test_runs_without_counts_are_what_they_were(tmp_path: Path, builder: ModuleType) -> None:
    report = _checked(tmp_path, builder)
    assert report.verdict is Verdict.ACCEPTED
    assert not any("busiest expert" in row.found for row in report.requirements)


def _one(index: int, change: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    return lambda ranks: change(_captures(ranks)[index])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            _one(1, lambda seen: seen["expert_tokens"].__setitem__(0, seen["expert_tokens"][0] + 1)), id="more"
        ),
        pytest.param(_one(0, lambda seen: seen.update(expert_tokens=[0, 0])), id="none"),
        pytest.param(_one(1, lambda seen: seen.pop("expert_tokens")), id="of one rank only"),
        pytest.param(
            _one(1, lambda seen: seen.update(expert_tokens=[2 * n for n in seen["expert_tokens"]])), id="twice as many"
        ),
        pytest.param(_one(1, lambda seen: seen["expert_tokens"].append(0)), id="of another number of experts"),
        pytest.param(_one(0, lambda seen: seen.update(resumed_chunks=1)), id="of a capture that was not its own"),
    ],
)
def test_counts_that_are_not_those_of_the_rows_are_refused(
    tmp_path: Path, builder: ModuleType, change: Callable[[Any], Any]
) -> None:
    report = _checked(tmp_path, builder, _counted, change)
    assert report.verdict is Verdict.FAILED
    faults = [finding for finding in report.findings if finding.id == "session.count-mismatch"]
    assert any((fault.pointer or "").endswith("/expert_tokens") for fault in faults), report.findings
