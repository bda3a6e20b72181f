"""The decode audit by examples counted by hand, and what an export's report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.decode_audit import Decoded, audit, repeats
from mint2m_verify.finding import FindingError, Standing, Verdict
from mint2m_verify.rollout_check import Wanted, check_rollouts, wanted_of


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([7] * 32, True),
        ([7] * 31, False),  # fewer than the tokens that count
        ([1, 2, 3] + [7] * 32, True),
        ([7] * 32 + [1], False),  # it came out of it
        ([1, 2] * 16, True),
        ([*range(20)] * 4, True),
        ([*range(20)] * 3 + [*range(19)], False),  # not four whole units
        ([*range(33)] * 4, False),  # a longer unit than is looked for
        ([*range(100)], False),
        ([], False),
    ],
)
def test_a_tail_repeats_where_one_unit_comes_again_and_again(tokens: list[int], expected: bool) -> None:
    assert repeats(tokens) is expected


def test_signs_are_counted_over_the_responses_that_could_show_them() -> None:
    seen = audit(
        [
            Decoded(tokens=[1], text="fine", capped=False),
            Decoded(tokens=[7] * 40, text="\ufffd and Question: again", capped=True),
            Decoded(tokens=[7] * 40, text=None, capped=True),
        ]
    )
    assert {name: (count, whole) for name, count, whole in seen.shares()} == {
        "replacement": (1, 2),
        "repetition": (2, 3),
        "echo": (1, 2),
        "capped": (2, 3),
    }


def test_markers_of_ones_own_take_the_place_of_common_ones() -> None:
    said = [Decoded(tokens=[1], text="Question: and [Q]", capped=False)]
    assert audit(said).echoing == 1
    assert audit(said, ("[A]",)).echoing == 0


def _record(**change: Any) -> dict[str, Any]:
    return {
        "schema": "mint2m.rollout-record/v1",
        "request": "row-1",
        "engine": {"name": "sglang", "version": "0.5"},
        "policy": {"revision": "r1", "adapter_sha256": None},
        "tokenizer": "other",
        "sampling": {"temperature": 0.7, "top_p": 1, "top_k": 50, "stop_tokens": [], "max_tokens": 4},
        "prompt_tokens": [70000, 5],
        "responses": [{"seed": None, "tokens": [9, 8], "logprobs": [-1, 0], "finish": "stop", "text": None}],
        **change,
    }


def test_an_export_of_another_tokenizer_is_accepted_and_the_report_says_what_was_not_checked(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(json.dumps(_record(), indent=None) + "\n")
    report = check_rollouts(tmp_path / "r.jsonl", Wanted(no_adapter=True))
    assert report.verdict is Verdict.ACCEPTED, report.findings
    assert any("--model" in note for note in report.not_checked)
    assert any("1 responses: nobody decoded" in note for note in report.not_checked)
    assert not any("--adapter" in note for note in report.not_checked)
    row = next(row for row in report.requirements if row.required == "decode audit")
    assert (row.standing, row.found) == (
        Standing.DERIVED,
        "replacement 0 of 0, repetition 0 of 1, echo 0 of 0, capped 0 of 1",
    )


def test_every_faulty_line_is_named_and_the_others_are_still_read(tmp_path: Path) -> None:
    lines = [json.dumps(_record()), "{", json.dumps(_record(request="row-2", prompt_tokens=[])), json.dumps(_record())]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    report = check_rollouts(tmp_path / "r.jsonl", Wanted())
    assert [(fault.id, fault.file) for fault in report.findings] == [
        ("json.malformed", "r.jsonl:2"),
        ("schema.invalid", "r.jsonl:3"),
        ("rollout.duplicate", "r.jsonl:4"),
    ]


def test_two_answers_about_the_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FindingError) as fault:
        wanted_of(model=None, revision=None, adapter=tmp_path, no_adapter=True, markers=(), most_flagged=None)
    assert fault.value.finding.id == "usage.invalid"
