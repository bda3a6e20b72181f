"""One way out: every ending of the command line has the right exit code, words on stdout, and no traceback."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from mint2m import __main__ as command_line
from mint2m.app import COMMANDS, build
from mint2m_verify import schema

HEAVY = {"torch", "ray", "megatron", "sigstore", "numpy", "jsonschema", "cryptography"}


def _imported(*arguments: str) -> set[str]:
    """Top-level modules that a command line has loaded when it ends."""
    code = (
        "import sys, json\n"
        "from mint2m.__main__ import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_each_summary_of_the_help_begins_the_help_of_its_command() -> None:
    root = build()
    for command in COMMANDS:
        built = root.get_command(click.Context(root), command.name)
        assert built is not None and built.help is not None
        assert built.help.startswith(command.summary.rstrip(".")), command.name


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("verify", "--help"), ("run", "--help")])
def test_help_and_version_import_no_heavy_package(arguments: tuple[str, ...]) -> None:
    assert not _imported(*arguments) & HEAVY


def test_a_mistyped_command_names_the_near_one_and_exits_2(mint2m) -> None:
    done = mint2m("verifi", "run", "out")
    assert done.returncode == 2
    assert 'No command "verifi". Did you mean "verify"?' in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "run"),
        ("schema", "show"),
        ("schema", "check", "--format", "yaml", "x"),
        ("run", "--no-such-option"),
        ("plan",),
    ],
)
def test_wrong_usage_exits_2_without_a_traceback(mint2m, arguments: tuple[str, ...]) -> None:
    done = mint2m(*arguments)
    assert done.returncode == 2
    assert "usage.invalid" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_usage_errors_are_reports_in_json_too(mint2m) -> None:
    done = mint2m("verify", "run", "--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit_code"], report["verdict"]) == (2, 2, "blocked")
    assert schema.check(report, "report", file="stdout") == ()


def test_a_bug_is_exit_70_and_never_a_verdict_on_evidence(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("mint2m_verify.schema.check_file", broken)
    with pytest.raises(SystemExit) as left:
        command_line.main(["schema", "check", "x"])
    shown = capsys.readouterr()
    assert left.value.code == 70
    assert "tool.internal" in shown.out
    assert "Traceback" not in shown.out + shown.err

    with pytest.raises(SystemExit):
        command_line.main(["schema", "check", "x", "--debug"])
    assert "ZeroDivisionError: a bug" in capsys.readouterr().err


def test_an_operating_system_refusal_is_exit_5(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "evidence.json")

    monkeypatch.setattr("mint2m_verify.schema.check_file", refused)
    with pytest.raises(SystemExit) as left:
        command_line.main(["schema", "check", "x"])
    assert left.value.code == 5
    assert "evidence.json" in capsys.readouterr().out


def test_a_reader_that_leaves_early_changes_neither_code_nor_quiet() -> None:
    script = f"{sys.executable} -m mint2m schema show plan; echo $? >&2"
    done = subprocess.run(["bash", "-c", f"({script}) | head -c 10"], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "0"


def test_a_printed_manifest_has_the_digest_that_the_written_one_has(mint2m, tmp_path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes(b"{}")
    printed = mint2m("model", "manifest", tmp_path / "model").stdout.encode()
    written = mint2m("model", "manifest", tmp_path / "model", "--output", tmp_path / "manifest.json")
    assert hashlib.sha256(printed).hexdigest() in written.stdout
    assert printed == (tmp_path / "manifest.json").read_bytes()


@pytest.mark.parametrize(("where", "code"), [(">&-", "0"), ("2>&-", "0"), (">/dev/full", "5"), ("<&- >&- 2>&-", "0")])
def test_a_report_that_cannot_be_written_is_no_acceptance_and_no_traceback(tmp_path, where: str, code: str) -> None:
    errors = tmp_path / "errors"
    script = f"exec 3>&2; {{ {sys.executable} -m mint2m schema show plan {where}; echo $? >&3; }} 2>{errors}"
    done = subprocess.run(
        ["bash", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.stderr.strip() == code
    assert "Traceback" not in errors.read_text()


def test_a_closed_stdout_is_no_file_that_the_command_writes(tmp_path) -> None:
    """Number 1 would otherwise be the manifest, and every print of a library would go into it."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes(b"{}")
    command = [sys.executable, "-m", "mint2m", "model", "manifest", str(tmp_path / "model"), "--output"]
    subprocess.run([*command, str(tmp_path / "open.json")], stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["bash", "-c", '"$@" >&-', "bash", *command, str(tmp_path / "shut.json")], check=True)
    assert (tmp_path / "shut.json").read_bytes() == (tmp_path / "open.json").read_bytes()


