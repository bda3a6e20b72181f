"""What the install without extras gives: verification, planning and examination, with no torch to import."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "ray", "megatron")

VECTORS = Path(__file__).resolve().parents[1] / "vectors"


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mint2m", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(os.environ.get("MINT2M_LIGHT") != "1", reason="only in the environment of `nox -s light`")
def test_this_environment_has_no_training_package_and_the_project_is_installed_not_borrowed() -> None:
    assert [name for name in HEAVY if importlib.util.find_spec(name)] == []
    spec = importlib.util.find_spec("mint2m_verify")
    assert spec is not None
    assert "site-packages" in str(spec.origin)


def test_no_module_of_the_verifier_brings_what_stands_above_it_or_is_heavy() -> None:
    code = (
        "import importlib, json, pkgutil, sys, mint2m_verify\n"
        "for module in pkgutil.walk_packages(mint2m_verify.__path__, 'mint2m_verify.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(done.stdout)) & {*HEAVY, "mint2m", "mint2m_trainer"}


def test_a_real_run_is_verified() -> None:
    key = VECTORS / "test-only-keys" / "release.pub"
    done = _run("verify", "run", VECTORS / "bases" / "run", "--key", key)
    assert (done.returncode, done.stdout.split()[0]) == (0, "ACCEPTED"), done.stdout


def test_a_deployment_is_examined_and_planned_without_the_trainer(tmp_path: Path) -> None:
    # The packages are missing here, and doctor must say so; planning needs none of them.
    inputs = tmp_path / "inputs"
    shutil.copytree(VECTORS / "bases" / "run" / "inputs", inputs)
    deployment = json.loads((inputs / "deployment.json").read_bytes())
    deployment["model"]["snapshot"] = "model"
    deployment["fixture"]["path"] = "fixture.json"
    deployment["profile"] = None
    (inputs / "deployment.json").write_text(json.dumps(deployment))
    profile = ("--profile", inputs / "profile.json")

    examined = _run(
        "doctor", "--scope", "run", "--deployment", inputs / "deployment.json", *profile, "--format", "json"
    )
    document = json.loads(examined.stdout)
    assert document["schema"] == "mint2m.doctor/v1"
    if importlib.util.find_spec("torch") is None:
        assert (examined.returncode, document["status"]) == (2, "blocked")
        assert document["primary_failure"] is not None

    names = ("--run-id", "light", "--instance-nonce", "n", "--output", tmp_path / "plan.json")
    planned = _run("plan", "--deployment", inputs / "deployment.json", *profile, *names)
    assert planned.returncode == 0, planned.stdout
    plan = json.loads((tmp_path / "plan.json").read_bytes())
    assert plan["inputs"]["fixture"]["sha256"] == deployment["fixture"]["sha256"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="the trainer extra is installed here")
@pytest.mark.parametrize("arguments", [("run", "--deployment", "local"), ("parity", "export", "--help")])
def test_training_commands_name_the_extra_that_they_need(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mint2m", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    if "--help" in arguments:
        assert done.returncode == 0
    else:
        assert done.returncode == 2
        assert "mint2m[trainer]" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
