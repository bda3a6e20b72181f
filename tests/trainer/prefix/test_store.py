"""Pages as transactions: what an append, a pop, a release and a stranger's write leave behind."""

from __future__ import annotations

import pytest
import torch

from mint2m_trainer.prefix.layout import Layout
from mint2m_trainer.prefix.store import ChunkRows, MemoryRowStore, PageShape, PrefixError

SHAPE = PageShape(row_width=3, key_widths=(2, 0), dtype=torch.float32, grad_dtype=torch.float32)
SPANS = Layout(chunk=4, cp=1, rank=0).chunks(10)


def rows_of(index: int) -> ChunkRows:
    """Rows whose first column is their position, times ten in layer 1."""
    span = SPANS[index]
    positions = torch.arange(span.start, span.stop, dtype=torch.float32)[:, None]
    row = positions.expand(-1, 3).clone()
    return ChunkRows(rows=(row, row * 10), keys=(positions.expand(-1, 2).clone(), None))


def filled() -> MemoryRowStore:
    store = MemoryRowStore(SHAPE)
    for index, span in enumerate(SPANS):
        store.append(span, rows_of(index))
    return store


def test_rows_come_back_by_global_position_across_pages() -> None:
    store = filled()
    ids = torch.tensor([0, 3, 4, 9])
    assert store.rows(0, ids)[:, 0].tolist() == [0, 3, 4, 9]
    assert store.rows(1, ids)[:, 0].tolist() == [0, 30, 40, 90]
    assert store.rows(0, ids[:0]).shape == (0, 3)


def test_keys_come_back_whole_and_in_order() -> None:
    blocks = list(filled().keys(0))
    assert [block.start for block in blocks] == [0]
    assert blocks[0].keys[:, 0].tolist() == list(range(10))
    with pytest.raises(PrefixError, match="layer 1 keeps no indexer keys"):
        list(filled().keys(1))


def test_a_refused_append_leaves_no_trace() -> None:
    store = MemoryRowStore(SHAPE)
    store.append(SPANS[0], rows_of(0))
    before = store.witness()
    good = rows_of(1)
    for bad in (
        ChunkRows(rows=good.rows[:1], keys=good.keys[:1]),
        ChunkRows(rows=(good.rows[0], good.rows[1][:2]), keys=good.keys),
        ChunkRows(rows=(good.rows[0].double(), good.rows[1]), keys=good.keys),
        ChunkRows(rows=good.rows, keys=(None, None)),
        ChunkRows(rows=good.rows, keys=(good.keys[0], good.rows[0])),
    ):
        with pytest.raises(PrefixError):
            store.append(SPANS[1], bad)
        assert store.witness() == before
    with pytest.raises(PrefixError, match="does not follow"):
        store.append(SPANS[2], rows_of(2))
    assert store.witness() == before


def test_pop_undoes_the_last_append_and_only_that() -> None:
    store = MemoryRowStore(SHAPE)
    first = store.append(SPANS[0], rows_of(0))
    second = store.append(SPANS[1], rows_of(1))
    with pytest.raises(PrefixError, match="not the store's last change"):
        store.pop(first)
    store.pop(second)
    assert store.length == 4
    with pytest.raises(PrefixError):
        store.pop(second)


def test_stored_rows_are_copies() -> None:
    store, given = MemoryRowStore(SHAPE), rows_of(0)
    store.append(SPANS[0], given)
    given.rows[0].fill_(-1)
    assert store.rows(0, torch.tensor([2]))[0, 0] == 2


def test_gradient_of_a_row_is_the_sum_of_what_was_added() -> None:
    store = filled()
    store.add_grad(0, torch.tensor([3, 4, 9]), torch.ones(3, 3))
    store.add_grad(0, torch.tensor([4]), torch.full((1, 3), 2.0))
    assert store.take_grad(0, SPANS[1])[:, 0].tolist() == [3, 0, 0, 0]
    assert store.take_grad(0, SPANS[0])[:, 0].tolist() == [0, 0, 0, 1]
    assert store.take_grad(1, SPANS[0]).abs().sum() == 0


def test_a_page_with_untaken_gradient_is_not_released() -> None:
    store = filled()
    store.add_grad(1, torch.tensor([8]), torch.ones(1, 3))
    with pytest.raises(PrefixError, match="still holds gradient"):
        store.release(SPANS[2])
    store.take_grad(1, SPANS[2])
    store.release(SPANS[2])
    assert store.length == 8
    with pytest.raises(PrefixError, match="not the last page"):
        store.release(SPANS[0])


def test_the_witness_shows_a_write_behind_the_stores_back() -> None:
    store = filled()
    before = store.witness()
    assert store.witness() == before
    assert (before.chunks, before.rows, before.page_bytes) == (3, 10, 10 * 4 * (3 + 3 + 2))
    store.chunk_rows(SPANS[1]).rows[0][0, 0] += 1
    assert store.witness() != before


def test_rows_outside_the_pages_are_refused() -> None:
    with pytest.raises(PrefixError, match="outside"):
        filled().rows(0, torch.tensor([10]))
