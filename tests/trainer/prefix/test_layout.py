"""The cut of tokens into chunks and shares, counted by hand."""

from __future__ import annotations

import pytest

from mint2m_trainer.prefix.layout import Layout, Span


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


def test_a_route_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'lse' is not supported"):
        Layout(chunk=4, cp=1, rank=0, route="lse")
