"""Fixtures shared by all tests: where outside values lie, and how a command line is run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A shell starts what it runs in the background with SIGINT ignored; children inherit that, and a command asked to stop
# would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def shared_directory() -> Path | None:
    """The folder of values made by others (oracle, conformance): MINT2M_SHARED, or `shared` beside the checkout."""
    named = os.environ.get("MINT2M_SHARED")
    place = Path(named) if named else ROOT.parent / "shared"
    return place if place.is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """`shared("oracle")` is that folder; the test is skipped where the shared folder itself is missing."""

    def locate(name: str) -> Path:
        place = shared_directory()
        if place is None:
            pytest.skip("no folder of outside values: set MINT2M_SHARED or put `shared` beside the checkout")
        return place / name

    return locate


@pytest.fixture
def mint2m() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `mint2m ARGS` as a user does, in a process of its own; nothing of the machine's colour settings leaks in."""

    def run(*arguments: object, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mint2m", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,  # type: ignore[call-overload]  # cwd and env only
        )

    return run
