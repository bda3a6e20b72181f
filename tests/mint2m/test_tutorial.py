"""docs/tutorial.md: every command on the page runs, in its order, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


@dataclass(slots=True, kw_only=True)
class Step:
    """A command of the page, the lines shown below it, and the exit code: 0 where none is shown."""

    command: str
    shown: list[str] = field(default_factory=list)
    exit: int = 0


def steps() -> Iterator[Step]:
    for block in re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        current: Step | None = None
        for line in block.splitlines():
            if line.startswith("$ "):
                if current is not None:
                    yield current
                current = Step(command=line[2:])
            elif current is not None and (code := re.fullmatch(r"\[exit (\d+)\]", line)) is not None:
                current.exit = int(code[1])
            elif current is not None:
                current.shown.append(line)
        if current is not None:
            yield current


def _piece(piece: str) -> str:
    """Columns are as wide as what stands in them, so that two blanks are any number of them."""
    return r"[^\n]*" if piece == "…" else "  +" if piece.startswith("  ") else re.escape(piece)


def pattern(shown: list[str]) -> str:
    """The shown lines as one expression: a line of `…` alone is any number of lines, within a line any text."""
    parts = []
    for line in shown:
        if line == "…":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append("".join(_piece(piece) for piece in re.split("(…|  +)", line)) + r"\n")
    return "".join(parts)


def test_the_page_is_what_a_newcomer_sees(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "mint2m"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mint2m "$@"\n')
    tool.chmod(0o755)
    place = tmp_path / "somewhere"
    place.mkdir()
    environment = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    taken = 0
    for step in steps():
        done = subprocess.run(
            ["sh", "-c", step.command], cwd=place, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == step.exit, (step.command, done.stdout, done.stderr)
        assert re.fullmatch(pattern(step.shown), done.stdout) is not None, (step.command, done.stdout)
        taken += step.command.startswith("mint2m")
    assert taken >= 10
    assert (place / "run1.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        (["a", "…", "b"], "a\nx\ny\nb\n", True),
        (["a", "…", "b"], "a\nb\n", True),
        (["a", "b"], "a\nx\nb\n", False),
        (["key …"], "key 12\n", True),
        (["key  x"], "key     x\n", True),
        (["key  x"], "key x\n", False),
        (["key …"], "key 12\nmore\n", False),
        ([], "anything\n", False),
    ],
)
def test_only_what_the_page_leaves_out_may_differ(shown: list[str], printed: str, fits: bool) -> None:
    assert (re.fullmatch(pattern(shown), printed) is not None) is fits
