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


def whole(site: Site, root: Path) -> None:
    done = subprocess.run(command(site, "--output", str(root)), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def killed(site: Site, root: Path, *, when: Callable[[], bool]) -> None:
    """Start it, and kill its process where `when` holds."""
    with subprocess.Popen(command(site, "--output", str(root)), stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not when():
            assert process.poll() is None and time.monotonic() < deadline, "it ended before it could be killed"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_training_killed_while_it_draws_and_while_it_trains_ends_with_the_same_weights(tmp_path: Path) -> None:
    site = build_site(tmp_path / "site")
    whole(site, tmp_path / "whole")
    right = (tmp_path / "whole" / WEIGHTS).read_bytes()
    moments = {
        # Before the first draws are written, amid the first update, and between two steps.
        "drawing": lambda root: (root / places.PLAN).exists(),
        "training": lambda root: (root / places.run_folder(0) / "artifacts/adapter-before").is_dir(),
        "between": lambda root: (root / places.run_folder(0) / "attestations/seal.sigstore.json").exists(),
    }
    for name, moment in moments.items():
        root = tmp_path / name
        killed(site, root, when=lambda moment=moment, root=root: moment(root))  # type: ignore[misc]
        unfinished = verify_training(root, read_key(site.public_key), VerifyOptions())
        assert unfinished.verdict is not Verdict.ACCEPTED
        done = subprocess.run(command(site, "--resume", str(root)), capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (root / WEIGHTS).read_bytes() == right, name
        if name == "training":
            assert [path.name for path in (root / "abandoned").iterdir()] == ["0000-0"]
    again = subprocess.run(command(site, "--resume", str(tmp_path / "whole")), capture_output=True, text=True)
    assert again.returncode == 0  # a finished training is verified and left as it is
    assert (tmp_path / "whole" / WEIGHTS).read_bytes() == right
