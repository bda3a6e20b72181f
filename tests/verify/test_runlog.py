"""The run log against the published vectors of RFC 6962 trees, and against a brute force over all small ones."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import pytest

from mint2m_verify.runlog import (
    LogEntry,
    LogHead,
    check_known,
    check_log,
    consistency_proof,
    consistent,
    head_of,
    included,
    inclusion_proof,
)

#: Leaves, roots and proofs of the certificate-transparency reference implementation's own tests.
LEAVES = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
N1 = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
N23 = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
N4567 = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"
N4 = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
N67 = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
N45 = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a"


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_the_published_ones(size: int) -> None:
    assert head_of(LEAVES[:size]) == LogHead(size=size, root=ROOTS[size - 1])


def test_the_empty_log_is_the_hash_of_nothing() -> None:
    assert head_of([]).root == hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    ("index", "size", "path"),
    [
        (0, 1, ()),
        (0, 8, (N1, N23, N4567)),
        (5, 8, (N4, N67, ROOTS[3])),
        (2, 3, (ROOTS[1],)),
        (1, 5, (ROOTS[0], N23, N4)),
    ],
)
def test_inclusion_proofs_are_the_published_ones(index: int, size: int, path: tuple[str, ...]) -> None:
    assert inclusion_proof(index, LEAVES[:size]) == path


@pytest.mark.parametrize(
    ("old", "new", "path"), [(1, 1, ()), (1, 8, (N1, N23, N4567)), (6, 8, (N45, N67, ROOTS[3])), (2, 5, (N23, N4))]
)
def test_consistency_proofs_are_the_published_ones(old: int, new: int, path: tuple[str, ...]) -> None:
    assert consistency_proof(old, LEAVES[:new]) == path


SIZES = range(1, 18)
MANY = [bytes([number]) * 3 for number in range(18)]


def test_every_inclusion_proof_holds_for_its_own_leaf_index_and_size_only() -> None:
    for size in SIZES:
        head = head_of(MANY[:size])
        for index in range(size):
            path = inclusion_proof(index, MANY[:size])
            for leaf, place in itertools.product(range(size), range(size)):
                holds = included(leaf=MANY[leaf], index=place, head=head, path=path)
                assert holds == (leaf == index and place == index), (size, index, leaf, place)


def test_every_consistency_proof_holds_for_its_own_two_sizes_only() -> None:
    heads = {size: head_of(MANY[:size]) for size in SIZES}
    for new in SIZES:
        for old in range(1, new + 1):
            path = consistency_proof(old, MANY[:new])
            for other in range(1, new + 1):
                assert consistent(old=heads[other], new=heads[new], path=path) == (other == old), (old, other, new)


def test_a_proof_with_any_node_changed_dropped_or_added_does_not_hold() -> None:
    head, old = head_of(MANY[:13]), head_of(MANY[:6])
    for path, holds in (
        (inclusion_proof(9, MANY[:13]), lambda p: included(leaf=MANY[9], index=9, head=head, path=p)),
        (consistency_proof(6, MANY[:13]), lambda p: consistent(old=old, new=head, path=p)),
    ):
        assert holds(path)
        for place in range(len(path)):
            wrong = hashlib.sha256(path[place].encode()).hexdigest()
            assert not holds((*path[:place], wrong, *path[place + 1 :]))
            assert not holds((*path[:place], *path[place + 1 :]))
        assert not holds((*path, path[0]))
        assert not holds((*path[:-1], "zz"))
        assert not holds((*path[:-1], path[-1][:-2]))


def test_a_log_that_shares_no_history_is_not_consistent_whatever_the_proof() -> None:
    other = head_of([b"x", *MANY[1:5]])
    assert not consistent(old=other, new=head_of(MANY[:9]), path=consistency_proof(5, MANY[:9]))


def _entries(payloads: Sequence[bytes]) -> list[LogEntry]:
    return [
        LogEntry(name=f"stage-{n}", file=f"{n}.json", payload=payload, before=head_of(payloads[:n]))
        for n, payload in enumerate(payloads)
    ]


def test_an_untouched_log_has_no_finding() -> None:
    assert list(check_log(_entries(MANY[:7]))) == []


def test_a_replaced_entry_shows_in_the_next_head_and_later_ones_follow_from_it() -> None:
    entries = _entries(MANY[:6])
    entries[2] = LogEntry(name="stage-2", file="2.json", payload=b"another", before=entries[2].before)
    faults = list(check_log(entries))
    assert [(f.id, f.file) for f in faults] == [("runlog.forked", f"{n}.json") for n in (3, 4, 5)]
    assert faults[0].cause is None and {f.cause for f in faults[1:]} == {faults[0]}


def test_two_entries_that_changed_places_are_told_as_moved() -> None:
    entries = _entries(MANY[:5])
    entries[1], entries[3] = entries[3], entries[1]
    assert [(f.id, f.actual) for f in check_log(entries)] == [("runlog.reordered", "3"), ("runlog.reordered", "1")]


def test_an_entry_taken_from_the_middle_is_told_as_missing() -> None:
    entries = _entries(MANY[:5])
    del entries[2]
    assert [(f.id, f.file) for f in check_log(entries)] == [
        ("runlog.entry-missing", "3.json"),
        ("runlog.entry-missing", "4.json"),
    ]


def test_a_cut_tail_is_invisible_inside_and_shows_against_a_head_seen_before() -> None:
    whole, short = _entries(MANY[:5]), _entries(MANY[:4])
    seen = head_of(MANY[:5])
    assert list(check_log(short)) == []
    assert [f.id for f in check_known(short, seen)] == ["runlog.cut"]
    assert list(check_known(whole, seen)) == []
    assert list(check_known(whole, head_of(MANY[:3]))) == []


def test_a_log_with_another_history_is_told_against_a_head_seen_before() -> None:
    forked = _entries([MANY[0], b"other", *MANY[2:6]])
    assert [f.id for f in check_known(forked, head_of(MANY[:3]))] == ["runlog.known-mismatch"]


def test_a_log_of_nothing_is_a_fault() -> None:
    assert [f.id for f in check_log([])] == ["runlog.empty"]
