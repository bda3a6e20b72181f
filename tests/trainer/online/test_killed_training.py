"""A training that is killed and resumed against one that never was: the same weights, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_verify.anchor import VerifyOptions, read_key
from mint2m_verify.finding import Verdict
from mint2m_verify.training import places
from mint2m_verify.training.verify import verify_training

sys.path.insert(0, str(Path(__file__).parents[2] / "vectors"))
from maker.training_site import Site, build_site

STEPS = 2
WEIGHTS = f"{places.run_folder(STEPS - 1)}/adapter/adapter_model.safetensors"

#: Seconds that one command may take on a machine that does much else.
PATIENCE_S = 900


def command(site: Site, *where: str) -> list[str]:
    words = ["online", "--deployment", str(site.deployment), "--steps", str(STEPS), *where]
    return [sys.executable, "-m", "mint2m", *words]


def run(words: list[str]) -> None:
    """Do it, to the end; it must be accepted."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def killed(words: list[str], *, when: Callable[[], bool]) -> None:
    """Start it, and kill its process where `when` holds."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not when():
            assert process.poll() is None and time.monotonic() < deadline, "it ended before it could be killed"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_step_of_two_prompts_killed_in_each_of_its_runs_ends_with_the_same_weights(tmp_path: Path) -> None:
    site = build_site(tmp_path / "site", prompts=2)
    once = [*command(site), "--steps", "1"]  # the last one counts
    run([*once, "--output", str(tmp_path / "whole")])
    root, weights = tmp_path / "killed", "adapter/adapter_model.safetensors"
    first, last = (root / places.prompt_folder(0, index, 2) for index in range(2))
    moments: list[tuple[str, Callable[[], bool]]] = [
        ("amid its first run", (first / "artifacts/adapter-before").is_dir),
        ("when its first run was sealed", (first / "attestations/seal.sigstore.json").exists),
        ("amid its last run", (last / "artifacts/adapter-before").is_dir),
    ]
    for number, (name, moment) in enumerate(moments):
        killed([*once, "--resume" if number else "--output", str(root)], when=moment)
        report = verify_training(root, read_key(site.public_key), VerifyOptions())
        assert report.verdict is Verdict.INCOMPLETE, (name, report.findings)
    sealed = (first / "attestations/seal.sigstore.json").read_bytes()
    run([*once, "--resume", str(root)])
    assert (last / weights).read_bytes() == (tmp_path / "whole" / places.run_folder(0) / weights).read_bytes()
    assert (first / "attestations/seal.sigstore.json").read_bytes() == sealed  # what was finished is not made again


@pytest.mark.slow
def test_a_training_killed_again_and_again_ends_with_the_weights_of_one_that_never_was(tmp_path: Path) -> None:
    site = build_site(tmp_path / "site", moments="carried", checkpoints_kept=1)
    run(command(site, "--output", str(tmp_path / "whole")))
    right = (tmp_path / "whole" / WEIGHTS).read_bytes()
    root = tmp_path / "killed"
    first, second = (root / places.run_folder(step) for step in range(STEPS))
    moments: list[tuple[str, Callable[[], bool]]] = [
        ("before its first draws are written", (root / places.PLAN).exists),
        ("amid its first update", (first / "artifacts/adapter-before").is_dir),
        ("when its first step was sealed", (first / "attestations/seal.sigstore.json").exists),
        ("amid its second update", (second / "artifacts/adapter-before").is_dir),
    ]
    for number, (name, moment) in enumerate(moments):
        killed(command(site, "--resume" if number else "--output", str(root)), when=moment)
        report = verify_training(root, read_key(site.public_key), VerifyOptions())
        assert report.verdict is Verdict.INCOMPLETE, (name, report.findings)
    (root / "abandoned/0000-checkpoint").mkdir()  # as if it had been killed while it let go of that one
    run(command(site, "--resume", str(root)))
    assert (root / WEIGHTS).read_bytes() == right
    assert not (first / "checkpoint").exists() and (second / "checkpoint/common.pt").exists()
    assert sorted(path.name for path in (root / "abandoned").iterdir()) == ["0000-0", "0001-0"]
    run(command(site, "--resume", str(root)))  # a finished training is verified and left as it is
    assert (root / WEIGHTS).read_bytes() == right
