"""A real run that loses a rank in any phase, or its disk at the checkpoint: the old weights, and a failed receipt."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mint2m_trainer.cluster.directory import half_written
from mint2m_trainer.cluster.journal import read
from mint2m_trainer.cluster.process import marked
from mint2m_verify.documents.failure import FailedReceipt

pytestmark = [pytest.mark.ray, pytest.mark.slow]

HERE = Path(__file__).parent


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run(deployment: Path, root: Path, backend: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """A run's exit code and report; whatever becomes of it, what it was given stays as it was."""
    before = digests(deployment.parent)
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "drive_run.py"), f"dying_backend:{backend}"),
            *("run", "--deployment", str(deployment), "--output", str(root), "--format", "json"),
        ],
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert digests(deployment.parent) == before
    return done.returncode, json.loads(done.stdout)


def check_left(root: Path, stopped_in: str, finding: str) -> FailedReceipt:
    """What must be true of every failed run's directory."""
    receipt = FailedReceipt.parse((root / "failed-receipt.json").read_bytes(), file="failed-receipt.json")
    assert (receipt.status, receipt.stopped_in, receipt.finding.id) == ("failed", stopped_in, finding)
    assert stopped_in not in receipt.completed
    assert receipt.remaining == ()
    for name in ("receipt.json", "adapter", "checkpoint", "attestations", "artifacts/optimizer-after.safetensors"):
        assert not (root / name).exists(), name
    assert not list(half_written(root))
    done = subprocess.run(
        [sys.executable, "-m", "mint2m", "verify", "run", str(root), "--consistency-only", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    report = json.loads(done.stdout)
    assert done.returncode == 1, report
    assert [fault["id"] for fault in report["findings"] if fault["cause"] is None] == ["receipt.failed"], report
    assert f"stopped in {stopped_in}: {finding}" in done.stdout
    return receipt


@pytest.mark.parametrize(
    ("phase", "rank"),
    [
        ("bind", 1),
        ("initialize", 1),
        ("materialize", 1),
        ("materialize", 0),
        ("capture-prefix", 1),
        ("score-old", 1),
        ("grpo-0", 1),
        ("grpo-1", 1),
        ("prefix-backward", 1),
        ("finalize", 1),
        ("finalize", 0),
        ("optimizer-step", 1),
        ("checkpoint", 1),
        ("checkpoint", 0),
    ],
)
def test_a_rank_that_is_killed_leaves_the_old_weights_and_a_failed_receipt(
    tmp_path: Path, tiny_deployment: Callable[..., Path], phase: str, rank: int
) -> None:
    deployment, root = tiny_deployment(tmp_path / "given"), tmp_path / "out"
    code, report = run(deployment, root, "DyingUpdate", DIES_IN_PHASE=phase, DIES_ON_RANK=str(rank))
    assert [fault["id"] for fault in report["findings"]] == ["rank.died"], report
    assert (code, report["findings"][0]["stage"]) == (5, phase)
    assert f"rank {rank}" in report["findings"][0]["actual"]
    check_left(root, phase, "rank.died")
    left = digests(root)
    assert ("artifacts/adapter-before/adapter_model.safetensors" in left) == (
        phase not in ("bind", "initialize", "materialize")
    )
    assert ("artifacts/scores.json" in left) == (phase in ("optimizer-step", "checkpoint"))
    ledger = read(root / "ownership.jsonl")
    assert ledger.closed
    assert not ledger.owned
    assert not marked(ledger.execution_id)


def test_a_bit_that_flips_in_a_resident_page_is_placed_by_chunk_layer_and_rank(
    tmp_path: Path, tiny_deployment: Callable[..., Path]
) -> None:
    """The witness of the pages cannot see it; the gradient would be of another function than what was scored."""
    deployment, root = tiny_deployment(tmp_path / "given"), tmp_path / "out"
    code, report = run(deployment, root, "FlippedUpdate")
    assert (code, [fault["id"] for fault in report["findings"]]) == (1, ["rank.failed"]), report
    words = check_left(root, "prefix-backward", "rank.failed").finding.words
    assert re.search(r"chunk 0 layer [0-9]+: recomputed rows differ .* on rank 1", words)


def test_a_rank_whose_replica_is_another_after_the_step_is_named_and_the_run_refused(
    tmp_path: Path, tiny_deployment: Callable[..., Path]
) -> None:
    """What is written is rank 0's: without the other ranks' own digests nobody would ever see it."""
    deployment, root = tiny_deployment(tmp_path / "given"), tmp_path / "out"
    code, report = run(deployment, root, "StrayingUpdate")
    assert (code, [fault["id"] for fault in report["findings"]]) == (1, ["rank.disagrees"]), report
    found = report["findings"][0]
    assert (found["stage"], found["pointer"]) == ("checkpoint", "adapter_sha256")
    assert found["actual"].startswith("rank 1: ")
    check_left(root, "checkpoint", "rank.disagrees")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that a test may fill."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@dataclass(frozen=True, slots=True)
class FailingDisk:
    """A file system on a device of its own, which turns read-only at an error of the disk, whoever writes to it."""

    image: Path
    place: Path

    def mount(self) -> subprocess.CompletedProcess[str]:
        command = ["mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.place)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.place)], check=True)


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[FailingDisk]:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4 here, which e2fsprogs has")
    disk = FailingDisk(tmp_path / "image", tmp_path / "failing")
    disk.place.mkdir()
    with disk.image.open("wb") as image:
        image.truncate(400 << 20)
    # Without a journal of its own: with one it could not be mounted again without a repair.
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(disk.image)], check=True)
    mounted = disk.mount()
    if mounted.returncode:
        pytest.skip(f"an image cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    disk.unmount()


@pytest.mark.parametrize(
    "room",
    [
        pytest.param(0, id="nothing"),
        pytest.param(2, id="adapter-and-half-of-the-moments"),
        pytest.param(3.3, id="adapter-and-moments"),
        pytest.param(4.5, id="half-of-the-checkpoint"),
    ],
)
def test_a_full_disk_at_the_checkpoint_leaves_the_old_weights_and_a_failed_receipt(
    tmp_path: Path, disk: Path, tiny_deployment: Callable[..., Path], room: float
) -> None:
    """Room is in adapters: of this one the moments are two, and the checkpoint is three."""
    deployment, root = tiny_deployment(tmp_path / "given"), disk / "out"
    code, report = run(
        deployment, root, "FillingUpdate", DISK_FILLER=str(disk / "filler"), DISK_ADAPTERS_LEFT=str(room)
    )
    assert code == 5, report
    assert report["findings"][0]["id"] == ("tool.io" if room == 0 else "rank.resource"), report
    if room == 0:
        # Not even the journal can be written, nor a receipt of any kind; but nothing half-written is there.
        assert not list(half_written(root))
        for name in ("receipt.json", "adapter", "checkpoint", "attestations"):
            assert not (root / name).exists(), name
    else:
        assert "rank 0" in report["findings"][0]["actual"]
        check_left(root, "checkpoint", "rank.resource")


@pytest.mark.parametrize("phase", ["materialize", "finalize", "checkpoint"])
def test_a_disk_that_turns_read_only_leaves_the_old_weights_and_a_journal_that_cleanup_closes(
    tmp_path: Path, failing: FailingDisk, tiny_deployment: Callable[..., Path], phase: str
) -> None:
    """Not even the journal takes a line then, so what is absent is said by cleanup, once the disk is back."""
    deployment, root = tiny_deployment(tmp_path / "given"), failing.place / "out"
    given = {"DIES_IN_PHASE": phase, "DISK_MOUNTED_AT": str(failing.place)}
    code, report = run(deployment, root, "ReadOnlyUpdate", **given)
    failing.unmount()
    assert failing.mount().returncode == 0
    assert code == 5, report
    assert [fault["id"] for fault in report["findings"]] == ["tool.io"], report
    assert "ead-only" in report["findings"][0]["actual"], report
    for name in ("receipt.json", "failed-receipt.json", "adapter", "checkpoint", "attestations"):
        assert not (root / name).exists(), name
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mint2m", "cleanup", "--format", "json"),
            *("--plan", str(root / "plan.json"), "--ownership", str(root / "ownership.jsonl")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    ledger = read(root / "ownership.jsonl")
    assert ledger.closed
    assert not ledger.owned
    assert not marked(ledger.execution_id)
    assert not list(half_written(root))
