"""The journal of digests: what is taken from it, what is not, and what a damaged one does. Digests are hashlib's."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mint2m_verify import file_hash, hash_journal
from mint2m_verify.documents import TreeEntry
from mint2m_verify.finding import FindingError
from mint2m_verify.hash_journal import FileKey, open_journal
from mint2m_verify.tree import hash_tree
from mint2m_verify.walk import CHUNK_BYTES, Hashing, Snapshot, read_tree

KEY = FileKey(1, 2, 3, 4)
DIGEST = hashlib.sha256(b"content").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of these tests were made just now; one test asks what that means."""
    monkeypatch.setattr(hash_journal, "_SETTLED_NS", -(10**12))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A sparse file of four whole chunks, each with content, and a small one."""
    root = tmp_path / "tree"
    root.mkdir()
    with (root / "large").open("wb") as stream:
        stream.truncate(4 * CHUNK_BYTES)
        for index in range(4):
            stream.seek(index * CHUNK_BYTES)
            stream.write(b"%d" % index)
    (root / "small").write_bytes(b"small")
    return root


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes were read to be hashed so far."""
    done = [0]
    genuine = file_hash._blocks

    def counting(*arguments: object) -> object:
        for block in genuine(*arguments):  # type: ignore[arg-type]
            done[0] += len(block)
            yield block

    monkeypatch.setattr(file_hash, "_blocks", counting)
    return lambda: done[0]


def read(root: Path, journal: Path, *, entries: tuple[TreeEntry, ...] = (), use_cached: bool = False) -> Snapshot:
    """One pass that comes to its end."""
    with open_journal(journal, root=root, use_cached=use_cached) as kept:
        committed = {entry.path: entry for entry in entries}
        snapshot = read_tree(root, keep=lambda _: 0, hashing=Hashing(committed=committed, journal=kept))
        kept.finish()
    return snapshot


def test_a_pass_that_ended_is_not_used_unless_it_is_asked_for(
    tree: Path, tmp_path: Path, count: Callable[[], int]
) -> None:
    first = read(tree, tmp_path / "journal")
    again = read(tree, tmp_path / "journal")
    assert count() == 2 * (4 * CHUNK_BYTES + 5)
    cached = read(tree, tmp_path / "journal", use_cached=True)
    assert count() == 2 * (4 * CHUNK_BYTES + 5)
    assert [file.entry for file in first.files] == [file.entry for file in again.files]
    assert [file.entry for file in cached.files] == [file.entry for file in first.files]
    assert [file.cached for file in cached.files] == [4 * CHUNK_BYTES, 5]
    assert [file.cached for file in again.files] == [0, 0]


