"""What the tests of racing files share: a verification that must end, a thread beside it, things that are no files."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mint2m.__main__ import run as command_line

#: Verifications under a racing thread.
ROUNDS = 12

#: A verification that takes longer hangs.
LONGEST_S = 60


def verify(*words: object) -> dict[str, Any]:
    """The report; a verification that ends in an internal error is no verdict."""
    started = time.monotonic()
    outcome = command_line([*map(str, words), "--format", "json"])
    assert time.monotonic() - started < LONGEST_S
    report: dict[str, Any] = json.loads(outcome.text)
    assert report["exit_code"] in (0, 1, 2, 4, 5), report["findings"]
    return report


def ids(report: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in report["findings"]]


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """`action` again and again on a thread of its own, until the block ends."""
    stop = threading.Event()

    def again() -> None:
        while not stop.is_set():
            action()

    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LONGEST_S)
        assert not thread.is_alive()


def device(place: Path) -> None:
    """A node like /dev/zero, which never ends; only the superuser can make one."""
    try:
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device node needs the superuser")


def make(kind: str, place: Path) -> None:
    """Something that is no regular file, at `place`."""
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "device":
            device(place)
        case "link":
            place.symlink_to("/dev/zero")
        case "directory":
            place.mkdir()
        case "socket":
            here = Path.cwd()
            os.chdir(place.parent)  # a socket's path is limited to about a hundred characters
            try:
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(place.name)
            finally:
                os.chdir(here)


KINDS = ("pipe", "device", "link", "directory", "socket")
