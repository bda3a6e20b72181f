"""Cleanup from the journal alone: what it ends, what it leaves alone, and what it says. No Ray is started here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mint2m_trainer.cluster.cleanup import cleanup
from mint2m_trainer.cluster.journal import Journal, read, resource
from mint2m_trainer.cluster.process import MARKER, identify
from mint2m_trainer.cluster.ray_session import ray_directory
from mint2m_trainer.cluster.status import status
from mint2m_verify.documents.plan import Plan
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.planning import plan_deployment

EXECUTION = "c0ffee" + "5" * 58


@pytest.fixture
def planned(tmp_path: Path, tiny_deployment: Callable[..., Path]) -> Plan:
    """A plan beside which a journal can lie."""
    made = plan_deployment(tiny_deployment(tmp_path / "run"), profile=None, run_id="t", instance_nonce="n")
    assert made.plan is not None, made.gathered.findings
    (tmp_path / "run" / "plan.json").write_bytes(made.plan.encode())
    return made.plan


@contextmanager
def sleeper(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def journal_of(tmp_path: Path, plan: Plan) -> Journal:
    journal = Journal.create(tmp_path / "run" / "ownership.jsonl", plan_sha256=plan.plan_sha256, execution_id=EXECUTION)
    journal.write("opened")
    return journal


def clean(tmp_path: Path):  # type: ignore[no-untyped-def]  # a Report
    return cleanup(tmp_path / "run" / "plan.json", tmp_path / "run" / "ownership.jsonl")


def test_journalled_and_marked_processes_end_and_the_journal_closes(tmp_path: Path, planned: Plan) -> None:
    directory = ray_directory(EXECUTION)
    with sleeper() as known, sleeper(**{MARKER: EXECUTION}) as marked_only:
        who = identify(known.pid)
        assert who is not None
        with journal_of(tmp_path, planned) as journal:
            journal.write("intent", resource("directory", str(directory)))
            directory.mkdir()
            (directory / "log").write_text("x")
            journal.write("created", resource("directory", str(directory)))
            journal.write("intent", resource("process", "raylet"))
            journal.write("created", resource("process", "raylet", pid=who.pid, start_ticks=who.start_ticks))
            journal.write("intent", resource("actor", "never-made"))
        report = clean(tmp_path)
        assert report.verdict is Verdict.ACCEPTED
        assert known.wait(5) == -15
        assert marked_only.wait(5) == -15
    assert not directory.exists()
    ledger = read(tmp_path / "run" / "ownership.jsonl")
    assert ledger.closed
    assert {event.resource.name for event in ledger.events if event.event == "absent" and event.resource} == {
        str(directory),
        "raylet",
        "never-made",
    }


def test_a_recycled_pid_is_not_killed(tmp_path: Path, planned: Plan) -> None:
    with sleeper() as stranger:
        who = identify(stranger.pid)
        assert who is not None
        with journal_of(tmp_path, planned) as journal:
            journal.write("intent", resource("process", "raylet"))
            journal.write("created", resource("process", "raylet", pid=who.pid, start_ticks=who.start_ticks - 5))
        assert clean(tmp_path).verdict is Verdict.ACCEPTED
        assert stranger.poll() is None


def test_a_directory_that_this_execution_did_not_name_is_left_and_reported(tmp_path: Path, planned: Plan) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    with journal_of(tmp_path, planned) as journal:
        journal.write("intent", resource("directory", str(precious)))
        journal.write("created", resource("directory", str(precious)))
    report = clean(tmp_path)
    assert (precious / "file").read_text() == "keep"
    assert [finding.id for finding in report.findings] == ["cleanup.resource-remains"]
    assert report.verdict is Verdict.FAILED
    assert not read(tmp_path / "run" / "ownership.jsonl").closed


def test_half_written_files_go_and_finished_ones_stay(tmp_path: Path, planned: Plan) -> None:
    run = tmp_path / "run"
    journal_of(tmp_path, planned).close()
    (run / "checkpoint.partial-c0ffee").mkdir()
    (run / "checkpoint.partial-c0ffee" / "__0_0.distcp").write_bytes(b"half")
    (run / "artifacts").mkdir()
    (run / "artifacts" / ".scores.json.4711.partial").write_bytes(b"{")
    (run / "artifacts" / "scores.json").write_bytes(b"{}")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "partial" not in str(path)}
    assert clean(tmp_path).verdict is Verdict.ACCEPTED
    assert not [path for path in run.rglob("*") if "partial" in path.name]
    after = {path: path.read_bytes() for path in before if path.name != "ownership.jsonl"}
    assert after == {path: raw for path, raw in before.items() if path.name != "ownership.jsonl"}


def test_a_second_cleanup_writes_nothing_and_says_the_same(tmp_path: Path, planned: Plan) -> None:
    journal_of(tmp_path, planned).close()
    first = clean(tmp_path)
    raw = (tmp_path / "run" / "ownership.jsonl").read_bytes()
    second = clean(tmp_path)
    assert (first.verdict, second.verdict) == (Verdict.ACCEPTED, Verdict.ACCEPTED)
    assert (tmp_path / "run" / "ownership.jsonl").read_bytes() == raw


def test_a_closed_journal_does_not_hide_a_process_that_lives(tmp_path: Path, planned: Plan) -> None:
    with sleeper(**{MARKER: EXECUTION}) as alive:
        with journal_of(tmp_path, planned) as journal:
            journal.write("closed", detail="complete")
        report = clean(tmp_path)
        assert [finding.id for finding in report.findings] == ["cleanup.resource-remains"]
        assert str(alive.pid) in str(report.findings[0].actual)
        assert alive.poll() is None, "a closed run owns nothing, so cleanup only reports"


def test_the_plan_of_another_run_is_refused(tmp_path: Path, planned: Plan) -> None:
    Journal.create(tmp_path / "run" / "ownership.jsonl", plan_sha256="9" * 64, execution_id=EXECUTION).close()
    journal = tmp_path / "run" / "ownership.jsonl"
    journal.unlink()
    with Journal.create(journal, plan_sha256="9" * 64, execution_id=EXECUTION) as other:
        other.write("opened")
    with pytest.raises(FindingError) as refused:
        clean(tmp_path)
    assert refused.value.finding.id == "ownership.plan-mismatch"


def test_a_driver_killed_before_its_first_line_left_nothing(tmp_path: Path, planned: Plan) -> None:
    (tmp_path / "run" / "ownership.jsonl").touch()
    assert clean(tmp_path).verdict is Verdict.ACCEPTED


def test_status_tells_running_interrupted_and_over_apart(tmp_path: Path, planned: Plan) -> None:
    path = tmp_path / "run" / "ownership.jsonl"
    with journal_of(tmp_path, planned) as journal:
        assert status(path).summary.startswith("running")
    assert status(path).summary.startswith("interrupted")
    clean(tmp_path)
    assert status(path).summary.startswith("over")
    assert journal.execution_id == EXECUTION
