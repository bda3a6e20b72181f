"""Trees against digests that other tools computed: `sha256sum`, `hashlib`, and the root rule written out by hand."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import rfc8785

from mint2m_verify import tree, walk
from mint2m_verify.documents import TreeEntry
from mint2m_verify.finding import FindingError
from mint2m_verify.walk import CHUNK_BYTES, read_tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files in two levels: one empty, one executable, one with a name beyond ASCII."""
    root = tmp_path / "tree"
    (root / "deep/er").mkdir(parents=True)
    (root / "empty").write_bytes(b"")
    (root / "deep/er/run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "deep/er/run.sh").chmod(0o755)
    (root / "deep/größe").write_bytes(b"x" * 1000)
    return root


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A sparse file of two whole chunks and five bytes, with content in each."""
    root = tmp_path / "big"
    root.mkdir()
    with (root / "file").open("wb") as stream:
        stream.truncate(2 * CHUNK_BYTES + 5)
        for position in (0, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 4):
            stream.seek(position)
            stream.write(b"!")
    return root


def test_every_digest_is_the_one_that_sha256sum_prints(folder: Path) -> None:
    for entry in tree.hash_tree(folder):
        printed = subprocess.run(
            ["sha256sum", str(folder / entry.path)], capture_output=True, text=True, check=True
        ).stdout.split()[0]
        assert entry.sha256 == printed


def test_paths_sizes_and_executable_bits_are_those_on_disk(folder: Path) -> None:
    seen = [(entry.path, entry.size, entry.executable) for entry in tree.hash_tree(folder)]
    assert seen == [("deep/er/run.sh", 10, True), ("deep/größe", 1000, False), ("empty", 0, False)]


def test_an_empty_file_has_no_chunk_and_a_small_one_its_own_digest(folder: Path) -> None:
    chunks = {entry.path: entry.chunks for entry in tree.hash_tree(folder)}
    assert chunks["empty"] == ()
    assert chunks["deep/größe"] == (hashlib.sha256(b"x" * 1000).hexdigest(),)


def test_the_chunks_of_a_large_file_are_those_of_its_64_mib_pieces(big: Path) -> None:
    (entry,) = tree.hash_tree(big)
    whole, pieces = hashlib.sha256(), []
    with (big / "file").open("rb") as stream:
        while piece := stream.read(64 << 20):
            whole.update(piece)
            pieces.append(hashlib.sha256(piece).hexdigest())
    assert (entry.sha256, entry.chunks) == (whole.hexdigest(), tuple(pieces))
    assert len(pieces) == 3


def test_kept_bytes_give_the_digests_of_streamed_ones(big: Path) -> None:
    streamed = read_tree(big, keep=lambda _: 0).files[0]
    kept = read_tree(big, keep=lambda _: 1 << 30).files[0]
    assert streamed.entry == kept.entry
    assert streamed.raw is None
    assert kept.raw == (big / "file").read_bytes()


def test_the_root_digest_is_the_published_rule(folder: Path) -> None:
    entries = tree.hash_tree(folder)
    listed = [
        {"path": e.path, "size": e.size, "executable": e.executable, "sha256": e.sha256, "chunks": list(e.chunks)}
        for e in entries
    ]
    by_hand = hashlib.sha256(b"mint2m.tree/v1\n" + rfc8785.dumps(listed)).hexdigest()
    assert tree.root_digest(entries) == by_hand
    assert tree.manifest("checkpoint", folder, "tree").root_sha256 == by_hand


def test_the_root_digest_does_not_depend_on_the_order_of_entries(folder: Path) -> None:
    entries = tree.hash_tree(folder)
    assert tree.root_digest(entries[::-1]) == tree.root_digest(entries)


@pytest.mark.parametrize("member", ["path", "size", "executable", "sha256", "chunks"])
def test_the_root_digest_commits_every_member(folder: Path, member: str) -> None:
    entries = list(tree.hash_tree(folder))
    changes = {"path": "zz", "size": 11, "executable": False, "sha256": "1" * 64, "chunks": ("2" * 64,)}
    changed = [replace(entries[0], **{member: changes[member]}), *entries[1:]]
    assert tree.root_digest(changed) != tree.root_digest(entries)


def test_the_chunk_that_changed_is_named(big: Path) -> None:
    before = tree.hash_tree(big)
    with (big / "file").open("r+b") as stream:
        stream.seek(CHUNK_BYTES + 77)
        stream.write(b"?")
    (fault,) = tree.compare(before, tree.hash_tree(big), committed_by="m")
    assert (fault.id, fault.byte_range) == ("tree.file-changed", (CHUNK_BYTES, 2 * CHUNK_BYTES))


def test_a_cut_tail_is_placed_in_the_piece_that_lost_it(big: Path) -> None:
    before = tree.hash_tree(big)
    os.truncate(big / "file", 2 * CHUNK_BYTES)
    (fault,) = tree.compare(before, tree.hash_tree(big), committed_by="m")
    assert fault.byte_range == (2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 5)


def test_a_file_with_two_homes_is_not_called_renamed(folder: Path) -> None:
    before = tree.hash_tree(folder)
    raw = (folder / "deep/größe").read_bytes()
    (folder / "deep/größe").unlink()
    (folder / "one").write_bytes(raw)
    (folder / "two").write_bytes(raw)
    ids = [fault.id for fault in tree.compare(before, tree.hash_tree(folder), committed_by="m")]
    assert ids == ["tree.file-missing", "tree.file-unlisted", "tree.file-unlisted"]


def test_a_tree_of_no_file_equals_nothing() -> None:
    assert [fault.id for fault in tree.compare((), (), committed_by="m")] == ["tree.empty"]


def test_an_empty_directory_has_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(FindingError) as caught:
        tree.manifest("file", tmp_path, "nothing")
    assert caught.value.finding.id == "tree.empty"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"root_sha256": "1" * 64}, "manifest.root-mismatch"),
        ({"file_count": 4}, "manifest.count-mismatch"),
        ({"total_bytes": 4}, "manifest.count-mismatch"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_found(folder: Path, changes: dict[str, object], expected: str) -> None:
    manifest = replace(tree.manifest("file", folder, "tree"), **changes)
    assert [fault.id for fault in tree.check_manifest(manifest, file="m")] == [expected]


def _with_entries(folder: Path, entries: tuple[TreeEntry, ...]) -> list[str]:
    manifest = tree.manifest("file", folder, "tree")
    total = sum(entry.size for entry in entries)
    root = hashlib.sha256(
        b"mint2m.tree/v1\n"
        + rfc8785.dumps(
            [
                {
                    "path": e.path,
                    "size": e.size,
                    "executable": e.executable,
                    "sha256": e.sha256,
                    "chunks": list(e.chunks),
                }
                for e in sorted(entries, key=lambda e: e.path)
            ]
        )
    ).hexdigest()
    changed = replace(manifest, files=entries, file_count=len(entries), total_bytes=total, root_sha256=root)
    return [fault.id for fault in tree.check_manifest(changed, file="m")]


def test_a_path_twice_or_out_of_order_is_found(folder: Path) -> None:
    entries = tree.hash_tree(folder)
    assert _with_entries(folder, (entries[0], entries[0], *entries[1:])) == ["manifest.not-sorted"]
    assert _with_entries(folder, entries[::-1]) == ["manifest.not-sorted"] * 2


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "a\\b", "a\x1b[m", "e\u0301"])
def test_a_path_that_leads_out_or_hides_is_found(folder: Path, path: str) -> None:
    entry = replace(tree.hash_tree(folder)[0], path=path)
    assert "manifest.path-invalid" in _with_entries(folder, (entry,))


def test_chunks_that_do_not_fit_the_size_are_found(folder: Path) -> None:
    first, second, third = tree.hash_tree(folder)
    assert _with_entries(folder, (first, replace(second, chunks=("1" * 64,)), third)) == ["manifest.chunks-invalid"]
    assert _with_entries(folder, (first, second, replace(third, chunks=("1" * 64,)))) == ["manifest.chunks-invalid"]


def test_a_name_in_bytes_that_are_no_utf8_is_found_and_can_be_written_down(folder: Path) -> None:
    os.close(os.open(os.fsencode(folder) + b"/\xff\xfe", os.O_CREAT | os.O_WRONLY))
    (fault,) = read_tree(folder, keep=lambda _: 0).findings
    assert (fault.id, fault.file) == ("tree.name-invalid", "\\xff\\xfe")


def test_an_unreadable_file_is_an_io_fault_and_no_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, path: str, **_options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(walk, "_read_file", refuse)
    faults = read_tree(folder, keep=lambda _: 0).findings
    assert {(fault.id, int(fault.verdict)) for fault in faults} == {("file.unreadable", 5)}
    assert len(faults) == 3


def test_a_file_that_grows_while_it_is_read_is_not_hashed(folder: Path) -> None:
    """The walk tells the meter after each block; that is when somebody else appends."""
    grown = []

    def grow(_name: str, _done: int, _total: int) -> None:
        if not grown:
            grown.append(True)
            with (folder / "deep/größe").open("ab") as stream:
                stream.write(b"more")

    (folder / "empty").unlink()
    (folder / "deep/er/run.sh").unlink()
    snapshot = read_tree(folder, keep=lambda _: 0, progress=grow)
    assert [fault.id for fault in snapshot.findings] == ["tree.changed-while-read"]
    assert snapshot.files == ()


def test_progress_ends_at_the_number_of_bytes(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    read_tree(folder, keep=lambda _: 0, progress=lambda _name, done, total: told.append((done, total)))
    assert told[-1] == (1010, 1010)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
