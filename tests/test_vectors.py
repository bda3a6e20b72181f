"""Every vector: real evidence with one change, and the one finding and exit code that must come of it.

A case without a reason fails, another first root than the expected one fails, and a finding of the verifier that no
vector provokes fails: `UNREACHED` says of each exception why no vector can provoke it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mint2m.__main__ import run as command_line
from mint2m_verify import schema
from mint2m_verify.catalogue import entries
from mint2m_verify.finding import Report
from mint2m_verify.render import render

VECTORS = Path(__file__).with_name("vectors")
BASES = VECTORS / "bases"
KEYS = VECTORS / "test-only-keys"
NOT_CASES = {"bases", "maker", KEYS.name, "__pycache__"}

#: Findings that cannot be provoked by evidence in a directory, by id or by noun, each with its reason.
UNREACHED = {
    "parity": "of `parity compare`; tests/verify/test_parity.py",
    "diff": "of `evidence diff`; tests/verify/test_evidence_diff.py",
    "evidence": "of published evidence; tests/verify/test_evidence.py",
    "memory": "of planning; tests/verify/test_memory_plan.py",
    "plan.altered": "of training; tests/mint2m/test_run.py",
    "plan.inputs-changed": "of training; tests/mint2m/test_run.py",
    "plan.review-only": "of training; tests/trainer/cluster/test_driver.py",
    "plan.run-id-invalid": "of planning; tests/verify/test_plan.py",
    "plan.nonce-empty": "of planning; tests/verify/test_plan.py",
    "backend": "of training: a package that is not installed",
    "source": "an installation without one of its packages",
    "run": "of training; tests/trainer/cluster",
    "online": "of online training; tests/trainer/online",
    "progress": "of training; tests/trainer/resume",
    "ray": "of training; tests/trainer/cluster",
    "rank": "of training; tests/trainer/cluster",
    "ownership": "of cleanup; tests/trainer/cluster",
    "cleanup": "of cleanup; tests/trainer/cluster",
    "authorization": "of the doctor; tests/verify/test_doctor.py",
    "checkout": "of the doctor; tests/verify/test_doctor.py",
    "deployment": "of the doctor; tests/verify/test_doctor.py",
    "image": "of the doctor; tests/verify/test_doctor.py",
    "model": "of the doctor; tests/verify/test_doctor.py",
    "output": "of the doctor; tests/verify/test_doctor.py",
    "platform": "of the doctor; tests/verify/test_doctor.py",
    "profile": "of the doctor; tests/verify/test_doctor.py",
    "sbom": "of the doctor; tests/verify/test_doctor.py",
    "scope": "of the doctor; tests/verify/test_doctor.py",
    "signer": "of the doctor and of signing; tests/verify/test_doctor.py, tests/verify/signers",
    "model-signature": "bytes the test builds; tests/verify/model_signing",
    "topology": "of the doctor; tests/verify/test_doctor.py",
    "optimizer.moments-refused": "of the doctor; tests/verify/test_doctor.py",
    "accumulation.refused": "of the doctor; tests/verify/test_doctor.py",
    "adapter.missing": "of the doctor; tests/verify/test_doctor.py",
    "adapter.malformed": "of writing an adapter; tests/trainer/test_adapter_export.py",
    "fixture-set": "of the doctor; tests/trainer/stages/test_validation_deployment.py",
    "fixture.logprobs-missing": "of the doctor; tests/verify/test_doctor.py",
    "fixture.placeholder-hash": "of the doctor; tests/verify/test_doctor.py",
    "fixture.unreadable": "of the doctor; tests/verify/test_doctor.py",
    "fixture.reward-rule-absent": "of training; tests/verify/test_reward_registry.py",
    "fixture.reward-rule-failed": "an installed plugin's bug; tests/verify/test_reward_registry.py",
    "fixture.reward-rule-unknown": "the schema refuses the rule first; tests/verify/test_rewards.py",
    "sigstore": "bundles of certificates and logs, made by the test; tests/verify/sigstore_bundle/test_reasons.py",
    "policy.payload-differs": "a seal's co-signatures have seal.cosignature-differs; tests/verify/policy/test_judge.py",
    "policy.version-too-old": "of releases; tests/verify/policy/test_judge.py",
    "explain": "of `explain`",
    "tool": "a bug, a fault of the machine or a missing extra; tests/mint2m/test_main.py",
    "usage.interrupted": "a person at the keyboard",
    "file.unreadable": "permissions do not bind the superuser, who runs many CI jobs; tests/verify/test_files.py",
    "file.exists": "of commands that write",
    "tensors.too-large": "files above 1 GiB; tests/verify/test_large_files.py",
    "file.unwritable": "of commands that write",
    "key.encrypted": "of commands that sign; tests/verify/test_signing.py",
    "key.not-encrypted": "of commands that sign; tests/verify/signers/test_choose.py",
    "key.passphrase-empty": "of commands that sign; tests/verify/signers/test_choose.py",
    "key.passphrase-wrong": "of commands that sign; tests/verify/signers/test_choose.py",
    "tree.changed-while-read": "a race; tests/verify/test_tree.py",
    "tree.empty": "schemas refuse an empty list first; of making a manifest, tests/verify/test_tree.py",
    "verify.not-reached": "a guard: whatever stops a check has a finding of its own",
    "doctor.option-missing": "of the doctor; tests/verify/test_doctor.py",
    "image-provenance": "of the doctor; tests/verify/test_doctor.py",
    "runtime-identity": "of the doctor; tests/verify/test_doctor.py",
    "runtime-lock": "of the doctor and of making locks; tests/verify/runtime",
    "megatron-core": "of the doctor; tests/verify/test_doctor.py",
    "psutil": "of the doctor; tests/verify/test_doctor.py",
    "numba": "of the doctor; tests/verify/test_doctor.py",
    "torch": "of the doctor; tests/verify/test_doctor.py",
    "stage": "of taking stages; tests/trainer/stages",
    "replay": "of repeating an update; tests/trainer/test_replay.py",
    "chain.cache-empty": "a plan that requires a cache; tests/verify/chain/test_chain.py",
    "runlog.empty": "the plan is always an entry; tests/verify/test_runlog.py",
    "bundle": "of archives; tests/verify/bundle",
    "release": "of archives and of making them; tests/verify/bundle, tests/verify/release",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`case.json`; `steps` are what bytes cannot say. tests/vectors/README.md explains the members."""

    name: str
    why: str
    base: str | None
    command: tuple[str, ...]
    exit: int
    finding: str | None
    also: tuple[str, ...] = ()
    steps: dict[str, Any] = field(default_factory=dict)


