"""A file that hashes what is written to it: in order, whole, and only what is there."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
import torch

import mint2m_trainer.compat  # noqa: F401  must come before megatron
from mint2m_trainer.checkpoint_writer import HashingFile
from mint2m_verify.elsewhere import hash_now


def test_what_was_hashed_is_what_is_read_back(tmp_path: Path) -> None:
    with HashingFile(tmp_path / "part") as stream:
        stream.write(b"head")
        torch.save(torch.arange(100_000), stream)
        assert stream.tell() > 800_000
    assert stream.hashed is not None
    assert stream.hashed == hash_now(tmp_path, "part")
    assert stream.hashed.digests.sha256 == hashlib.sha256((tmp_path / "part").read_bytes()).hexdigest()


def test_nothing_is_written_out_of_order_or_over_what_is_there(tmp_path: Path) -> None:
    with HashingFile(tmp_path / "part") as stream:
        stream.write(b"head")
        with pytest.raises(io.UnsupportedOperation, match="from its beginning to its end"):
            stream.seek(0)
    with pytest.raises(FileExistsError):
        HashingFile(tmp_path / "part")


def test_bytes_that_someone_else_appends_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="has 9 bytes, and 4 were written"), HashingFile(tmp_path / "part") as stream:
        stream.write(b"head")
        stream.flush()
        with (tmp_path / "part").open("ab") as other:
            other.write(b"other")


def test_below_names_the_same_file_in_a_larger_tree(tmp_path: Path) -> None:
    with HashingFile(tmp_path / "part") as stream:
        stream.write(b"head")
    assert stream.hashed is not None
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "part").rename(tmp_path / "checkpoint" / "part")
    assert stream.hashed.below("checkpoint") == hash_now(tmp_path, "checkpoint/part")
