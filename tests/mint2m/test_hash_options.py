"""The options of hashing on the command line: what they refuse, what they leave behind, and where they do not exist."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest

from mint2m.__main__ import run
from mint2m.app import build

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
KEY = str(VECTORS / "test-only-keys/release.pub")


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return Path(shutil.copytree(VECTORS / "bases/run", tmp_path / "run"))


def answered(*words: str) -> dict[str, object]:
    outcome = run([*words, "--format", "json"])
    report: dict[str, object] = json.loads(outcome.text)
    assert report["exit_code"] == int(outcome.verdict)
    return report


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "run", "{run}"),
        ("verify", "checkpoint", "{run}/checkpoint"),
        ("verify", "manifest", "{run}/artifacts/checkpoint-manifest.json", "--root", "{run}/checkpoint"),
    ],
    ids=["run", "checkpoint", "manifest"],
)
def test_each_command_keeps_a_journal_and_takes_digests_from_it_when_asked(
    words: tuple[str, ...], evidence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mint2m_verify.hash_journal._SETTLED_NS", -(10**12))
    given = [word.replace("{run}", str(evidence)) for word in words]
    line = [*given, "--consistency-only", "--hash-journal", str(tmp_path / "journal")]
    standings = []
    for asked in ([], [], ["--use-cached"]):
        report = answered(*line, *asked)
        assert report["exit_code"] == 0
        standings.append({row["standing"] for row in report["requirements"]})  # type: ignore[attr-defined]
    assert ["cached" in seen for seen in standings] == [False, False, True]


def test_cached_digests_without_a_journal_are_refused(evidence: Path) -> None:
    report = answered("verify", "run", str(evidence), "--key", KEY, "--use-cached")
    assert report["exit_code"] == 2
    assert "--hash-journal" in json.dumps(report)


def test_a_journal_in_the_evidence_is_refused_and_not_made(evidence: Path) -> None:
    report = answered("verify", "run", str(evidence), "--key", KEY, "--hash-journal", str(evidence / "journal"))
    assert report["exit_code"] == 2
    assert not (evidence / "journal").exists()


def test_a_journal_that_the_evidence_brought_beside_a_checkpoint_is_refused_where_it_is_not_ours(
    evidence: Path, tmp_path: Path
) -> None:
    (tmp_path / "journal").write_text("mint2m.hash-journal/v1\n")
    line = ("verify", "run", str(evidence), "--key", KEY, "--hash-journal", str(tmp_path / "journal"))
    assert answered(*line)["exit_code"] == 2


def test_no_verification_takes_digests_from_a_cluster() -> None:
    group = build().get_command(click.Context(build()), "verify")
    assert isinstance(group, click.Group)
    options = {option for command in group.commands.values() for each in command.params for option in each.opts}
    assert "--hash-journal" in options
    assert "--ray" not in options
