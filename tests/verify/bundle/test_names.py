"""Names that mean one thing on every file system, alone and beside each other."""

from __future__ import annotations

import pytest

from mint2m_verify.bundle.names import Names


def fault(*paths: str) -> str | None:
    """The finding about the last of these names; those before it are fine."""
    names = Names()
    for path in paths[:-1]:
        assert names.add(path) is None
    found = names.add(paths[-1])
    return None if found is None else found.id


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b/c",
        ".ci/run",
        "source/.gitignore",
        "caf\u00e9",
        "\u6f22\u5b57",
        "a b",
        "...a",
        "console",
        "nul-model",
        "com0",
        "con_",
        "a.git",
    ],
)
def test_an_ordinary_name_is_taken(path: str) -> None:
    assert fault(path) is None


@pytest.mark.parametrize(
    ("path", "id"),
    [
        ("/a", "bundle.path-absolute"),
        ("//a", "bundle.path-absolute"),
        ("..", "bundle.path-outside"),
        ("a/../b", "bundle.path-outside"),
        ("", "bundle.path-invalid"),
        (".", "bundle.path-invalid"),
        ("a//b", "bundle.path-invalid"),
        ("a/", "bundle.path-invalid"),
        ("a\\b", "bundle.path-invalid"),
        ("a\nb", "bundle.path-invalid"),
        ("a\x7f", "bundle.path-invalid"),
        ("e\u0301", "bundle.path-invalid"),
        ("a" * 1025, "bundle.path-invalid"),
        (".git", "bundle.path-invalid"),
        ("a/.GIT/config", "bundle.path-invalid"),
        ("a/.g\u200cit/config", "bundle.path-invalid"),
        ("a/git~1/config", "bundle.path-invalid"),
        ("a/.git./config", "bundle.path-invalid"),
        ("C:/a", "bundle.path-invalid"),
        ("a:stream", "bundle.path-invalid"),
        ("a?", "bundle.path-invalid"),
        ("a.", "bundle.path-invalid"),
        ("a /b", "bundle.path-invalid"),
        ("NUL", "bundle.path-invalid"),
        ("a/aux.py", "bundle.path-invalid"),
        ("COM1.txt", "bundle.path-invalid"),
        ("lpt\u00b9", "bundle.path-invalid"),
    ],
)
def test_a_name_that_is_another_elsewhere_is_refused(path: str, id: str) -> None:
    assert fault(path) == id


@pytest.mark.parametrize(
    ("first", "second", "id"),
    [
        ("a", "a", "bundle.member-duplicate"),
        ("a", "A", "bundle.path-collision-case"),
        ("a/x", "A/y", "bundle.path-collision-case"),
        ("stra\u00dfe", "STRASSE", "bundle.path-collision-case"),
        ("\u0130", "i\u0307", "bundle.path-collision-case"),
        ("\u00e9", "e\u0301", "bundle.path-collision-unicode"),
        ("a/\u00e9", "a/e\u0301", "bundle.path-collision-unicode"),
        ("ab", "a\u200db", "bundle.path-collision-unicode"),
        ("a", "a/b", "bundle.path-conflict"),
        ("a/b", "a", "bundle.path-conflict"),
        ("a/b/c", "a/b", "bundle.path-conflict"),
        ("a", "A/b", "bundle.path-collision-case"),
    ],
)
def test_two_names_that_meet_somewhere_are_refused(first: str, second: str, id: str) -> None:
    assert fault(first, second) == id


@pytest.mark.parametrize(("first", "second"), [("a/b", "a/c"), ("a", "b"), ("a/b", "b/a"), ("ss", "s"), ("a/b", "ab")])
def test_two_names_that_never_meet_are_taken(first: str, second: str) -> None:
    assert fault(first, second) is None
