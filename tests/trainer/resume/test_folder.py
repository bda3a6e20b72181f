"""The progress folder: whose it is, that one driver at a time has it, and that nothing else is ever touched."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mint2m_trainer.resume.faults import OtherProgressError
from mint2m_trainer.resume.folder import ProgressFolder, remove_progress
from mint2m_trainer.resume.identity import IDENTITY, Identity
from mint2m_trainer.resume.rank_folder import RankFolder
from mint2m_verify.finding import Finding, FindingError, Verdict

MINE = Identity(members=(("source_sha256", "ab"), ("model_root_sha256", "cd"), ("prefix.chunk_tokens", "8")))


def changed(**change: str) -> Identity:
    return Identity(members=tuple((name, change.get(name, value)) for name, value in MINE.members))


def refused(folder: Path, identity: Identity = MINE, run: Path | None = None) -> Finding:
    with pytest.raises(FindingError) as caught:
        ProgressFolder.hold(folder, identity, run=folder.with_name("run") if run is None else run)
    assert caught.value.finding.verdict is Verdict.BLOCKED
    return caught.value.finding


def hold(folder: Path, identity: Identity = MINE) -> ProgressFolder:
    return ProgressFolder.hold(folder, identity, run=folder.with_name("run"))


def test_it_is_made_for_its_owner_alone_and_the_same_inputs_go_on_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with hold(folder) as held:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert held.path == folder
        (folder / "rank-0").mkdir()
    with hold(folder):
        assert (folder / "rank-0").is_dir()


def test_another_identity_is_refused_and_the_first_difference_named_in_the_order_of_the_members(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    hold(folder).close()
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    finding = refused(folder, changed(model_root_sha256="ef", **{"prefix.chunk_tokens": "16"}))
    assert (finding.id, finding.pointer) == ("progress.identity-mismatch", "/members/model_root_sha256")
    assert (finding.expected, finding.actual) == ("ef", "cd")
    more = Identity(members=(*MINE.members, ("memory.store", '"mapped"')))
    assert refused(folder, more).pointer == "/members/memory.store"
    less = Identity(members=MINE.members[:2])
    assert refused(folder, less).pointer == "/members/prefix.chunk_tokens"
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    hold(folder).close()


def test_two_drivers_never_share_one(tmp_path: Path) -> None:
    with hold(tmp_path / "kept"):
        assert refused(tmp_path / "kept").id == "progress.in-use"
    hold(tmp_path / "kept").close()


def test_a_folder_that_holds_something_else_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    assert refused(folder).id == "progress.unusable"
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    remove_progress(folder)
    assert (folder / "thesis.txt").read_text() == "mine"
    file = tmp_path / "file"
    file.write_text("mine")
    assert refused(file).id == "progress.unusable"


@pytest.mark.parametrize("kept", ["run", "run/kept", "."])
def test_it_lies_neither_in_the_run_directory_nor_around_it(tmp_path: Path, kept: str) -> None:
    assert refused(tmp_path / kept, run=tmp_path / "run").id == "progress.unusable"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("raw", [b"{", b'{"format":"2","members":{}}', b'{"format":"1","members":{"a":1}}', b"[]"])
def test_an_identity_that_cannot_be_read_is_refused(tmp_path: Path, raw: bytes) -> None:
    folder = tmp_path / "kept"
    hold(folder).close()
    (folder / IDENTITY).write_bytes(raw)
    assert refused(folder).id == "progress.unusable"


def test_removing_takes_all_of_it_and_only_while_it_is_held(tmp_path: Path) -> None:
    held = hold(tmp_path / "kept")
    (tmp_path / "kept" / "rank-0").mkdir()
    held.close()
    held.remove()
    assert (tmp_path / "kept").is_dir()
    with hold(tmp_path / "kept") as again:
        again.remove()
    assert not (tmp_path / "kept").exists()
    remove_progress(tmp_path / "kept")  # not there: no fault


def test_a_rank_s_folder_is_held_against_what_the_rank_has_in_memory(tmp_path: Path) -> None:
    first = RankFolder(tmp_path / "kept", 3, MINE)
    first.pass_files("policy")
    first.close()
    RankFolder(tmp_path / "kept", 3, MINE).close()
    with pytest.raises(OtherProgressError, match=r"rank-3.*model_root_sha256 was cd, now it is ef"):
        RankFolder(tmp_path / "kept", 3, changed(model_root_sha256="ef"))
