"""The comparison itself: figures by hand, faults one by one, and the oracle against itself."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.recompute.parity import Family, Side, Thresholds, compare, family_of
from mint2m_verify.recompute.parity_sides import compare_directories, read_side

Q = "base_model.model.model.layers.0.self_attn.q_a_proj.lora_A.weight"
GATE = "base_model.model.model.layers.1.mlp.experts.3.gate_proj.lora_B.weight"
HEAD = "base_model.model.lm_head.lora_A.weight"
HEAD_B = "base_model.model.lm_head.lora_B.weight"


def a_side(**changes: Any) -> Side:
    made = Side(
        name="side",
        gradients={Q: np.array([[3.0, 0.0], [0.0, 4.0]]), GATE: np.array([[12.0], [0.0]]), HEAD: np.array([[1.0]])},
        logprobs=((-1.0, -2.0), (-3.0,)),
        loss=0.25,
        gradient_norm=13.0,
        clip_coefficient=1 / 13,
        clipped_low=1,
        clipped_high=2,
    )
    return dataclasses.replace(made, **changes)


def with_gradient(name: str, value: np.ndarray | None) -> Side:
    gradients = {key: array for key, array in a_side().gradients.items() if key != name}
    return a_side(gradients=gradients if value is None else gradients | {name: value})


def faults(candidate: Side, reference: Side | None = None, **bounds: Any) -> list[tuple[str, str | None]]:
    report = compare(reference or a_side(), candidate, Thresholds(**bounds))
    assert report.agrees is (not report.findings)
    return [(finding.id, finding.pointer) for finding in report.findings]


def test_a_side_agrees_with_itself_exactly() -> None:
    report = compare(a_side(), a_side(), Thresholds())
    assert report.agrees
    assert report.overall is not None
    assert report.overall.cosine == pytest.approx(1, abs=1e-15)
    assert (report.overall.relative_l2, report.overall.max_abs, report.logprob_max_abs) == (0, 0, 0)


def test_figures_are_those_worked_out_by_hand() -> None:
    """r = (3, 0, 0, 4 | 12, 0 | 1), c = (3, 0, 0, 4 | 12, 5 | 1): |r|^2 = 170, r.c = 170, |c|^2 = 195, |c - r| = 5."""
    report = compare(a_side(), with_gradient(GATE, np.array([[12.0], [5.0]])), Thresholds())
    overall = report.overall
    assert overall is not None
    assert overall.cosine == pytest.approx(170 / math.sqrt(170 * 195))
    assert overall.relative_l2 == pytest.approx(5 / math.sqrt(170))
    assert (overall.max_abs, overall.zero_mask, overall.tensors, overall.elements) == (5, 1, 3, 7)
    by_family = {item.family: item.distance for item in report.families}
    assert by_family[Family.EXPERT].cosine == pytest.approx(12 / 13)
    assert by_family[Family.EXPERT].relative_l2 == pytest.approx(5 / 12)
    assert by_family[Family.ATTENTION].relative_l2 == 0
    assert report.worst_tensor is not None
    assert report.worst_tensor.name == GATE


def test_a_gradient_scaled_by_two_has_cosine_one_and_still_fails() -> None:
    doubled = a_side(gradients={name: 2 * array for name, array in a_side().gradients.items()})
    found = faults(doubled)
    assert ("parity.threshold-exceeded", "overall relative L2") in found
    assert not any("cosine" in str(pointer) for _, pointer in found)


def test_a_small_family_that_is_wrong_fails_although_the_whole_passes() -> None:
    big = with_gradient(Q, np.array([[3000.0, 0.0], [0.0, 4000.0]]))
    wrong = dataclasses.replace(big, gradients=dict(big.gradients) | {HEAD: np.array([[-1.0]])})
    assert faults(wrong, big) == [
        ("parity.threshold-exceeded", "unembed cosine"),
        ("parity.threshold-exceeded", "unembed relative L2"),
    ]


def test_a_family_below_a_millionth_of_the_whole_is_excepted_only_on_both_sides() -> None:
    big = with_gradient(Q, np.array([[3e9, 0.0], [0.0, 4e9]]))
    tiny = dataclasses.replace(big, gradients=dict(big.gradients) | {HEAD: np.array([[-1.0]])})
    large = dataclasses.replace(big, gradients=dict(big.gradients) | {HEAD: np.array([[1e7]])})
    assert faults(tiny, big) == []
    assert ("parity.threshold-exceeded", "unembed relative L2") in faults(large, big)


@pytest.mark.parametrize(
    ("candidate", "found"),
    [
        (with_gradient(HEAD, None), ("parity.missing-tensor", HEAD)),
        (with_gradient(HEAD_B, np.ones((1, 1))), ("parity.extra-tensor", HEAD_B)),
        (with_gradient(HEAD, np.ones((2, 1))), ("parity.shape-mismatch", HEAD)),
        (with_gradient(HEAD, np.array([[np.nan]])), ("parity.not-finite", HEAD)),
        (with_gradient(HEAD, np.array([[np.inf]])), ("parity.not-finite", HEAD)),
        (a_side(loss=math.nan), ("parity.not-finite", "/loss")),
        (a_side(logprobs=((-1.0, math.nan), (-3.0,))), ("parity.not-finite", "/responses/0")),
        (a_side(loss=0.256), ("parity.threshold-exceeded", "loss abs")),
        (a_side(logprobs=((-1.0, -2.006), (-3.0,))), ("parity.threshold-exceeded", "log-prob max abs")),
        (a_side(logprobs=((-1.0, -2.0),)), ("parity.shape-mismatch", "/responses")),
        (a_side(logprobs=((-1.0,), (-2.0, -3.0))), ("parity.shape-mismatch", "/responses")),
        (a_side(clipped_low=0), ("parity.clip-count-mismatch", "/clipped_low")),
        (a_side(clipped_high=3), ("parity.clip-count-mismatch", "/clipped_high")),
        (with_gradient(Q, np.array([[3.0, 1e-6], [0.0, 4.0]])), ("parity.zero-mask-mismatch", None)),
    ],
)  # fmt: skip
def test_one_change_is_found_by_its_name(candidate: Side, found: tuple[str, str | None]) -> None:
    assert faults(candidate)[0] == found


@pytest.mark.parametrize(
    ("reference", "candidate", "bits"),
    [("float64", "float64", 52), ("float64", "float32", 23), ("float32", "float64", 23), ("float32", "float32", 23)],
)
def test_what_rounding_leaves_of_a_zero_is_no_mismatch_and_a_little_more_is(
    reference: str, candidate: str, bits: int
) -> None:
    """Float64's own rounding only where both sides have it: IEEE 754's 52 and 23 bits after the leading one."""
    largest = 4.0
    last_bit = largest * 2.0**-bits
    plain = with_gradient(Q, a_side().gradients[Q].astype(reference))
    for left, expected in ((last_bit, []), (1.01 * last_bit, [("parity.zero-mask-mismatch", None)])):
        other = with_gradient(Q, np.array([[3.0, left], [0.0, largest]]).astype(candidate))
        assert faults(other, plain) == expected


def test_a_tensor_that_is_zero_on_one_side_only_differs_in_every_element_however_small() -> None:
    tiny = np.array([[1e-30, 2e-30], [0.0, 3e-30]])
    report = compare(with_gradient(Q, np.zeros((2, 2))), with_gradient(Q, tiny), Thresholds())
    assert report.overall is not None
    assert report.overall.zero_mask == 3


def test_bounds_are_inclusive_and_those_not_given_do_not_gate() -> None:
    assert faults(a_side(loss=0.375), loss=0.125) == []
    assert faults(a_side(gradient_norm=26.0)) == []
    assert faults(a_side(gradient_norm=26.0), gradient_norm=0.5) == [
        ("parity.threshold-exceeded", "gradient norm relative")
    ]
    assert faults(a_side(clip_coefficient=1.0), clip_coefficient=1e-5) == [
        ("parity.threshold-exceeded", "clip coefficient relative")
    ]


def test_a_difference_that_is_no_number_is_over_every_bound() -> None:
    assert ("parity.threshold-exceeded", "loss abs") in faults(a_side(loss=math.nan))
    assert ("parity.threshold-exceeded", "overall relative L2") in faults(with_gradient(HEAD, np.array([[np.nan]])))


def test_a_tensor_past_its_own_bound_fails_by_name() -> None:
    nearly = with_gradient(HEAD, np.array([[1.002]]))
    assert faults(nearly) == []
    assert faults(nearly, tensor_relative_l2=1e-3) == [("parity.threshold-exceeded", f"{HEAD} relative L2")]


def test_nothing_in_common_is_a_failure_and_so_are_two_zero_gradients() -> None:
    other = a_side(gradients={"base_model.model.model.layers.9.self_attn.o_proj.lora_A.weight": np.ones((1, 1))})
    assert "parity.no-overlap" in [id for id, _ in faults(other)]
    assert "parity.no-overlap" in [id for id, _ in faults(a_side(gradients={}), a_side(gradients={}))]
    zero = a_side(gradients={name: 0 * array for name, array in a_side().gradients.items()})
    assert "parity.no-signal" in [id for id, _ in faults(zero, zero)]
    nothing = a_side(logprobs=((), ()))
    assert ("parity.shape-mismatch", "/responses") in faults(nothing, nothing)


@pytest.mark.parametrize(
    ("module", "family"),
    [
        ("model.layers.3.self_attn.kv_b_proj", Family.ATTENTION),
        ("model.layers.0.mlp.down_proj", Family.DENSE),
        ("model.layers.3.mlp.shared_experts.up_proj", Family.SHARED),
        ("model.layers.3.mlp.experts.17.up_proj", Family.EXPERT),
        ("lm_head", Family.UNEMBED),
    ],
)
def test_families_are_told_by_name(module: str, family: Family) -> None:
    assert family_of(f"base_model.model.{module}.lora_A.weight") is family


def test_a_tensor_of_no_family_is_refused() -> None:
    name = "base_model.model.model.embed_tokens.lora_A.weight"
    with pytest.raises(FindingError):
        family_of(name)
    side = with_gradient(name, np.ones((1, 1)))
    assert faults(side, side) == [("parity.name-unknown", name)]


def export(folder: Path, side: Side, **report: Any) -> Path:
    """A trainer's export, written as its contract says."""
    folder.mkdir()
    save_file(
        {name: array.astype(np.float32) for name, array in side.gradients.items()}, folder / "gradients.safetensors"
    )
    (folder / "logprobs.json").write_text(json.dumps({"responses": side.logprobs}))
    members = ("loss", "gradient_norm", "clip_coefficient", "clipped_low", "clipped_high")
    (folder / "report.json").write_text(json.dumps({member: getattr(side, member) for member in members} | report))
    return folder


