"""One rank goes wrong: the run stops, everything it owned is gone, and the finding names rank, phase and cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_trainer.cluster.journal import read
from mint2m_trainer.cluster.process import marked
from mint2m_trainer.cluster.ray_session import ray_directory

pytestmark = pytest.mark.ray

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("kind", "id", "exit_code", "words"),
    [
        ("raises", "rank.failed", 1, "rank 1: AwkwardError: row 7 and row 8 differ"),
        ("dies", "rank.died", 5, "rank 1"),
        ("cannot use its input", "rank.input-refused", 2, "rank 1: InputError: lm_head.weight: NaN"),
        pytest.param("hangs", "rank.late", 5, "waiting for ranks 1", marks=pytest.mark.slow),
        pytest.param("disagrees", "rank.disagrees", 1, "rank 1: ", marks=pytest.mark.slow),
        pytest.param("lies about a file", "rank.resource", 5, "never-written", marks=pytest.mark.slow),
        pytest.param("has a bug", "rank.internal", 70, "rank 1: KeyError", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_goes_wrong_stops_the_run_and_leaves_nothing(
    tmp_path: Path, tiny_profile: Callable[..., Path], kind: str, id: str, exit_code: int, words: str
) -> None:
    root = tmp_path / "out"
    profile = tiny_profile(phase_timeout=15 if kind == "hangs" else 400)
    environment = os.environ | {
        "FAULT_IN_PHASE": "capture-prefix",
        "FAULT_KIND": kind,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "drive_run.py"), "faulty_backend:FaultyUpdate"),
            *("run", "--deployment", "local", "--profile", str(profile), "--output", str(root), "--format", "json"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    report = json.loads(done.stdout)
    assert [finding["id"] for finding in report["findings"]] == [id]
    assert done.returncode == exit_code
    finding = report["findings"][0]
    assert finding["stage"] == "capture-prefix"
    assert words in finding["actual"]
    assert "Traceback" not in done.stderr
    ledger = read(root / "ownership.jsonl")
    assert ledger.closed
    assert ledger.events[-1].detail == "stopped in capture-prefix"
    assert not ledger.owned
    assert not marked(ledger.execution_id)
    assert not ray_directory(ledger.execution_id).exists()
    assert not (root / "receipt.json").exists()
