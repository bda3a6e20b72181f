"""One way out: every ending of the command line has the right exit code, words on stdout, and no traceback."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

from mint2m import __main__ as command_line
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