def test_an_interrupted_pass_loses_at_most_one_chunk_for_each_thread(
    tree: Path, tmp_path: Path, count: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted while the third chunk is read."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    entries = hash_tree(tree)
    before = count()

    def interrupt(_name: str, done: int, _total: int) -> None:
        if done > 2 * CHUNK_BYTES + CHUNK_BYTES // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_journal(tmp_path / "j", root=tree, use_cached=False) as kept:
        hashing = Hashing(committed={entry.path: entry for entry in entries}, journal=kept)
        read_tree(tree, keep=lambda _: 0, progress=interrupt, hashing=hashing)
    interrupted = count() - before
    assert 2 * CHUNK_BYTES < interrupted < 3 * CHUNK_BYTES
    resumed = read(tree, tmp_path / "j", entries=entries)
    assert count() - before - interrupted == 2 * CHUNK_BYTES + 5
    assert [file.entry for file in resumed.files] == list(entries)
    assert [file.cached for file in resumed.files] == [2 * CHUNK_BYTES, 0]


def test_a_file_that_changed_is_read_again(tree: Path, tmp_path: Path) -> None:
    """Its size and the time of its content are put back: only the system's own time of change tells."""
    read(tree, tmp_path / "journal")
    status = (tree / "small").stat()
    (tree / "small").write_bytes(b"SMALL")
    os.utime(tree / "small", ns=(status.st_atime_ns, status.st_mtime_ns))
    small = read(tree, tmp_path / "journal", use_cached=True).files[1]
    assert small.entry.sha256 == hashlib.sha256(b"SMALL").hexdigest()
    assert small.cached == 0


def test_a_file_that_changed_just_now_is_not_kept(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_journal, "_SETTLED_NS", 2 * 10**9)
    (tree / "small").write_bytes(b"again")
    read(tree, tmp_path / "journal")
    assert read(tree, tmp_path / "journal", use_cached=True).files[1].cached == 0


def test_cached_digests_of_a_pass_that_was_interrupted_itself_are_not_used_without_being_asked_for(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    with open_journal(journal, root=tmp_path / "tree", use_cached=False) as kept:
        kept.add_chunk(KEY, 0, DIGEST)
        kept.finish()
    with open_journal(journal, root=tmp_path / "tree", use_cached=True) as kept:
        assert kept.chunk(KEY, 0) == DIGEST
        kept.add_chunk(KEY, 1, OTHER)
    with open_journal(journal, root=tmp_path / "tree", use_cached=False) as kept:
        assert (kept.chunk(KEY, 0), kept.chunk(KEY, 1)) == (None, OTHER)


@pytest.mark.parametrize("keep", [1, 40, 80])
def test_a_torn_line_is_forgotten_and_the_journal_goes_on(tmp_path: Path, keep: int) -> None:
    journal = tmp_path / "journal"
    with open_journal(journal, root=tmp_path / "tree", use_cached=False) as kept:
        kept.add_chunk(KEY, 0, DIGEST)
        whole = journal.stat().st_size
        kept.add_chunk(KEY, 1, OTHER)
    os.truncate(journal, whole + keep)
    with open_journal(journal, root=tmp_path / "tree", use_cached=False) as kept:
        assert (kept.chunk(KEY, 0), kept.chunk(KEY, 1)) == (DIGEST, None)
        kept.add_whole(KEY, OTHER)
    with open_journal(journal, root=tmp_path / "tree", use_cached=False) as kept:
        assert (kept.chunk(KEY, 0), kept.whole(KEY)) == (DIGEST, OTHER)


def test_a_line_whose_digest_was_touched_is_never_believed(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with open_journal(journal, root=tmp_path / "tree", use_cached=False) as kept:
        kept.add_chunk(KEY, 0, DIGEST)
    journal.write_bytes(journal.read_bytes().replace(DIGEST.encode(), OTHER.encode()))
    with open_journal(journal, root=tmp_path / "tree", use_cached=False) as kept:
        assert kept.chunk(KEY, 0) is None


def refused(journal: Path, root: Path) -> str:
    with pytest.raises(FindingError) as caught, open_journal(journal, root=root, use_cached=False):
        pass
    assert int(caught.value.finding.verdict) == 2
    return caught.value.finding.id


def test_a_journal_in_the_tree_is_refused_by_whatever_path(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)
    assert refused(tree / "journal", tree) == "usage.invalid"
    assert refused(tmp_path / "link/journal", tree) == "usage.invalid"
    assert not (tree / "journal").exists()


def test_another_file_is_refused_and_left_as_it_was(tree: Path, tmp_path: Path) -> None:
    for content in (b"", b"dear diary\n", b"\xff\xfe"):
        (tmp_path / "diary").write_bytes(content)
        assert refused(tmp_path / "diary", tree) == "usage.invalid"
        assert (tmp_path / "diary").read_bytes() == content


def test_a_journal_that_others_can_write_is_refused(tree: Path, tmp_path: Path) -> None:
    read(tree, tmp_path / "journal")
    (tmp_path / "journal").chmod(0o620)
    assert refused(tmp_path / "journal", tree) == "usage.invalid"


def test_a_link_in_place_of_a_journal_is_not_followed(tree: Path, tmp_path: Path) -> None:
    read(tree, tmp_path / "journal")
    (tmp_path / "link").symlink_to(tmp_path / "journal")
    with pytest.raises(FindingError) as caught, open_journal(tmp_path / "link", root=tree, use_cached=False):
        pass
    assert caught.value.finding.id == "file.unreadable"


def test_two_commands_do_not_share_a_journal(tree: Path, tmp_path: Path) -> None:
    with open_journal(tmp_path / "journal", root=tree, use_cached=False):
        assert refused(tmp_path / "journal", tree) == "usage.invalid"


def test_a_journal_that_cannot_be_written_is_its_own_fault_and_not_the_files(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _raw: bytes) -> int:
        raise OSError(28, "No space left on device")

    with open_journal(tmp_path / "journal", root=tree, use_cached=False) as kept:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(FindingError) as caught:
            read_tree(tree, keep=lambda _: 0, hashing=Hashing(journal=kept))
    assert (caught.value.finding.id, caught.value.finding.file) == ("file.unwritable", str(tmp_path / "journal"))


def test_a_time_in_the_future_is_not_a_settled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_journal, "_SETTLED_NS", 0)
    ahead = FileKey(1, 2, 3, time.time_ns() + 10**12)
    with open_journal(tmp_path / "journal", root=tmp_path / "tree", use_cached=False) as kept:
        kept.add_chunk(ahead, 0, DIGEST)
    assert DIGEST.encode() not in (tmp_path / "journal").read_bytes()