@pytest.mark.parametrize("case", ["indexshare", "yarn"])
@pytest.mark.parametrize("label", ["ratio1", "active_clip"])
def test_the_oracle_rounded_to_float32_agrees_with_itself(
    shared: Callable[[str], Path], tmp_path: Path, case: str, label: str
) -> None:
    oracle = shared("oracle") / case
    expected = json.loads((oracle / "expected.json").read_text())
    side = read_side(oracle, case=label)
    assert side.loss == expected[label]["loss"]
    assert side.gradient_norm == expected[label]["grad_norm"]
    assert math.sqrt(sum(float((g**2).sum()) for g in side.gradients.values())) == pytest.approx(side.gradient_norm)
    bounds = Thresholds(relative_l2=1e-7, tensor_relative_l2=1e-7, logprob=0, loss=0, gradient_norm=0)
    report = compare_directories(oracle, export(tmp_path / "c", side), bounds, case=label)
    assert (report.verdict, report.findings) == (Verdict.ACCEPTED, ())
    assert len(report.requirements) > 6


def test_the_oracles_two_cases_do_not_agree_with_each_other(shared: Callable[[str], Path], tmp_path: Path) -> None:
    oracle = shared("oracle") / "indexshare"
    other = export(tmp_path / "c", read_side(oracle, case="active_clip"))
    report = compare_directories(oracle, other, Thresholds(), case="ratio1")
    assert report.verdict == Verdict.FAILED
    ids = {finding.id for finding in report.findings}
    assert ids == {"parity.threshold-exceeded", "parity.clip-count-mismatch"}