def read_case(folder: Path) -> Case:
    document = json.loads((folder / "case.json").read_bytes())
    known = {name: document.pop(name) for name in ("why", "base", "command", "exit", "finding")}
    also = tuple(document.pop("also", ()))
    known["command"] = tuple(known["command"])
    return Case(name=folder.name, also=also, steps=document, **known)


CASES = [read_case(folder) for folder in sorted(VECTORS.iterdir()) if folder.is_dir() and folder.name not in NOT_CASES]


def lay_out(case: Case, place: Path) -> Path:
    """The run directory of a case below `place`, in the order that README.md gives."""
    root = place / "run"
    if case.base is None:
        root.mkdir()
    else:
        shutil.copytree(BASES / case.base, root)
    steps = dict(case.steps)
    for old, new in steps.pop("rename", {}).items():
        (root / old).rename(root / new)
    for path in steps.pop("remove", ()):
        (root / path).unlink()
        if not any((root / path).parent.iterdir()):
            (root / path).parent.rmdir()
    beside = VECTORS / case.name / "outside"
    if beside.is_dir():
        shutil.copytree(beside, place, dirs_exist_ok=True)
    overlay = VECTORS / case.name / "files"
    if overlay.is_dir():
        shutil.copytree(overlay, root, dirs_exist_ok=True)
    changes = VECTORS / case.name / "changes.json"
    for path, pieces in (json.loads(changes.read_bytes()) if changes.is_file() else {}).items():
        (root / path).write_bytes(spliced((root / path).read_bytes(), pieces))
    for path, offset in steps.pop("flip", {}).items():
        raw = bytearray((root / path).read_bytes())
        raw[offset] ^= 1
        (root / path).write_bytes(raw)
    for path, text in steps.pop("write", {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode())
    for path, (head, part, count, tail) in steps.pop("repeat", {}).items():
        (root / path).write_text(head + part * count + tail)
    for path, size in steps.pop("sparse", {}).items():
        os.truncate(root / path, size)
    for path, target in steps.pop("links", {}).items():
        (root / path).symlink_to(target)
    for name, path in steps.pop("hardlinks_outside", {}).items():
        os.link(root / path, place / name)
    for path in steps.pop("pipes", ()):
        os.mkfifo(root / path)
    for path in steps.pop("sockets", ()):
        _socket(root / path)
    for path in steps.pop("executable", ()):
        (root / path).chmod(0o755)
    assert not steps, f"{case.name}: case.json says {steps}, which nothing here does"
    return root


def spliced(base: bytes, pieces: list[tuple[int, int, str]]) -> bytes:
    """The base with each piece put in place: first byte, how many go, what comes."""
    raw = bytearray(base)
    for first, count, text in reversed(pieces):
        raw[first : first + count] = bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode("ascii")
    return bytes(raw)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is limited to about a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def words(case: Case, place: Path, root: Path) -> list[str]:
    places = {"run": str(root), "keys": str(KEYS), "outside": str(place)}
    return [re.sub(r"\{(\w+)\}", lambda match: places[match[1]], word) for word in case.command]


def roots(report: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in report["findings"] if finding["cause"] is None]


#: C0 without line feed, DEL, C1, bidi marks and isolates, line and paragraph separators.
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_vector_yields_its_finding_and_exit_code(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay_out(case, tmp_path)
    reports: list[Report] = []

    def both(report: Report, form: str, *, colour: bool = False) -> str:
        reports.append(report)  # the text is rendered below from the same report, which spares a second verification
        return render(report, form, colour=colour)

    monkeypatch.setattr("mint2m_verify.render.render", both)
    outcome = command_line([*words(case, tmp_path, root), "--format", "json"])
    report = json.loads(outcome.text)
    assert schema.check(report, "report", file=case.name) == ()
    ids = [finding["id"] for finding in report["findings"]]
    assert (int(outcome.verdict), next(iter(roots(report)), None)) == (case.exit, case.finding), ids
    assert set(case.also) <= set(ids)
    assert report["exit_code"] == case.exit
    assert outcome.text.isascii() and CONTROLS.findall(outcome.text) == []

    text = render(reports[-1], "text")
    assert CONTROLS.findall(text) == []
    assert "Traceback" not in text
    assert case.finding is None or case.finding in text
    accepted = re.findall(r"^ACCEPTED\b", text, re.MULTILINE)
    assert len(accepted) == (1 if case.exit == 0 else 0)


def test_every_case_says_why_in_one_line() -> None:
    for case in CASES:
        assert case.why.strip() and "\n" not in case.why and len(case.why) <= 120, case.name
    assert len({case.why for case in CASES}) == len(CASES)


def test_a_case_that_must_fail_names_a_finding_of_the_catalogue() -> None:
    for case in CASES:
        assert (case.exit == 0) == (case.finding is None), case.name
        assert {case.finding, *case.also} - {None} <= entries().keys(), case.name


def test_there_are_at_least_forty_negative_cases() -> None:
    assert sum(case.exit != 0 for case in CASES) >= 40


def test_every_finding_of_the_verifier_has_a_vector() -> None:
    provoked = {case.finding for case in CASES} | {id for case in CASES for id in case.also}
    excused = {id for id in entries() if id in UNREACHED or id.split(".")[0] in UNREACHED}
    assert sorted(entries().keys() - provoked - excused) == []
    assert sorted(excused & provoked) == []  # an excuse that a vector refutes
    nouns = {id.split(".")[0] for id in entries()}
    assert sorted(UNREACHED.keys() - entries().keys() - nouns) == []  # an excuse for what no longer exists


def test_the_names_that_the_requirements_give_are_all_there() -> None:
    wanted = [
        "flipped-byte",
        "added-file",
        "symlink-in-place-of-file",
        "renamed-file",
        "rank-missing",
        "phases-swapped",
        "two-optimizer-steps",
        "loss-edited-hash-fixed",
        "resigned-by-stranger",
        "receipt-of-another-run",
        "records-of-another-execution",
        "schema-no-rank",
        "json-duplicate-key",
        "json-nan",
        "schema-path-outside",
        "schema-zero-digest",
        "schema-passed-true",
        "escape-in-file-name",
        "no-anchor",
        "key-inside-evidence",
    ]
    assert sorted(set(wanted) - {case.name for case in CASES}) == []


@pytest.mark.parametrize("base", ["run", "run-one-rank"])
def test_the_same_evidence_copied_and_touched_is_still_accepted(base: str, tmp_path: Path) -> None:
    first = shutil.copytree(BASES / base, tmp_path / "first")
    second = shutil.copytree(first, tmp_path / "elsewhere/second", copy_function=shutil.copyfile)
    for path in second.rglob("*"):
        os.utime(path, (1, 1))
    key = KEYS / ("release.pub" if base == "run" else "release-p256.pub")
    reports = [
        json.loads(command_line(["verify", "run", str(root), "--key", str(key), "--format", "json"]).text)
        for root in (first, second)
    ]
    assert [report.pop("subject") for report in reports] == [str(first), str(second)]
    assert reports[0] == reports[1]
    assert reports[0]["exit_code"] == 0


def test_consistency_only_says_that_the_origin_is_unknown() -> None:
    outcome = command_line(["verify", "run", str(BASES / "run"), "--consistency-only"])
    assert outcome.verdict == 0
    assert "consistent, origin unknown" in outcome.text.splitlines()[0]
    assert "claim scope" not in outcome.text


def test_a_process_of_its_own_leaves_with_the_same_code_and_no_traceback(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "flipped-byte")
    root = lay_out(case, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mint2m", *words(case, tmp_path, root)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "tree.file-changed" in done.stdout


def test_the_committed_vectors_are_those_that_their_script_makes() -> None:
    done = subprocess.run([sys.executable, str(VECTORS / "make.py"), "check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [f"{len(CASES)} as committed"]), done.stderr


def _members(path: Path) -> Iterator[Path]:
    return (item for item in path.rglob("*") if item.is_file())


def test_the_vectors_stay_small() -> None:
    assert sum(path.stat().st_size for path in _members(VECTORS)) < 12_000_000
