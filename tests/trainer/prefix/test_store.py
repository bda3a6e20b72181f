"""Pages as transactions: what an append, a pop, a release, a fault and a stranger's write leave behind."""

from __future__ import annotations

import hashlib
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mint2m_trainer.prefix.pages import MappedFiles, ProcessMemory
from mint2m_trainer.prefix.rows import ChunkRows, PageShape, PrefixError
from mint2m_trainer.prefix.store import MappedRowStore, MemoryRowStore, PagedRowStore

SHAPE = PageShape(row_width=3, key_widths=(2, 0), dtype=torch.float32, grad_dtype=torch.float32)
CUTS = ((0, 4), (4, 8), (8, 10))

Make = Callable[..., PagedRowStore]


@pytest.fixture(params=[(MemoryRowStore, 4), (MemoryRowStore, 3), (MappedRowStore, 64), (MappedRowStore, 1)])
def make(request: pytest.FixtureRequest) -> Make:
    """A store of either memory with pages of fewer, as many and more rows than a chunk has."""
    kind, page_rows = request.param
    return lambda: kind(SHAPE, page_rows=page_rows)


def rows_of(start: int, stop: int) -> ChunkRows:
    """Rows whose first column is their local id, times ten in layer 1."""
    ids = torch.arange(start, stop, dtype=torch.float32)[:, None]
    row = ids.expand(-1, 3).clone()
    return ChunkRows(rows=(row, row * 10), keys=(ids.expand(-1, 2).clone(), None))


def fill(store: PagedRowStore) -> PagedRowStore:
    for chunk, cut in enumerate(CUTS):
        store.append(chunk, rows_of(*cut))
    return store


def contents(store: PagedRowStore) -> list[list[list[float]]]:
    """Everything that can be read."""
    every = torch.arange(store.length)
    keys = [block.keys.tolist() for block in store.keys(0)]
    return [store.rows(0, every).tolist(), store.rows(1, every).tolist(), *keys]


def test_rows_come_back_by_local_id_across_pages(make: Make) -> None:
    store = fill(make())
    ids = torch.tensor([0, 3, 4, 9])
    assert store.rows(0, ids)[:, 0].tolist() == [0, 3, 4, 9]
    assert store.rows(1, ids)[:, 0].tolist() == [0, 30, 40, 90]
    assert store.rows(0, ids[:0]).shape == (0, 3)
    assert store.chunk_rows(1).rows[1][:, 0].tolist() == [40, 50, 60, 70]


def test_keys_come_back_whole_and_in_order(make: Make) -> None:
    blocks = list(fill(make()).keys(0))
    assert [block.start for block in blocks] == [0]
    assert blocks[0].keys[:, 0].tolist() == list(range(10))
    with pytest.raises(PrefixError, match="layer 1 keeps no indexer keys"):
        list(fill(make()).keys(1))


def test_a_rank_without_rows_of_a_chunk_appends_none_of_them(make: Make) -> None:
    store = make()
    store.append(0, rows_of(0, 0))
    store.append(1, rows_of(0, 3))
    store.append(2, rows_of(3, 3))
    assert (store.length, store.witness().chunks) == (3, 3)
    assert store.chunk_rows(0).rows[0].shape == store.chunk_rows(2).rows[0].shape == (0, 3)
    assert store.chunk_leaves(2).shape == (0, 32)
    assert store.take_grad(0, 2).shape == (0, 3)
    store.release(2)
    assert store.length == 3


def test_a_refused_append_leaves_no_trace(make: Make) -> None:
    store = make()
    store.append(0, rows_of(0, 4))
    before, held = store.witness(), contents(store)
    good = rows_of(4, 8)
    for bad in (
        ChunkRows(rows=good.rows[:1], keys=good.keys[:1]),
        ChunkRows(rows=(good.rows[0], good.rows[1][:2]), keys=good.keys),
        ChunkRows(rows=(good.rows[0].double(), good.rows[1]), keys=good.keys),
        ChunkRows(rows=good.rows, keys=(None, None)),
        ChunkRows(rows=good.rows, keys=(good.keys[0], good.rows[0])),
    ):
        with pytest.raises(PrefixError):
            store.append(1, bad)
        assert store.witness() == before
    with pytest.raises(PrefixError, match="does not follow"):
        store.append(2, rows_of(8, 10))
    assert store.witness() == before
    assert contents(store) == held


