"""SARIF reports before Microsoft's own validator, with its rules for GitHub's code scanning.

Needs Node, npm and npm's registry; the package is a hundred megabytes, so the test is slow. A report with one member
broken must be refused, or the validator was not looking.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from mint2m_verify.finding import Finding, Report, Requirement, Standing, Verdict
from mint2m_verify.render import render

PACKAGE = "@microsoft/sarif-multitool@5.7.0"
HOSTILE = "<img src=x>\x1b[2K\u202e/..//a b%20?#`|\n::error::"


@pytest.fixture(scope="module")
def multitool(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("Node is not installed: apt-get install nodejs npm")
    place = tmp_path_factory.mktemp("sarif")
    words = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(place), PACKAGE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0 and any(word in done.stderr for word in ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT")):
        pytest.skip("npm's registry is not reachable")
    assert done.returncode == 0, done.stderr
    program = place / "node_modules/@microsoft/sarif-multitool-linux/Sarif.Multitool"
    program.chmod(0o755)
    return [str(program), "validate", "--rule-kind", "Sarif;Ghas"]


def complaints(multitool: list[str], file: Path) -> list[str]:
    """Errors that the validator tells; notes and warnings of taste are left out."""
    done = subprocess.run([*multitool, str(file)], capture_output=True, text=True, timeout=120, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    assert any("files scanned" in line for line in lines), lines
    return [line for line in lines if ": error " in line]


def report(text: str) -> Report:
    root = Finding(
        id="tree.file-changed",
        verdict=Verdict.FAILED,
        message="m",
        stage=text,
        file=text,
        pointer=text,
        byte_range=(0, 5),
        expected=text,
        actual=text,
        hint=text,
    )
    follow = Finding(id="receipt.checkpoint-root-mismatch", verdict=Verdict.FAILED, message="m", cause=root)
    row = Requirement(required=text, found=text, standing=Standing.FAILED)
    return Report(subject=text, command="verify run", requirements=(row,), findings=(root, follow), summary=text)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["name", HOSTILE], ids=["plain", "hostile"])
def test_a_refused_report_is_valid_sarif_within_the_limits_of_code_scanning(
    multitool: list[str], tmp_path: Path, text: str
) -> None:
    file = tmp_path / "report.sarif"
    file.write_text(render(report(text), "sarif"))
    assert complaints(multitool, file) == []
    broken = json.loads(file.read_text())
    broken["runs"][0]["results"][0]["ruleIndex"] = 99
    del broken["runs"][0]["results"][0]["message"]
    file.write_text(json.dumps(broken))
    assert complaints(multitool, file) != []


@pytest.mark.slow
def test_an_accepted_report_is_valid_too(multitool: list[str], tmp_path: Path) -> None:
    row = Requirement(required="signature", found="yes", standing=Standing.CHECKED)
    file = tmp_path / "report.sarif"
    file.write_text(render(Report(subject="out", command="verify run", requirements=(row,)), "sarif"))
    assert complaints(multitool, file) == []
