"""Verification opens no socket and writes nothing: seen by an audit hook, which Python code cannot get around."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
BASE = VECTORS / "bases/run"
KEY = VECTORS / "test-only-keys/release.pub"
AT = ("--at", "2026-07-01T00:00:00Z")
POLICY = ("--policy", VECTORS / "right-policy/outside/policy.json", *AT)

#: Runs the command line under a hook that ends the process at the first forbidden event. `socket.__new__` counts as
#: well: even a socket that is never connected is one too many.
HOOKED = """
import os, sys

FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.mkdir", "os.remove",
             "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.chown", "os.utime",
             "shutil.", "tempfile.", "urllib.", "mmap.", "pickle.find_class")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

def hook(event, args):
    forbidden = event.startswith(FORBIDDEN)
    if event == "mmap.__new__" and args[0] == -1:
        forbidden = False  # memory of no file
    if event == "open":
        path, mode, flags = args
        writes = bool(flags & WRITING) if isinstance(flags, int) else False
        forbidden = writes or (isinstance(mode, str) and bool(set(mode) & set("wax+")))
        forbidden = forbidden and path != os.devnull  # opened to occupy a standard stream that was closed
    if forbidden:
        os.write(2, f"FORBIDDEN {event} {args!r}\\n".encode())
        os._exit(99)

sys.dont_write_bytecode = True
sys.addaudithook(hook)
from mint2m.__main__ import main
main(sys.argv[1:])
"""


def hooked(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HOOKED, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("verify", "run", BASE, "--key", KEY), 0),
        (("verify", "run", BASE, "--key", KEY, "--format", "json"), 0),
        (("verify", "run", BASE), 4),
        (("verify", "run", VECTORS / "bases/run-again", "--key", KEY), 1),
        (("verify", "receipt", BASE / "receipt.json", "--key", KEY), 0),
        (("verify", "checkpoint", BASE / "checkpoint", "--key", KEY), 0),
        (("verify", "run", BASE, *POLICY), 0),
        (("trust", "show", VECTORS / "right-policy/outside/policy.json"), 0),
        (("trust", "show", "public-good"), 0),
        (("fixture", "check", BASE / "inputs/fixture.json"), 0),
        (("explain", "tree.file-changed"), 0),
        (("verify", "nothing"), 2),
    ],
    ids=[
        "run",
        "run as json",
        "no anchor",
        "damaged run",
        "receipt",
        "checkpoint",
        "policy",
        "trust show",
        "root",
        "fixture",
        "explain",
        "usage",
    ],
)
def test_a_command_of_the_auditor_opens_no_socket_and_writes_nothing(words: tuple[object, ...], code: int) -> None:
    done = hooked(*words)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(
    "deed",
    [
        "import socket; socket.socket()",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "open('/no/such/directory', 'w')",
        "import os; os.open('/no/such/directory', os.O_WRONLY)",
        "import subprocess; subprocess.run(['true'])",
    ],
)
def test_the_hook_would_have_seen_it(deed: str) -> None:
    script = HOOKED.replace("from mint2m.__main__ import main\nmain(sys.argv[1:])", deed)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 99 and done.stderr.startswith("FORBIDDEN ")


def test_the_evidence_is_left_as_it_was(tmp_path: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(BASE.rglob("*"))}
    assert hooked("verify", "run", BASE, "--key", KEY).returncode == 0
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(BASE.rglob("*"))} == before
