"""What the builder writes is what its text, rule and hashes say, and the verifier accepts it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mint2m_trainer.contract.fixture import (
    GENERATED,
    RolloutScores,
    Target,
    Task,
    build_fixture,
    ledger_task,
    text_task,
)
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.fixture import Expected, check_fixture

TARGET = Target(
    revision="tiny-1", manifest_sha256="a" * 64, vocab_size=256, profile_sha256="b" * 64, policy_sha256=None
)


def read(folder: Path, name: str) -> dict[str, object]:
    value = json.loads((folder / name).read_text())
    assert isinstance(value, dict)
    return value


def test_the_three_files_are_bound_by_their_hashes_on_disk(tmp_path: Path) -> None:
    build_fixture(tmp_path, ledger_task(1, tokens=1024), TARGET)
    fixture = read(tmp_path, "fixture.json")
    for member, name in (("payload", "payload.json"), ("rollout", "rollout.json")):
        raw = (tmp_path / name).read_bytes()
        assert fixture[member] == {"path": name, "size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert fixture["shape"] == {"vocab_size": 256, "prompt_tokens": 1024, "response_tokens": [9, 9]}
    assert fixture["model"] == {"revision": "tiny-1", "manifest_sha256": "a" * 64}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fixture.json", "payload.json", "rollout.json"]


def test_tokens_are_the_bytes_of_the_text_and_rewards_those_of_the_answers(tmp_path: Path) -> None:
    build_fixture(tmp_path, ledger_task(1, tokens=1024), TARGET)
    payload, rollout = read(tmp_path, "payload.json"), read(tmp_path, "rollout.json")
    assert bytes(rollout["prompt_tokens"]).decode() == payload["prompt_text"]  # type: ignore[arg-type]
    assert [bytes(tokens) for tokens in rollout["responses"]] == [b"Answer: 2", b"Answer: 4"]  # type: ignore[union-attr]
    assert rollout["rewards"] == [-1, 1]
    assert rollout["old_logprobs"] is None


def test_the_verifier_accepts_it(tmp_path: Path) -> None:
    build_fixture(tmp_path, ledger_task(1, tokens=1024), TARGET)
    expected = Expected(
        revision="tiny-1", manifest_sha256="a" * 64, profile_sha256="b" * 64, vocab_size=256, fresh_policy=True
    )
    report = check_fixture(tmp_path / "fixture.json", expected)
    assert (report.verdict, report.findings) == (Verdict.ACCEPTED, ())


def test_a_text_with_characters_of_several_bytes_keeps_its_bytes(tmp_path: Path) -> None:
    task = text_task(
        "Maß und Zahl: 3 + 1 — 日本",
        question="Sum?",
        ground_truth="4",
        responses=("Answer: 4", "Antwort: vier"),
        distribution=GENERATED,
    )
    build_fixture(tmp_path, task, TARGET)
    rollout = read(tmp_path, "rollout.json")
    assert bytes(rollout["prompt_tokens"]) == "Maß und Zahl: 3 + 1 — 日本\n\nSum?\n".encode()  # type: ignore[arg-type]
    assert rollout["rewards"] == [1, -1]


def test_scores_of_a_sampler_are_kept_and_wrong_lengths_refused(tmp_path: Path) -> None:
    task = ledger_task(1, tokens=1024)
    row = (-0.5,) * 9
    build_fixture(tmp_path / "a", task, TARGET, RolloutScores(old=(row, row[:8]), ref=(row, row)))
    assert read(tmp_path / "a", "rollout.json")["old_logprobs"] == [[-0.5] * 9, [-0.5] * 8]
    with pytest.raises(FindingError) as fault:
        build_fixture(tmp_path / "b", task, TARGET, RolloutScores(old=(row, row[:7])))
    assert fault.value.finding.id == "fixture.shape-mismatch"
    assert not (tmp_path / "b").exists()


def test_one_response_or_a_small_vocabulary_is_refused_and_nothing_written(tmp_path: Path) -> None:
    one = Task(prompt="3 + 1", ground_truth="4", responses=("Answer: 4",), distribution=GENERATED)
    small = Target(revision="t", manifest_sha256="a" * 64, vocab_size=64, profile_sha256="b" * 64, policy_sha256=None)
    for task, target, id in (
        (one, TARGET, "schema."),
        (ledger_task(1, tokens=1024), small, "fixture.token-outside-vocabulary"),
    ):
        with pytest.raises(FindingError) as fault:
            build_fixture(tmp_path / "out", task, target)
        assert fault.value.finding.id.startswith(id)
        assert not (tmp_path / "out").exists()


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "rollout.json").write_text("mine")
    with pytest.raises(FindingError) as fault:
        build_fixture(tmp_path, ledger_task(1, tokens=1024), TARGET)
    assert fault.value.finding.id == "file.exists"
    assert [path.name for path in tmp_path.iterdir()] == ["rollout.json"]


def test_building_needs_no_torch() -> None:
    code = (
        "import sys, mint2m_trainer.contract.fixture; "
        "sys.exit(bool({'torch', 'ray', 'megatron', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
