"""Large files by their committed chunk digests: what is accepted, what is found, and what the report says of it.

Manifests are written out here with hashlib, apart from those that the product makes for its own trees.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from mint2m_verify import layout, walk
from mint2m_verify.anchor import DigestAnchor, VerifyOptions, options, read_key
from mint2m_verify.canonical import sha256_hex
from mint2m_verify.documents import FileManifest, TreeEntry
from mint2m_verify.finding import Report, Standing, Verdict
from mint2m_verify.hash_journal import open_journal
from mint2m_verify.run import verify_run
from mint2m_verify.tree import manifest, root_digest
from mint2m_verify.verify_tree import verify_manifest
from mint2m_verify.walk import CHUNK_BYTES, Hashing, read_tree

VECTORS = Path(__file__).resolve().parents[1] / "vectors"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A sparse file of two whole chunks and five bytes, with content in each, and a small file."""
    root = tmp_path / "tree"
    root.mkdir()
    with (root / "large").open("wb") as stream:
        stream.truncate(2 * CHUNK_BYTES + 5)
        for position in (0, CHUNK_BYTES, 2 * CHUNK_BYTES + 4):
            stream.seek(position)
            stream.write(b"!")
    (root / "small").write_bytes(b"small")
    return root


def judged(tree: Path, document: FileManifest, *, whole: bool = False, journal: Path | None = None) -> Report:
    """The verification by somebody who has the digest of the manifest."""
    place = tree.parent / "manifest.json"
    place.write_bytes(document.encode())
    anchor = DigestAnchor(sha256=sha256_hex(document.encode()))
    if journal is None:
        return verify_manifest(place, tree, None, anchor, options(whole_digests=whole))
    with open_journal(journal, root=tree, use_cached=True) as kept:
        return verify_manifest(place, tree, None, anchor, options(journal=kept, whole_digests=whole))


def changed(tree: Path, position: int) -> None:
    with (tree / "large").open("r+b") as stream:
        stream.seek(position)
        stream.write(b"?")