def test_a_case_must_be_one_that_the_reference_has(shared: Callable[[str], Path], tmp_path: Path) -> None:
    oracle = shared("oracle") / "indexshare"
    candidate = export(tmp_path / "c", a_side())
    for case in (None, "ratio2"):
        report = compare_directories(oracle, candidate, Thresholds(), case=case)
        assert (report.verdict, report.findings[0].id) == (Verdict.BLOCKED, "parity.case-unknown")
    report = compare_directories(candidate, candidate, Thresholds(), case="ratio1")
    assert report.findings[0].id == "parity.case-unknown"


@pytest.mark.parametrize(
    ("name", "content", "id"),
    [
        ("gradients.safetensors", b"", "parity.malformed"),
        ("gradients.safetensors", b"\x02\0\0\0\0\0\0\0{}", "parity.no-overlap"),
        ("logprobs.json", b"[]", "parity.malformed"),
        ("logprobs.json", b'{"responses": []}', "parity.malformed"),
        ("logprobs.json", b'{"responses": [["-1"]]}', "parity.malformed"),
        ("logprobs.json", b'{"responses": [[NaN]]}', "json.not-finite"),
        ("report.json", b"{}", "parity.malformed"),
        ("report.json", b'{"loss": 1e999}', "json.not-finite"),
        ("report.json", b"{", "json.malformed"),
    ],
)
def test_a_damaged_export_is_a_finding_and_never_agrees(tmp_path: Path, name: str, content: bytes, id: str) -> None:
    reference = export(tmp_path / "r", a_side())
    candidate = export(tmp_path / "c", a_side())
    (candidate / name).write_bytes(content)
    report = compare_directories(reference, candidate, Thresholds(), case=None)
    assert report.verdict == Verdict.FAILED
    assert id in [finding.id for finding in report.findings]


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    reference = export(tmp_path / "r", a_side())
    (export(tmp_path / "c", a_side()) / "logprobs.json").unlink()
    report = compare_directories(reference, tmp_path / "c", Thresholds(), case=None)
    assert [finding.id for finding in report.findings] == ["file.missing"]
    assert report.verdict != Verdict.ACCEPTED


def test_a_count_that_is_no_count_is_refused(tmp_path: Path) -> None:
    reference = export(tmp_path / "r", a_side())
    for value in (1.0, True, -1, "1"):
        candidate = export(tmp_path / f"c{value}", a_side(), clipped_low=value)
        report = compare_directories(reference, candidate, Thresholds(), case=None)
        assert report.findings[0].id == "parity.malformed"
