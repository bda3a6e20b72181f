"""The name of a tree is git's own, for any shape of it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from mint2m_verify.release.git_source import read_commit
from mint2m_verify.release.git_tree import GitFile, blob_hash, tree_name

SHAPES: dict[str, dict[str, bytes]] = {
    "one-file": {"a": b"x"},
    "empty-file": {"a": b""},
    "a-directory-sorts-with-its-slash": {"a/x": b"1", "a.b": b"2", "a0": b"3", "a-b": b"4"},
    "deep": {"a/b/c/d/e": b"1", "a/b/f": b"2", "a/g": b"3"},
    "executable": {"run.sh": b"#!/bin/sh\n", "a/run.sh": b"#!/bin/sh\n"},
    "not-ascii": {"\u00e9/\u00fc": b"x", "z": b"y"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_name_is_git_s(shape: str, kit: ModuleType, tmp_path: Path) -> None:
    commit = read_commit(kit.small_source(tmp_path, SHAPES[shape]))
    files = []
    for file, content in commit.read():
        blob = blob_hash(len(content))
        blob.update(content)
        assert blob.hexdigest() == file.blob
        files.append(GitFile(path=file.path, executable=file.executable, blob=file.blob))
    assert {file.path for file in files} == SHAPES[shape].keys()
    assert tree_name(reversed(files)) == commit.tree == kit.git(tmp_path, "rev-parse", "HEAD^{tree}")
