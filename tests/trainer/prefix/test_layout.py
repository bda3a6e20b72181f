"""The cut of tokens into chunks and shares, counted by hand and by going through every position."""

from __future__ import annotations

import pytest
import torch

from mint2m_trainer.prefix.layout import Layout, Places, Span


def test_chunks_cover_the_prefix_once_and_only_the_last_is_short() -> None:
    spans = Layout(chunk=4, cp=1, rank=0).chunks(10)
    assert [(span.index, span.start, span.stop) for span in spans] == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]


def test_a_prefix_of_no_tokens_has_no_chunk() -> None:
    assert Layout(chunk=4, cp=2, rank=1).chunks(0) == ()


@pytest.mark.parametrize(
    ("tokens", "cp", "counts"), [(10, 3, (4, 3, 3)), (3, 32, (1, 1, 1) + (0,) * 29), (1, 2, (1, 0)), (8, 4, (2,) * 4)]
)
def test_shares_differ_by_at_most_one_and_are_adjacent(tokens: int, cp: int, counts: tuple[int, ...]) -> None:
    span = Span(index=0, start=100, stop=100 + tokens)
    shares = [Layout(chunk=64, cp=cp, rank=rank).share(span) for rank in range(cp)]
    assert all(share.counts == counts for share in shares)
    covered = [position for share in shares for position in range(tokens)[share.local]]
    assert covered == list(range(tokens))
    assert [share.rows for share in shares] == [max(count, 1) for count in counts]


@pytest.mark.parametrize("cp", [1, 2, 3, 7])
@pytest.mark.parametrize("chunk", [1, 3, 8, 10])
@pytest.mark.parametrize("prefix", [0, 1, 5, 8, 23, 24])
def test_every_row_has_one_owner_and_local_ids_count_a_ranks_rows_in_order(cp: int, chunk: int, prefix: int) -> None:
    layouts = [Layout(chunk=chunk, cp=cp, rank=rank) for rank in range(cp)]
    for tokens in (1, 2, 11):
        span = Span(index=len(layouts[0].chunks(prefix)), start=prefix, stop=prefix + tokens)
        held: list[list[int]] = [[] for _ in range(cp)]  # by walking through all shares
        before = [0] * cp
        for part in (*layouts[0].chunks(prefix), span):
            if part is span:
                before = [len(positions) for positions in held]
            for rank, positions in enumerate(held):
                positions.extend(range(part.start, part.stop)[layouts[rank].share(part).local])
        for rank, layout in enumerate(layouts):
            places = Places(layout=layout, prefix=prefix, share=layout.share(span))
            owner, local = places.locate(torch.arange(span.stop))
            assert [held[r][n] for r, n in zip(owner.tolist(), local.tolist(), strict=True)] == list(range(span.stop))
            assert places.positions(torch.arange(len(held[rank]))).tolist() == held[rank]
            assert places.own == before[rank]


def test_a_route_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'fetch' or 'lse'"):
        Layout(chunk=4, cp=1, rank=0, route="ring")  # type: ignore[arg-type]
