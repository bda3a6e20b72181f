"""The Containerfiles install nothing but the lock. No image is built here; what can be read of them is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).resolve().parents[3].glob("docs/containers/*.Containerfile"))

#: What brings something from outside into an image.
_FETCHERS = re.compile(r"\b(apt|apt-get|apk|dnf|yum|curl|wget|git|conda|npm|uv|easy_install)\b|https?://")


def instructions(path: Path) -> list[tuple[str, str]]:
    """Keyword and arguments of each instruction, continuation lines joined, comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    rows = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(row[0], row[1]) for row in rows]


def test_there_is_one_for_each_environment() -> None:
    assert [path.name for path in FILES] == ["cpu.Containerfile", "cuda13.Containerfile"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_base_is_an_argument_by_digest_without_a_default(path: Path) -> None:
    rows = instructions(path)
    before = [words for name, words in rows[: [name for name, _ in rows].index("FROM")] if name == "ARG"]
    assert {words.split("=")[0] for words in before} == {"BASE_IMAGE", "BASE_DIGEST"}
    assert "BASE_DIGEST" in before  # no default
    assert [words for name, words in rows if name == "FROM"] == ["${BASE_IMAGE}@${BASE_DIGEST}"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_only_thing_installed_is_the_requirements_of_the_lock(path: Path) -> None:
    rows = instructions(path)
    assert {name for name, _ in rows} <= {"ARG", "FROM", "COPY", "RUN", "ENV", "ENTRYPOINT"}
    copied = [words.split()[0] for name, words in rows if name == "COPY"]
    assert copied == ["requirements.txt", "runtime-lock.json"]
    (run,) = (words for name, words in rows if name == "RUN")
    assert _FETCHERS.search(run) is None
    words = run.split()
    assert words.count("install") == 1 and "--network=none" in words
    wanted = {"--no-index", "--no-deps", "--require-hashes", "--only-binary", "--no-cache-dir"}
    assert wanted <= set(words)
    assert words[-2:] == ["-r", "/opt/mint2m/requirements.txt"]
    # After `install` come options and their values, and no package by name.
    values = {"--find-links": "/wheels", "--only-binary": ":all:", "-r": "/opt/mint2m/requirements.txt"}
    rest = words[words.index("install") + 1 :]
    for option, value in values.items():
        at = rest.index(option)
        assert rest[at : at + 2] == [option, value]
        del rest[at : at + 2]
    assert all(word.startswith("--") for word in rest)