def test_a_terminal_that_knows_ascii_only_gets_every_report(tmp_path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "mint2m", "verify", "run", str(tmp_path / "h\u00f6llisch")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "h\\xf6llisch" in done.stdout
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so_at_once_and_leaves_nothing_half_written(tmp_path, number: int) -> None:
    (tmp_path / "model").mkdir()
    with (tmp_path / "model" / "large").open("wb") as large:
        large.truncate(20 << 30)  # hashing it takes longer than this test
    command = [sys.executable, "-m", "mint2m", "model", "manifest", str(tmp_path / "model"), "--output"]
    asked = subprocess.Popen(
        [*command, str(tmp_path / "manifest.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not any(
        "large" in str(link.readlink()) for link in Path(f"/proc/{asked.pid}/fd").iterdir() if link.is_symlink()
    ):
        time.sleep(0.05)
    asked.send_signal(number)
    out, err = asked.communicate(timeout=30)
    assert "usage.interrupted" in out
    assert (asked.returncode, err) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("raised", "id", "code"),
    [
        (KeyboardInterrupt(), "usage.interrupted", 2),
        (BrokenPipeError(32, "Broken pipe"), "tool.io", 5),
        (MemoryError(), "tool.io", 5),
        (SystemExit(0), "usage.interrupted", 2),
    ],
)
def test_a_verification_that_did_not_end_is_never_exit_0(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, id: str, code: int
) -> None:
    """typer turns an interrupt into a return value, which is no outcome."""

    def stopped(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("mint2m_verify.run.verify_run", stopped)
    outcome = command_line.run(["verify", "run", "x", "--consistency-only"])
    assert id in outcome.text
    assert outcome.verdict == code


def test_a_command_without_an_outcome_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mint2m.verify_options.present", lambda *_: None)
    monkeypatch.setattr("mint2m_verify.run.verify_run", lambda *_: None)
    outcome = command_line.run(["verify", "run", "x", "--consistency-only"])
    assert outcome.verdict == 70


@pytest.mark.parametrize("group", [(), ("keys",), ("sign",)])
def test_a_group_without_a_command_shows_its_help_as_lines(mint2m, group: tuple[str, ...]) -> None:
    done = mint2m(*group)
    assert done.returncode == 2
    assert done.stdout.splitlines()[0].startswith("Usage: mint2m")
    assert "Commands:" in done.stdout.splitlines()


@pytest.mark.parametrize(
    "words", [("schema", "show", "plam"), ("fixture", "check", "nowhere.json"), ("schema", "check", "no")]
)
def test_a_name_that_the_caller_got_wrong_blocks_and_fails_no_evidence(mint2m, words: tuple[str, ...]) -> None:
    done = mint2m(*words)
    assert done.returncode == 2
    assert words[-1] in done.stdout


def test_sides_that_are_not_there_block_a_comparison(mint2m, tmp_path) -> None:
    done = mint2m("parity", "compare", tmp_path, tmp_path / "nowhere")
    assert done.returncode == 2
    assert "input.missing" in done.stdout


def test_a_missing_option_is_told_on_one_line(mint2m) -> None:
    done = mint2m("doctor")
    assert done.returncode == 2
    assert "Missing option '--scope'. Choose from: checkout, run, validation" in done.stdout


@pytest.mark.parametrize(
    ("words", "at", "offered"),
    [
        ("mint2m ver", 1, {"verify"}),
        ("mint2m verify r", 2, {"run", "receipt"}),
        ("mint2m verify run --expect-p", 3, {"--expect-plan"}),
        ("mint2m verify run --format j", 4, {"json", "junit"}),
    ],
)
def test_a_shell_is_offered_the_words_that_fit(mint2m, words: str, at: int, offered: set[str]) -> None:
    environment = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(at), "_MINT2M_COMPLETE": "bash_complete"}
    done = mint2m(env=environment)
    assert {line.removeprefix("plain,") for line in done.stdout.splitlines()} == offered


def test_the_completion_script_is_one_that_bash_takes(mint2m) -> None:
    script = mint2m("completion", "bash").stdout
    done = subprocess.run(["bash", "-c", f"{script}\ncomplete -p mint2m"], capture_output=True, text=True, check=True)
    assert "_mint2m_completion mint2m" in done.stdout
