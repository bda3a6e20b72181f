"""Handing out files to machines that come and go, without a cluster: the machines here are objects of the test.

Digests are hashlib's. With a real cluster: test_ray_machines.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mint2m_trainer.cluster.spread_hash import Answer, Batch, hash_spread
from mint2m_verify.elsewhere import HashedElsewhere, Listed, hash_there, list_files
from mint2m_verify.tree import hash_tree
from mint2m_verify.walk import CHUNK_BYTES, Hashing, read_tree


@dataclass
class Fleet:
    """Machines that see parts of a tree; `dying` names the one that is gone once it has been given work."""

    seen: Mapping[str, tuple[Listed, ...]]
    places: int = 1
    dying: str | None = None
    flaky: int = 0
    out: list[tuple[str, Path, Batch]] = field(default_factory=list)
    worked: dict[str, int] = field(default_factory=dict)
    given: list[tuple[str, Listed]] = field(default_factory=list)

    def listings(self, root: Path) -> Mapping[str, tuple[Listed, ...]]:
        return self.seen

    def room(self) -> Mapping[str, int]:
        gone = self.dying if self.worked.get(self.dying or "") else None
        busy = [machine for machine, _, _ in self.out]
        return {name: self.places - busy.count(name) for name in self.seen if name != gone}

    def hand_out(self, machine: str, root: Path, batch: Batch) -> None:
        assert self.room().get(machine, 0) > 0, "work for a machine that is gone, or full"
        self.out.append((machine, root, batch))
        self.given += [(machine, file) for file in batch.files]

    def next_answer(self) -> Answer:
        machine, root, batch = self.out.pop(0)
        self.worked[machine] = self.worked.get(machine, 0) + 1
        if machine == self.dying or self.flaky > 0:
            self.flaky -= 1
            return Answer(machine=machine, batch=batch, lost=True)
        hashed = (hash_there(root, file) for file in batch.files)
        return Answer(machine=machine, batch=batch, hashed=tuple(each for each in hashed if each is not None))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A sparse file of more than a chunk, an executable, an empty file and two levels of small ones."""
    root = tmp_path / "tree"
    (root / "a/b").mkdir(parents=True)
    with (root / "large").open("wb") as stream:
        stream.truncate(CHUNK_BYTES + 1)
    for number in range(6):
        (root / f"a/b/{number}").write_bytes(bytes([number]) * 1000)
    (root / "a/run").write_bytes(b"#!")
    (root / "a/run").chmod(0o755)
    (root / "empty").write_bytes(b"")
    return root


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mint2m_trainer.cluster.spread_hash._BATCH_FILES", 2)


def with_these(tree: Path, elsewhere: Mapping[str, HashedElsewhere]) -> list[str]:
    """Files that the signer's machine took from elsewhere; its tree must be the one that it reads alone."""
    snapshot = read_tree(tree, keep=lambda _: 0, hashing=Hashing(elsewhere=elsewhere))
    assert snapshot.findings == ()
    assert tuple(file.entry for file in snapshot.files) == hash_tree(tree)
    return [file.path for file in snapshot.files if file.elsewhere]


def test_the_tree_of_many_machines_is_the_tree_of_one(tree: Path) -> None:
    files = list_files(tree)
    fleet = Fleet(dict.fromkeys("wxyz", files))
    elsewhere = hash_spread(fleet, tree)
    assert with_these(tree, elsewhere) == [file.path for file in files]
    assert elsewhere["a/run"].digests.sha256 == hashlib.sha256(b"#!").hexdigest()
    assert len(fleet.worked) == 4, "every machine had work"


def test_a_machine_that_is_lost_in_the_middle_costs_no_digest(tree: Path) -> None:
    files = list_files(tree)
    fleet = Fleet(dict.fromkeys("wxyz", files), dying="x")
    assert with_these(tree, hash_spread(fleet, tree)) == [file.path for file in files]
    assert fleet.worked["x"] == 1


def test_each_machine_reads_the_files_that_it_has(tree: Path) -> None:
    files = list_files(tree)
    fleet = Fleet({"w": files[:4], "x": files[4:]})
    assert with_these(tree, hash_spread(fleet, tree)) == [file.path for file in files]
    assert {file for machine, file in fleet.given if machine == "w"} == set(files[:4])
    assert {file for machine, file in fleet.given if machine == "x"} == set(files[4:])


def test_files_of_a_machine_that_is_lost_and_that_no_other_has_are_left_to_the_signers_own(tree: Path) -> None:
    files = list_files(tree)
    fleet = Fleet({"w": files[:4], "x": files[4:]}, dying="w")
    assert with_these(tree, hash_spread(fleet, tree)) == [file.path for file in files[4:]]


def test_all_machines_lost_leave_everything_to_the_signers_own(tree: Path) -> None:
    assert with_these(tree, hash_spread(Fleet({"w": list_files(tree)}, dying="w"), tree)) == []


def test_work_that_fails_everywhere_is_given_up(tree: Path) -> None:
    fleet = Fleet({name: list_files(tree) for name in "wx"}, flaky=10**6)
    assert hash_spread(fleet, tree) == {}


def test_no_machine_at_all_is_no_fault(tree: Path) -> None:
    assert hash_spread(Fleet({}), tree) == {}
    assert hash_spread(Fleet({"w": ()}), tree) == {}


def test_where_machines_see_two_versions_of_a_file_neither_is_believed(tree: Path) -> None:
    files = list_files(tree)
    other = tuple(Listed(path=f.path, size=f.size, modified_ns=f.modified_ns + (f.path == "empty")) for f in files)
    elsewhere = hash_spread(Fleet({"w": files, "x": other}), tree)
    assert "empty" not in elsewhere
    assert len(elsewhere) == len(files) - 1


@pytest.mark.parametrize(
    "change",
    [
        lambda place: place.write_bytes(b"longer than before"),
        lambda place: (place.write_bytes(b"##"), os.utime(place, (1, 1))),
    ],
    ids=["size", "time"],
)
def test_a_file_that_is_another_by_now_is_read_here(tree: Path, change: Callable[[Path], object]) -> None:
    elsewhere = hash_spread(Fleet({"w": list_files(tree)}), tree)
    change(tree / "a/run")
    assert "a/run" not in with_these(tree, elsewhere)


def test_a_link_is_listed_and_followed_by_nobody(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_bytes(b"secret")
    listed = Listed(path="link/file", size=6, modified_ns=(tmp_path / "outside/file").stat().st_mtime_ns)
    (tree / "link").symlink_to(tmp_path / "outside")
    assert all(not file.path.startswith("link") for file in list_files(tree))
    assert hash_there(tree, listed) is None


def test_progress_ends_at_the_number_of_bytes(tree: Path) -> None:
    told: list[tuple[int, int]] = []
    hash_spread(Fleet({"w": list_files(tree)}), tree, lambda _name, done, total: told.append((done, total)))
    size = sum(file.size for file in list_files(tree))
    assert told[-1] == (size, size)
