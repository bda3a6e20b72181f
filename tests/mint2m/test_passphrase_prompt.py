"""Passphrases typed by a person: a terminal of their own, nothing shown of what is typed."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

SECRET = "correct horse battery"


def typed(directory: Path, answers: list[str], *arguments: object) -> tuple[int, str]:
    """Exit code and everything that the terminal showed; each answer is typed at the next prompt."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(directory)
        os.execv(sys.executable, [sys.executable, "-m", "mint2m", *map(str, arguments)])
    shown, waiting, deadline = b"", list(answers), time.monotonic() + 120
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 1)
        if not ready:
            continue
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the process closed its end
            break
        if waiting and shown.endswith((b":", b": ")):
            os.write(terminal, waiting.pop(0).encode())
    else:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    assert waiting == [], shown
    return os.waitstatus_to_exitcode(status), shown.decode()


def test_a_key_is_made_and_used_with_a_typed_passphrase(tmp_path: Path) -> None:
    line = f"{SECRET}\n"
    code, shown = typed(tmp_path, [line, line], "keys", "new", "k", "--passphrase")
    assert code == 0 and "new passphrase:" in shown and SECRET not in shown
    assert "ENCRYPTED" in (tmp_path / "k.key").read_text()
    (tmp_path / "a.txt").write_text("abc")
    code, shown = typed(tmp_path, [line], "sign", "file", "a.txt", "--key", "k.key")
    assert code == 0 and "passphrase of k.key:" in shown and SECRET not in shown
    assert (tmp_path / "a.txt.sigstore.json").exists()


def test_two_passphrases_that_differ_make_no_key(tmp_path: Path) -> None:
    code, shown = typed(tmp_path, [f"{SECRET}\n", "another\n"], "keys", "new", "k", "--passphrase")
    assert code == 2 and "signer.secret-missing" in shown and SECRET not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_word_and_no_word_open_nothing(tmp_path: Path) -> None:
    line = f"{SECRET}\n"
    assert typed(tmp_path, [line, line], "keys", "new", "k", "--passphrase")[0] == 0
    for answer, expected in (
        ("wrong\n", "key.passphrase-wrong"),
        ("\x04", "key.encrypted"),
        ("\n", "key.passphrase-wrong"),
    ):
        code, shown = typed(tmp_path, [answer], "keys", "show", "k.key")
        assert code == 2 and expected in shown
    code, shown = typed(tmp_path, ["\x03"], "keys", "show", "k.key")
    assert code == 2 and "usage.interrupted" in shown
