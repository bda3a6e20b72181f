"""The commands as a user meets them: a process, its stdout and its exit code."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    place = Path(__file__).parents[1] / "verify/build_run.py"
    name = "mint2m_test_build_run"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def run(tmp_path: Path, builder: ModuleType) -> Path:
    builder.build_run(tmp_path / "run")
    return tmp_path / "run"


def test_a_right_run_is_accepted_with_exit_0(mint2m: Command, run: Path) -> None:
    done = mint2m("verify", "run", run, "--key", f"{run}.pub")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"ACCEPTED  {run}  signed by managed key ")


def test_json_is_printed_on_failure_too_and_carries_the_exit_code(mint2m: Command, run: Path) -> None:
    (run / "checkpoint/__0_0.distcp").write_bytes(b"other")
    done = mint2m("verify", "run", run, "--key", f"{run}.pub", "--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit_code"], report["verdict"]) == (1, 1, "failed")
    assert report["findings"][0]["id"] == "tree.file-changed"


def test_the_report_is_the_same_each_time(mint2m: Command, run: Path) -> None:
    command = ("verify", "run", run, "--key", f"{run}.pub", "--at", "2026-01-31T12:00:00Z", "--format", "json")
    first, second = mint2m(*command), mint2m(*command)
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["evaluated_at"] == "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("arguments", "code", "finding"),
    [
        (("verify", "run", "{run}"), 4, "trust.no-anchor"),
        (("verify", "run", "{run}", "--key", "{run}/none.pub"), 2, "input.missing"),
        (("verify", "run", "{run}", "--key", "{run}.pub", "--digest", "1" * 64), 2, "usage.invalid"),
        (("verify", "run", "{run}", "--digest", "XYZ"), 2, "usage.invalid"),
        (("verify", "run", "{run}", "--digest", ""), 2, "usage.invalid"),
        (("verify", "run", "{run}", "--digest", "1" * 64), 4, "trust.digest-mismatch"),
        (("verify", "run", "{run}", "--key", "{run}.pub", "--at", "today"), 2, "usage.invalid"),
        (("verify", "run", "{run}", "--key", "{run}.pub", "--expect-plan", "1"), 2, "usage.invalid"),
        (("verify", "run", "{run}", "--key", "{run}.pub", "--expect-plan", "1" * 64), 3, "trust.expectation-mismatch"),
        (("verify", "run", "{run}/none", "--consistency-only"), 2, "input.missing"),
        (("verify", "run", "{run}/plan.json", "--consistency-only"), 2, "input.not-a-directory"),
        (("verify", "run", "{run}", "--key", "{run}/plan.json"), 2, "key.malformed"),
        (("verify", "receipt", "{run}/none.json", "--consistency-only"), 2, "input.missing"),
        (("verify", "receipt", "{run}/receipt.json"), 4, "trust.no-anchor"),
        (("verify", "checkpoint", "{run}/checkpoint"), 4, "trust.no-anchor"),
        (("verify", "manifest", "{run}/none.json", "--root", "{run}", "--consistency-only"), 2, "input.missing"),
        (("verify", "manifest", "{run}/inputs/model-manifest.json"), 2, "usage.invalid"),
        (("verify", "run"), 2, "usage.invalid"),
        (("explain", "no.such"), 2, "explain.unknown"),
        (("keys", "new", "{run}"), 2, "file.exists"),
        (("sign", "tree", "{run}", "--key", "{run}.pub"), 2, "key.malformed"),
    ],
)
def test_what_is_wrong_has_its_finding_and_exit_code_and_no_traceback(
    mint2m: Command, run: Path, arguments: tuple[str, ...], code: int, finding: str
) -> None:
    words = [argument.format(run=run) for argument in arguments]
    done = mint2m(*words, *(("--format", "json") if words[0] == "verify" else ()))
    assert done.returncode == code
    assert finding in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_an_escape_in_a_file_name_reaches_no_terminal(mint2m: Command, run: Path) -> None:
    (run / "adapter/\x1b]0;owned\x07\u202e").write_bytes(b"")
    for form in ("text", "json"):
        done = mint2m("verify", "run", run, "--key", f"{run}.pub", "--format", form)
        assert done.returncode == 1
        assert "\x1b" not in done.stdout and "\u202e" not in done.stdout and "\x07" not in done.stdout
    assert json.loads(done.stdout)["findings"][0]["file"] == "adapter/\x1b]0;owned\x07\u202e"


def test_a_name_that_is_no_utf8_is_reported(mint2m: Command, run: Path) -> None:
    os.close(os.open(os.fsencode(run) + b"/adapter/\xff", os.O_CREAT | os.O_WRONLY))
    done = mint2m("verify", "run", run, "--key", f"{run}.pub")
    assert done.returncode == 1
    assert "tree.name-invalid" in done.stdout


def test_verification_writes_nothing(mint2m: Command, run: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in run.parent.rglob("*"))
    mint2m("verify", "run", run, "--key", f"{run}.pub", cwd=run)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.parent.rglob("*")) == before


def test_keys_are_made_shown_and_sign(mint2m: Command, run: Path, tmp_path: Path) -> None:
    (run / "attestations/seal.sigstore.json").unlink()
    assert mint2m("keys", "new", tmp_path / "release").returncode == 0
    shown = mint2m("keys", "show", tmp_path / "release.pub")
    assert mint2m("keys", "show", tmp_path / "release.key").stdout.split()[1] == shown.stdout.split()[1]
    signed = mint2m("sign", "tree", run, "--key", tmp_path / "release.key")
    assert signed.returncode == 0
    assert mint2m("verify", "run", run, "--key", tmp_path / "release.pub").returncode == 0
    again = mint2m("sign", "tree", run, "--key", tmp_path / "release.key")
    assert (again.returncode, "file.exists" in again.stdout) == (2, True)


def test_a_run_with_a_fault_is_not_signed(mint2m: Command, run: Path, tmp_path: Path) -> None:
    (run / "attestations/seal.sigstore.json").unlink()
    (run / "checkpoint/__0_0.distcp").write_bytes(b"other")
    mint2m("keys", "new", tmp_path / "release")
    done = mint2m("sign", "tree", run, "--key", tmp_path / "release.key")
    assert (done.returncode, "tree.file-changed" in done.stdout) == (1, True)
    assert not (run / "attestations/seal.sigstore.json").exists()


def test_explain_has_a_page_for_each_finding(mint2m: Command) -> None:
    listed = mint2m("explain", "--list").stdout.splitlines()
    assert any(line.startswith("tree.file-changed ") for line in listed)
    page = mint2m("explain", "tree.file-changed")
    assert page.returncode == 0
    assert page.stdout.startswith("tree.file-changed   ")


def test_verification_opens_no_socket(run: Path) -> None:
    """An audit hook ends the process at the first socket, name look-up or child process."""
    code = f"""
import sys
def hook(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system")):
        raise SystemExit(f"event {{event}}")
sys.addaudithook(hook)
from mint2m.__main__ import main
main(["verify", "run", {str(run)!r}, "--key", {f"{run}.pub"!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