def test_a_large_file_is_judged_by_its_chunks_and_the_report_says_what_was_not_computed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = manifest("file", tree, "tree")
    genuine = walk.hash_file

    def no_large(descriptor: int, status: object, *arguments: object, **named: object) -> object:
        assert status.st_size <= CHUNK_BYTES  # type: ignore[attr-defined]
        return genuine(descriptor, status, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(walk, "hash_file", no_large)
    report = judged(tree, document)
    assert int(report.verdict) == 0
    assert any("whole-file digests of the file above 64 MiB" in note for note in report.not_checked)


def test_with_whole_digests_both_are_computed_and_nothing_is_left_to_be_said(tree: Path) -> None:
    report = judged(tree, manifest("file", tree, "tree"), whole=True)
    assert int(report.verdict) == 0
    assert not any("whole-file" in note for note in report.not_checked)


@pytest.mark.parametrize("position", [0, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 4])
def test_a_changed_byte_is_found_at_its_place_by_chunks_as_by_whole_digests(tree: Path, position: int) -> None:
    document = manifest("file", tree, "tree")
    changed(tree, position)
    report = judged(tree, document)
    start = position // CHUNK_BYTES * CHUNK_BYTES
    (fault,) = report.roots
    assert (fault.id, fault.file) == ("tree.file-changed", "large")
    assert fault.byte_range == (start, min(start + CHUNK_BYTES, 2 * CHUNK_BYTES + 5))
    assert hashlib.sha256((tree / "large").read_bytes()).hexdigest() in str(fault.actual)
    assert report.findings == judged(tree, document, whole=True).findings


def test_swapped_chunks_are_found(tree: Path) -> None:
    document = manifest("file", tree, "tree")
    raw = (tree / "large").read_bytes()
    swapped = raw[CHUNK_BYTES : 2 * CHUNK_BYTES] + raw[:CHUNK_BYTES] + raw[2 * CHUNK_BYTES :]
    (tree / "large").write_bytes(b"x" + swapped[1:])
    assert [fault.id for fault in judged(tree, document).roots] == ["tree.file-changed"]


@pytest.mark.parametrize("size", [2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 4, 2 * CHUNK_BYTES + 6, 5])
def test_a_file_of_another_length_is_found(tree: Path, size: int) -> None:
    document = manifest("file", tree, "tree")
    with (tree / "large").open("r+b") as stream:
        stream.truncate(size)
    assert [fault.id for fault in judged(tree, document).roots] == ["tree.file-changed"]


def forged(document: FileManifest, **members: object) -> FileManifest:
    """The manifest with another entry for the large file, its counts and root digest in order again."""
    entries = tuple(replace(entry, **members) if entry.path == "large" else entry for entry in document.files)
    total = sum(entry.size for entry in entries)
    return replace(document, files=entries, total_bytes=total, root_sha256=root_digest(entries))


def test_a_whole_digest_of_other_bytes_is_found_where_it_is_computed_and_named_where_it_is_not(tree: Path) -> None:
    """Its maker signs it, so nobody else can do this; who goes by whole digests elsewhere asks for them here."""
    document = forged(manifest("file", tree, "tree"), sha256="1" * 64)
    assert [fault.id for fault in judged(tree, document, whole=True).roots] == ["tree.file-changed"]
    report = judged(tree, document)
    assert any("whole-file digests of the file above 64 MiB" in note for note in report.not_checked)


@pytest.mark.parametrize("chunks", [("2" * 64,), ("2" * 64,) * 3, ("2" * 64,) * 4, ()])
def test_chunk_digests_of_other_bytes_or_another_number_are_found(tree: Path, chunks: tuple[str, ...]) -> None:
    document = forged(manifest("file", tree, "tree"), chunks=chunks)
    assert "tree.file-changed" in {fault.id for fault in judged(tree, document).roots}


def test_a_large_file_that_grows_while_its_chunks_are_read_is_not_accepted(tree: Path) -> None:
    entries = {entry.path: entry for entry in manifest("file", tree, "tree").files}
    grown = []

    def grow(_name: str, _done: int, _total: int) -> None:
        if not grown:
            grown.append(True)
            with (tree / "large").open("ab") as stream:
                stream.write(b"more")

    (tree / "small").unlink()
    snapshot = read_tree(tree, keep=lambda _: 0, progress=grow, hashing=Hashing(committed=entries))
    assert [fault.id for fault in snapshot.findings] == ["tree.changed-while-read"]


def test_a_large_file_that_cannot_be_read_is_an_io_fault(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {entry.path: entry for entry in manifest("file", tree, "tree").files}

    def refuse(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(walk, "hash_chunk", refuse)
    faults = read_tree(tree, keep=lambda _: 0, hashing=Hashing(committed=entries)).findings
    assert [(fault.id, fault.file, int(fault.verdict)) for fault in faults] == [("file.unreadable", "large", 5)]


def test_what_a_journal_stood_in_for_is_cached_in_the_report(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mint2m_verify.hash_journal._SETTLED_NS", -(10**12))
    document = manifest("file", tree, "tree")
    journal = tree.parent / "journal"
    required = "every file as the manifest says"
    for standing in ("checked", "cached"):
        report = judged(tree, document, journal=journal)
        row = next(row for row in report.requirements if row.required == required)
        assert (int(report.verdict), row.standing.value) == (0, standing)
    assert any("from your journal" in note for note in report.not_checked)


def test_a_journal_with_wrong_digests_accepts_nothing_that_the_manifest_does_not_commit(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was read when it was another: the manifest is of what lies here now."""
    monkeypatch.setattr("mint2m_verify.hash_journal._SETTLED_NS", -(10**12))
    before = manifest("file", tree, "tree")
    journal = tree.parent / "journal"
    judged(tree, before, journal=journal)
    changed(tree, 0)
    assert [fault.id for fault in judged(tree, before, journal=journal).roots] == ["tree.file-changed"]
    assert int(judged(tree, manifest("file", tree, "tree"), journal=journal).verdict) == 0


def test_entries_of_another_path_do_not_stand_in_for_a_file(tree: Path) -> None:
    """Chunk digests are looked up by path; a file under another name is hashed whole."""
    (entry,) = (entry for entry in manifest("file", tree, "tree").files if entry.path == "large")
    other: TreeEntry = replace(entry, path="elsewhere", sha256="1" * 64)
    (large, _) = read_tree(tree, keep=lambda _: 0, hashing=Hashing(committed={"elsewhere": other})).files
    assert (large.by_chunks, large.entry.sha256) == (False, entry.sha256)


@pytest.mark.parametrize("base", ["run", "training-prompts/steps/0001/run"])
def test_tensors_beyond_what_is_read_whole_are_a_limit_here_and_no_fault_of_the_evidence(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the limit differs from a run that is accepted: nothing is refused, nothing that was not read is accepted."""
    monkeypatch.setattr(layout, "TENSOR_LIMIT", 1000)
    key = read_key(VECTORS / "test-only-keys" / "release.pub")
    report = verify_run(VECTORS / "bases" / base, key, VerifyOptions())
    assert report.verdict is Verdict.IO_ERROR, report.findings
    assert {fault.id for fault in report.findings} == {"tensors.too-large"}
    assert all((fault.file or "").endswith(".safetensors") for fault in report.findings)
    rows = {row.required: row.standing for row in report.requirements}
    assert rows["gradient norm and clip"] is Standing.UNVERIFIABLE