class Failing(ProcessMemory):
    """Memory that is full after so many pages."""

    def __init__(self, room: int) -> None:
        self.room = room

    def allocate(self, size: int) -> Tensor:
        if self.room == 0:
            raise OSError("no space left")
        self.room -= 1
        return super().allocate(size)


class Broken(Tensor):
    """A tensor that cannot be read: a device that is lost while its rows are copied."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is Tensor.copy_:
            raise RuntimeError("the device is lost")
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("room", [2, 3])
def test_an_append_that_runs_out_of_pages_half_way_leaves_no_trace_and_can_be_repeated(room: int) -> None:
    memory = Failing(room)
    store = PagedRowStore(SHAPE, memory, page_rows=3)
    store.append(0, rows_of(0, 4))  # two pages of three rows
    before, held = store.witness(), contents(store)
    with pytest.raises(OSError, match="no space left"):
        store.append(1, rows_of(4, 12))  # four pages in all
    assert store.witness() == before
    assert contents(store) == held
    memory.room = 4
    store.append(1, rows_of(4, 12))
    assert store.rows(1, torch.arange(12))[:, 0].tolist() == [10.0 * n for n in range(12)]


@pytest.mark.parametrize("layer", [0, 1])
def test_an_append_that_fails_while_rows_are_copied_leaves_no_trace(make: Make, layer: int) -> None:
    store = make()
    store.append(0, rows_of(0, 4))
    before, held, leaves = store.witness(), contents(store), store.chunk_leaves(0)
    rows = list(rows_of(100, 104).rows)
    rows[layer] = rows[layer].as_subclass(Broken)
    with pytest.raises(RuntimeError, match="the device is lost"):
        store.append(1, ChunkRows(rows=tuple(rows), keys=rows_of(100, 104).keys))
    assert store.witness() == before
    assert contents(store) == held
    assert torch.equal(store.chunk_leaves(0), leaves)
    fresh = make()
    for one in (store, fresh):
        if one is fresh:
            one.append(0, rows_of(0, 4))
        one.append(1, rows_of(4, 8))
    assert contents(store) == contents(fresh)


def test_pop_undoes_the_last_append_and_only_that(make: Make) -> None:
    store = make()
    first = store.append(0, rows_of(0, 4))
    second = store.append(1, rows_of(4, 8))
    with pytest.raises(PrefixError, match="not the store's last change"):
        store.pop(first)
    store.pop(second)
    assert store.length == 4
    with pytest.raises(PrefixError):
        store.pop(second)
    store.append(1, rows_of(4, 6))
    assert store.rows(0, torch.arange(6))[:, 0].tolist() == list(range(6))


def test_stored_rows_are_copies(make: Make) -> None:
    store, given = make(), rows_of(0, 4)
    store.append(0, given)
    given.rows[0].fill_(-1)
    assert store.rows(0, torch.tensor([2]))[0, 0] == 2


def test_gradient_of_a_row_is_the_sum_of_what_was_added(make: Make) -> None:
    store = fill(make())
    store.add_grad(0, torch.tensor([3, 4, 9]), torch.ones(3, 3))
    store.add_grad(0, torch.tensor([4]), torch.full((1, 3), 2.0))
    assert store.take_grad(0, 2)[:, 0].tolist() == [0, 1]
    assert store.take_grad(0, 2).abs().sum() == 0  # taken is taken
    store.release(2)
    assert store.take_grad(0, 1)[:, 0].tolist() == [3, 0, 0, 0]
    store.release(1)
    store.add_grad(0, torch.tensor([3]), torch.ones(1, 3))
    assert store.take_grad(0, 0)[:, 0].tolist() == [0, 0, 0, 2]
    assert store.take_grad(1, 0).abs().sum() == 0


def test_gradient_that_may_still_grow_is_not_handed_over(make: Make) -> None:
    with pytest.raises(PrefixError, match="may still grow"):
        fill(make()).take_grad(0, 1)


def test_a_chunk_with_untaken_gradient_is_not_released(make: Make) -> None:
    store = fill(make())
    store.add_grad(1, torch.tensor([8]), torch.ones(1, 3))
    with pytest.raises(PrefixError, match="still holds gradient"):
        store.release(2)
    store.take_grad(1, 2)
    store.release(2)
    assert store.length == 8
    with pytest.raises(PrefixError, match="not the last"):
        store.release(0)


def test_a_bfloat16_row_gathers_its_gradient_in_float32() -> None:
    shape = PageShape(row_width=1, key_widths=(0,), dtype=torch.bfloat16, grad_dtype=torch.float32)
    store = MemoryRowStore(shape, page_rows=2)
    store.append(0, ChunkRows(rows=(torch.ones(1, 1, dtype=torch.bfloat16),), keys=(None,)))
    for _ in range(3):
        store.add_grad(0, torch.tensor([0]), torch.tensor([[1 + 2**-12]]))
    assert store.take_grad(0, 0).item() == 3 + 3 * 2**-12  # bfloat16 would give 3


def test_pages_are_given_back_as_their_last_rows_go() -> None:
    given: list[Tensor] = []

    class Counting(ProcessMemory):
        def allocate(self, size: int) -> Tensor:
            given.append(super().allocate(size))
            return given[-1]

    store = PagedRowStore(SHAPE, Counting(), page_rows=3)
    fill(store)
    store.add_grad(0, torch.arange(10), torch.ones(10, 3))
    assert len(given) == 4 + 4  # pages of rows, and of their gradient
    held = []
    for chunk in (2, 1, 0):
        for layer in (0, 1):
            store.take_grad(layer, chunk)
        store.release(chunk)
        held.append(len(store._pages))
    assert held == [3, 2, 0]


def test_the_witness_shows_a_write_behind_the_stores_back(make: Make) -> None:
    store = fill(make())
    before = store.witness()
    assert store.witness() == before
    assert (before.chunks, before.rows, before.page_bytes) == (3, 10, 10 * 4 * (3 + 3 + 2))
    store._pages[0].rows[1][0, 0] += 1
    assert store.witness() != before


def test_a_store_has_one_owner_under_one_set_of_weights(make: Make) -> None:
    store = make()
    store.claim("policy", "ab")
    assert (store.witness().owner, store.witness().weights) == ("policy", "ab")
    for owner in ("policy", "reference"):
        with pytest.raises(PrefixError, match="belongs to policy"):
            store.claim(owner, "ab")
    with pytest.raises(PrefixError, match="nobody, and holds rows"):
        fill(make()).claim("policy", "ab")


def test_rows_outside_the_pages_are_refused(make: Make) -> None:
    store = make()
    store.append(0, rows_of(0, 2))  # its page may have room for more
    for ids in ([2], [0, 2], [-1, 0]):
        with pytest.raises(PrefixError, match="outside"):
            store.rows(0, torch.tensor(ids))


def test_leaves_are_the_hash_of_each_rows_bytes_by_layer(make: Make) -> None:
    want = [
        hashlib.sha256(struct.pack("<3f2f3f", *[n] * 3, *[n] * 2, *[10 * n] * 3)).digest() for n in (4.0, 5.0, 6.0, 7.0)
    ]
    assert [bytes(leaf.tolist()) for leaf in fill(make()).chunk_leaves(1)] == want


def test_mapped_pages_lie_in_a_private_directory_without_names_and_leave_nothing(tmp_path: Path) -> None:
    memory = MappedFiles(tmp_path)
    store = PagedRowStore(SHAPE, memory, page_rows=4)
    fill(store)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not any(folder.iterdir())
    mapped = Path("/proc/self/maps").read_text().count(f"{folder}/page (deleted)")
    assert mapped == 3
    store.close()
    store.close()
    assert not any(tmp_path.iterdir())
    with pytest.raises(OSError, match="closed"):
        memory.allocate(8)


def test_a_disk_without_room_fails_the_append_and_not_a_later_write(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:  # the limit holds for a whole process and cannot be raised again
        code = 1
        try:
            store = PagedRowStore(SHAPE, MappedFiles(tmp_path), page_rows=4)
            store.append(0, rows_of(0, 4))
            before = store.witness()
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
            try:
                store.append(1, rows_of(4, 8))
            except OSError:
                code = 0 if store.witness() == before else 2
            store.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not any(tmp_path.iterdir())
