"""The CI action's own steps, run as a runner runs them: shell, environment, outputs, exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import junitparser
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
ACTION = ROOT / ".github" / "actions" / "verify" / "action.yml"
VECTORS = ROOT / "tests" / "vectors"


@pytest.fixture(scope="module")
def action() -> dict:
    return yaml.safe_load(ACTION.read_text(encoding="utf-8"))


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """What a runner gives to a step; the verifier that the tests run with stands where the first step installs one."""
    programs = tmp_path / "temp" / "mint2m-verify" / "bin"
    programs.mkdir(parents=True)
    (programs / "mint2m").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mint2m "$@"\n')
    (programs / "mint2m").chmod(0o755)
    return {
        **os.environ,
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_ACTION_PATH": str(ACTION.parent),
    }


def step(action: dict, name: str) -> dict:
    return next(step for step in action["runs"]["steps"] if step["name"] == name)


def run(action: dict, runner: dict[str, str], place: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The second step with these inputs; its environment is filled in as the runner does."""
    wanted = step(action, "Verify")
    given = {name: spec.get("default", "") for name, spec in action["inputs"].items()} | inputs
    environment = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda match: given[match[1]], value)
        for name, value in wanted["env"].items()
    }
    # GitHub's own words for `shell: bash`.
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", wanted["run"]],
        cwd=place,
        env=runner | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    shutil.copytree(VECTORS / "bases" / "run", place / "run")
    return place


def key() -> str:
    return str(VECTORS / "test-only-keys" / "release.pub")


def outputs(runner: dict[str, str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in Path(runner["GITHUB_OUTPUT"]).read_text().splitlines())


def test_accepted_evidence_passes_the_job_and_leaves_every_report(
    action: dict, runner: dict[str, str], evidence: Path
) -> None:
    done = run(action, runner, evidence, kind="run", path="run", key=key())
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(runner) == {"verdict": "accepted", "exit-code": "0"}
    assert done.stdout.startswith("::notice ")
    assert Path(runner["GITHUB_STEP_SUMMARY"]).read_text().startswith("## ACCEPTED: `run`")
    reports = evidence / "mint2m-report"
    assert sorted(path.suffix for path in reports.iterdir()) == [".html", ".json", ".md", ".sarif", ".xml"]


def test_one_flipped_byte_fails_the_job_and_every_report_names_the_same_first_cause(
    action: dict, runner: dict[str, str], evidence: Path
) -> None:
    file = next((evidence / "run" / "checkpoint").glob("*.distcp"))
    raw = bytearray(file.read_bytes())
    raw[10] ^= 1
    file.write_bytes(raw)
    done = run(action, runner, evidence, kind="run", path="run", key=key())
    assert done.returncode == 1
    assert outputs(runner) == {"verdict": "failed", "exit-code": "1"}
    reports = evidence / "mint2m-report"
    sarif = json.loads((reports / "report.sarif").read_text())["runs"][0]["results"][0]
    causes = [
        case.result[0].type
        for suite in junitparser.JUnitXml.fromfile(reports / "report.xml")
        for case in suite
        if case.result
    ]
    firsts = {
        "github": re.findall(r"title=([a-z.-]+)::", done.stdout)[0],
        "json": json.loads((reports / "report.json").read_text())["findings"][0]["id"],
        "sarif": sarif["ruleId"],
        "junit": next(cause for cause in causes if cause != "requirement"),
        "markdown": re.findall(r"\*\*`([a-z.-]+)`\*\*", (reports / "report.md").read_text())[0],
        "html": re.findall(r"<h3><code>([a-z.-]+)</code>", (reports / "report.html").read_text())[0],
    }
    assert set(firsts.values()) == {"tree.file-changed"}, firsts
    assert file.name in sarif["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]


@pytest.mark.parametrize("path", ["$(touch hacked)", "`touch hacked`", "run; touch hacked", "--help"])
def test_an_input_is_never_a_command(action: dict, runner: dict[str, str], evidence: Path, path: str) -> None:
    done = run(action, runner, evidence, kind="run", path=path, key=key())
    assert done.returncode == 2
    assert outputs(runner) == {"verdict": "blocked", "exit-code": "2"}
    assert not (evidence / "hacked").exists()


def test_no_anchor_and_no_evidence_fail_the_job(action: dict, runner: dict[str, str], evidence: Path) -> None:
    assert run(action, runner, evidence, kind="run", path="run").returncode == 4
    assert run(action, runner, evidence, kind="run", path="nowhere", key=key()).returncode == 2


def test_no_script_of_the_action_has_an_input_pasted_into_it(action: dict) -> None:
    for wanted in action["runs"]["steps"]:
        assert "${{" not in wanted["run"]


@pytest.mark.slow
def test_the_first_step_installs_a_verifier_without_torch(action: dict, runner: dict[str, str], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "temp" / "mint2m-verify")
    script = step(action, "Install the verifier")["run"]
    environment = runner | {"MINT2M_PACKAGE": ""}
    subprocess.run(["bash", "-eo", "pipefail", "-c", script], env=environment, timeout=600, check=True)
    program = tmp_path / "temp" / "mint2m-verify" / "bin"
    done = subprocess.run([program / "mint2m", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mint2m ")
    assert subprocess.run([program / "python", "-c", "import torch"], capture_output=True, check=False).returncode != 0
