"""A receipt, a checkpoint and a manifest by themselves: what vouches for them, and what is said to be unchecked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import rfc8785

from mint2m_verify.anchor import Anchor, ConsistencyOnly, DigestAnchor, NoAnchor, VerifyOptions, read_key
from mint2m_verify.finding import Report, Verdict
from mint2m_verify.verify_receipt import verify_receipt
from mint2m_verify.verify_tree import verify_checkpoint, verify_manifest

OPTIONS = VerifyOptions()


@pytest.fixture
def run(tmp_path: Path, builder: ModuleType) -> Path:
    builder.build_run(tmp_path / "run")
    return tmp_path / "run"


def ids(report: Report) -> list[str]:
    return [root.id for root in report.roots]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def key(run: Path) -> Anchor:
    return read_key(run.with_name("run.pub"))


def checkpoint(run: Path, anchor: Anchor) -> Report:
    return verify_checkpoint(run / "checkpoint", None, None, anchor, OPTIONS)


def receipt(run: Path, anchor: Anchor, root: Path | None = None) -> Report:
    return verify_receipt(run / "receipt.json", root, None, anchor, OPTIONS)


def test_a_checkpoint_is_vouched_for_by_key_root_or_file_digest(run: Path) -> None:
    manifest = run / "artifacts/checkpoint-manifest.json"
    root = json.loads(manifest.read_bytes())["root_sha256"]
    for anchor in (key(run), DigestAnchor(sha256=root), DigestAnchor(sha256=sha256(manifest))):
        assert checkpoint(run, anchor).verdict is Verdict.ACCEPTED


def test_a_checkpoint_with_its_own_manifest_and_nothing_else_is_not_trusted(run: Path) -> None:
    report = checkpoint(run, NoAnchor())
    assert (ids(report), report.verdict) == (["trust.no-anchor"], Verdict.UNTRUSTED)
    assert checkpoint(run, ConsistencyOnly()).verdict is Verdict.ACCEPTED
    other = checkpoint(run, DigestAnchor(sha256="1" * 64))
    assert (ids(other), other.verdict) == (["trust.digest-mismatch"], Verdict.UNTRUSTED)


def test_a_changed_checkpoint_names_file_and_bytes(run: Path) -> None:
    (run / "checkpoint/__1_0.distcp").write_bytes(b"rank 1" * 19 + b"rank 2")
    (fault,) = checkpoint(run, key(run)).findings
    assert (fault.id, fault.file, fault.byte_range) == ("tree.file-changed", "__1_0.distcp", (0, 120))


def test_a_manifest_made_anew_over_a_changed_checkpoint_is_no_subject_of_the_seal(
    run: Path, builder: ModuleType
) -> None:
    (run / "checkpoint/new").write_bytes(b"x")
    made = builder.manifest("checkpoint-manifest", run / "checkpoint")
    (run / "artifacts/checkpoint-manifest.json").write_bytes(rfc8785.dumps(made))
    report = checkpoint(run, key(run))
    assert (ids(report), report.verdict) == (["seal.not-a-subject"], Verdict.FAILED)


def test_a_checkpoint_outside_a_run_needs_its_manifest_named(run: Path, tmp_path: Path) -> None:
    (run / "checkpoint").rename(tmp_path / "elsewhere")
    missing = verify_checkpoint(tmp_path / "elsewhere", None, None, ConsistencyOnly(), OPTIONS)
    assert (ids(missing), missing.verdict) == (["file.missing"], Verdict.FAILED)
    manifest = run / "artifacts/checkpoint-manifest.json"
    found = verify_checkpoint(tmp_path / "elsewhere", manifest, None, ConsistencyOnly(), OPTIONS)
    assert found.verdict is Verdict.ACCEPTED


@pytest.mark.parametrize(
    ("manifest", "tree"),
    [
        ("artifacts/adapter-manifest.json", "adapter"),
        ("inputs/model-manifest.json", "inputs/model"),
        ("artifacts/checkpoint-manifest.json", "checkpoint"),
    ],
)
def test_manifests_of_every_kind_are_read(run: Path, manifest: str, tree: str) -> None:
    seal = run / "attestations/seal.sigstore.json"
    report = verify_manifest(run / manifest, run / tree, seal, key(run), OPTIONS)
    assert report.verdict is Verdict.ACCEPTED
    without = verify_manifest(run / manifest, run / tree, None, key(run), OPTIONS)
    assert (ids(without), without.verdict) == (["trust.no-seal"], Verdict.UNTRUSTED)


def test_a_checkpoint_manifest_is_wanted_for_a_checkpoint(run: Path) -> None:
    other = run / "artifacts/adapter-manifest.json"
    report = verify_checkpoint(run / "adapter", other, None, ConsistencyOnly(), OPTIONS)
    assert ids(report) == ["schema.unknown"]


def test_a_receipt_is_vouched_for_by_key_or_by_its_digest(run: Path) -> None:
    for anchor in (key(run), DigestAnchor(sha256=sha256(run / "receipt.json"))):
        report = receipt(run, anchor)
        assert report.verdict is Verdict.ACCEPTED
        assert any("receipt names the files" in row.required for row in report.requirements)


def test_a_receipt_without_an_anchor_is_not_trusted(run: Path) -> None:
    report = receipt(run, NoAnchor())
    assert (ids(report), report.verdict) == (["trust.no-anchor"], Verdict.UNTRUSTED)


def test_a_receipt_alone_says_that_its_files_were_not_seen(run: Path, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = tmp_path / "alone/receipt.json"
    alone.write_bytes((run / "receipt.json").read_bytes())
    report = verify_receipt(alone, None, None, DigestAnchor(sha256=sha256(alone)), OPTIONS)
    assert report.verdict is Verdict.ACCEPTED
    assert any("files that it names" in note for note in report.not_checked)
    without_seal = verify_receipt(alone, None, None, key(run), OPTIONS)
    assert without_seal.verdict is Verdict.FAILED
    assert "trust.no-seal" in {fault.id for fault in without_seal.findings}


def _edit(run: Path, **changes: Any) -> None:
    value = json.loads((run / "receipt.json").read_bytes())
    (run / "receipt.json").write_bytes(rfc8785.dumps({**value, **changes}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"optimizer_steps": 2}, "receipt.mismatch"),
        ({"prefix_backwards": 0}, "receipt.mismatch"),
        ({"max_row_difference": 0.5}, "receipt.mismatch"),
        ({"max_row_difference": None}, "receipt.mismatch"),
        ({"clip_coefficient": 1.5}, "receipt.mismatch"),
        ({"passed": True}, "schema.invalid"),
    ],
)
def test_a_receipt_that_contradicts_itself_is_refused_alone(run: Path, changes: Any, expected: str) -> None:
    _edit(run, **changes)
    report = receipt(run, DigestAnchor(sha256=sha256(run / "receipt.json")))
    assert (ids(report), report.verdict) == ([expected], Verdict.FAILED)


def test_an_edited_receipt_is_no_subject_of_the_seal(run: Path) -> None:
    _edit(run, loss=0.25)
    report = receipt(run, key(run))
    assert (ids(report), report.verdict) == (["seal.not-a-subject"], Verdict.FAILED)


def test_a_receipt_over_another_file_is_refused(run: Path) -> None:
    (run / "artifacts/scores.json").write_bytes(b"{}")
    report = receipt(run, key(run))
    (fault,) = report.findings
    assert (fault.id, fault.pointer) == ("binding.hash-mismatch", "/files/scores/sha256")


def test_a_key_from_inside_the_run_vouches_for_no_part_of_it(run: Path) -> None:
    inside = run / "inputs/release.pub"
    inside.write_bytes(run.with_name("run.pub").read_bytes())
    for report in (receipt(run, read_key(inside)), checkpoint(run, read_key(inside))):
        assert (ids(report), report.verdict) == (["trust.key-inside-evidence"], Verdict.UNTRUSTED)


def test_a_key_beside_a_lone_receipt_is_not_inside_evidence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    alone, beside = tmp_path / "mail/receipt.json", tmp_path / "mail/release.pub"
    alone.write_bytes((run / "receipt.json").read_bytes())
    beside.write_bytes(run.with_name("run.pub").read_bytes())
    seal = run / "attestations/seal.sigstore.json"
    report = verify_receipt(alone, None, seal, read_key(beside), OPTIONS)
    assert report.verdict is Verdict.ACCEPTED
