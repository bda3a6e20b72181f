"""Any number of ranks, chunks, pages and either route: the numbers of a brute-force model, and the same rows chosen.

The reference is `brute_force`: float64, whole sequences, plain autograd, Python's sort.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.kernels import TorchKernels
from mint2m_trainer.model.fetch import FetchReach
from mint2m_trainer.model.init_tiny import init_tiny
from mint2m_trainer.model.position import RotaryTable
from mint2m_trainer.model.seam import FreshChoice, Passage
from mint2m_trainer.model.selection import merge_candidates, rounds
from mint2m_trainer.model.spec import read_spec
from mint2m_trainer.prefix.layout import Layout, Places, Span
from mint2m_trainer.prefix.rows import ChunkRows, PageShape, PrefixError
from mint2m_trainer.prefix.store import MemoryRowStore
from mint2m_trainer.prefix.view import PrefixView

sys.path.insert(0, str(Path(__file__).parent))  # a rank's process has only this file
from brute_force import BruteForce
from prefix_sessions import (
    ALPHA,
    PROMPT,
    RANK,
    RESPONSES,
    Choices,
    Cut,
    Watching,
    gradients,
    policy,
    relative,
    session,
    token_ids,
    weighted,
)

#: Half of the rows have no positive score for one index head, and a query keeps more than the other half.
TIED = {"index_n_heads": 1, "index_topk": 24}

CUTS = [
    Cut(chunk=16, page_rows=8),
    Cut(chunk=5, page_rows=64, decisions="rescore"),
    Cut(chunk=64, page_rows=8, route="lse"),
    Cut(chunk=5, page_rows=8, route="lse", store="mapped"),
]

Right = tuple[dict[str, Tensor], list[Tensor], Choices]


def adapters_of(comm: Comm, snapshot: Path) -> dict[str, Tensor]:
    return dict(policy(comm, snapshot, angle_dtype="float64").adapter_tensors("test"))


def brute_force(snapshot: Path, adapters: dict[str, Tensor]) -> Right:
    """Gradient, log-probs and choices; a row's choices are those of its position, whichever response follows."""
    model = BruteForce(snapshot, adapters, ALPHA / RANK)
    prompt, responses = token_ids()
    gradient, found = model.gradient(prompt.tolist(), [tail.tolist() for tail in responses])
    full = [n for n, kind in enumerate(model.config["indexer_types"]) if kind == "full"]
    chosen: Choices = {}
    for response, (_, rows) in enumerate(found):
        for layer in full:
            for position, ids in enumerate(rows[layer]):
                chosen[-1 if position < PROMPT - 1 else response, "rows", layer, position] = tuple(ids)
    return gradient, [logp for logp, _ in found], chosen


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Comm, Path], Right]:
    """The brute-force values of a snapshot, made once."""
    made: dict[Path, Right] = {}

    def of(comm: Comm, snapshot: Path) -> Right:
        if snapshot not in made:
            made[snapshot] = brute_force(snapshot, adapters_of(comm, snapshot))
        return made[snapshot]

    return of


@pytest.fixture(scope="module")
def tied_snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from conftest import SMALL

    place = tmp_path_factory.mktemp("tied") / "snapshot"
    init_tiny(place, 11, {**SMALL, **TIED})
    return place


def laid_out(comm: Comm, snapshot: Path, cuts: list[Cut]) -> list[tuple[Any, ...]]:
    """Gradient, log-probs, this rank's choices, its rows and the pages' digest, of each cut."""
    results = []
    for cut in cuts:
        made = policy(comm, snapshot, angle_dtype="float64")
        watching = Watching(cut.decisions)
        run = session(made, comm, "exact", cut=cut, decisions=watching)
        found, logp = gradients(made, run, "exact")
        rows = sorted({key: sorted(i for i in ids if i >= 0) for key, ids in watching.noted.items()}.items())
        results.append((found, logp, [item for item in rows if item[0][1] == "rows"], run.witness, run.pages_sha256()))
    return results


def check(results: list[Any], right: Right, cuts: list[Cut]) -> None:
    gradient, right_logp, chosen = right
    for number, cut in enumerate(cuts):
        every: dict[Any, Any] = {}
        for rank in results:
            found, logp, rows, _, _ = rank[number]
            assert relative(found, gradient) < 1e-11, cut  # 1e-7 is asked for
            for mine, due in zip(logp, right_logp, strict=True):
                torch.testing.assert_close(mine, due, rtol=0, atol=1e-12)
            assert not every.keys() & dict(rows).keys()  # each row is chosen for by one rank
            every |= dict(rows)
        assert every == {key: list(ids) for key, ids in chosen.items()}, cut


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_layout_has_the_gradient_and_the_choices_of_the_brute_force_model(
    ranks: Callable[..., list[Any]],
    single: Comm,
    small_snapshot: Path,
    right: Callable[[Comm, Path], Right],
    world: int,
) -> None:
    due = right(single, small_snapshot)
    results = [laid_out(single, small_snapshot, CUTS)] if world == 1 else ranks(laid_out, world, small_snapshot, CUTS)
    check(results, due, CUTS)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ties_over_half_of_the_rows_are_cut_by_position_on_any_number_of_ranks(
    ranks: Callable[..., list[Any]],
    single: Comm,
    tied_snapshot: Path,
    right: Callable[[Comm, Path], Right],
    world: int,
) -> None:
    due, cuts = right(single, tied_snapshot), CUTS[1:3]
    check(
        [laid_out(single, tied_snapshot, cuts)] if world == 1 else ranks(laid_out, world, tied_snapshot, cuts),
        due,
        cuts,
    )


def test_ranks_hold_their_own_rows_only_and_one_digest_speaks_for_all(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path
) -> None:
    alone = laid_out(single, small_snapshot, CUTS[:1])[0]
    for world in (2, 4):
        results = [rank[0] for rank in ranks(laid_out, world, small_snapshot, CUTS[:1])]
        held = [witness.rows for _, _, _, witness, _ in results]
        # 36 rows in chunks of 16, 16 and 4.
        assert held == {2: [18, 18], 4: [9, 9, 9, 9]}[world]
        assert sum(witness.page_bytes for _, _, _, witness, _ in results) == alone[3].page_bytes
        assert len({digest for *_, digest in results}) == 1


def off_by_one_bit(comm: Comm, snapshot: Path, layers: tuple[tuple[int, ...], ...]) -> str:
    """What stops the reverse pass after a bit of the first row of some layers was flipped; `layers` by rank."""
    made = policy(comm, snapshot)
    run = session(made, comm, "exact", chunk=16)
    run.capture()
    for response in range(len(RESPONSES)):
        run.replay(response, weighted)
    for layer in layers[comm.rank]:  # behind the witness's back: the comparison must see it by itself
        run._store._pages[0].rows[layer].view(torch.int64)[0, 0] ^= 1
    run._witness = run._store.witness()
    try:
        run.reverse()
    except PrefixError as fault:
        return str(fault)
    return "reversed"


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param(((), (2,)), id="one rank"),
        pytest.param(((3,), (2, 3)), id="both ranks, and this one in a lower layer"),
    ],
)
def test_a_row_that_differs_stops_all_ranks_and_the_first_layer_is_named_with_its_rank(
    ranks: Callable[..., list[Any]], small_snapshot: Path, layers: tuple[tuple[int, ...], ...]
) -> None:
    said = ranks(off_by_one_bit, 2, small_snapshot, layers)
    assert said[0] == said[1]
    assert "chunk 0 layer 2: recomputed rows differ" in said[0]
    assert said[0].endswith("on rank 1")


def scored_twice(comm: Comm, snapshot: Path, route: str) -> list[float]:
    """|ratio - 1| of each response, the old scores from an earlier pass that selected for itself."""
    made = policy(comm, snapshot, dtype="float32")
    run = session(made, comm, "exact", route=route, chunk=5)
    run.capture()
    old = [run.score(response) for response in range(len(RESPONSES))]
    new = [run.replay(response, weighted).logp for response in range(len(RESPONSES))]
    run.reverse()
    return [float(((a - b).exp() - 1).abs().max()) for a, b in zip(new, old, strict=True)]


@pytest.mark.parametrize("route", ["fetch", "lse"])
def test_on_policy_every_ratio_is_exactly_one_on_sharded_pages(
    ranks: Callable[..., list[Any]], small_snapshot: Path, route: str
) -> None:
    assert ranks(scored_twice, 2, small_snapshot, route) == [[0.0] * 3] * 2


def in_bfloat16(comm: Comm, snapshot: Path, route: str) -> tuple[Any, ...]:
    made = policy(comm, snapshot, dtype="bfloat16")
    return gradients(made, session(made, comm, "exact", route=route), "exact")


@pytest.mark.parametrize("route", ["fetch", "lse"])
def test_bfloat16_pages_of_two_ranks_reverse_bit_for_bit_near_the_right_gradient(
    ranks: Callable[..., list[Any]],
    single: Comm,
    small_snapshot: Path,
    right: Callable[[Comm, Path], Right],
    route: str,
) -> None:
    due = right(single, small_snapshot)[0]
    (found, _), (other, _) = ranks(in_bfloat16, 2, small_snapshot, route)
    assert all(torch.equal(found[name], other[name]) for name in found)
    cosine = sum(float((found[name].double() * due[name]).sum()) for name in due)
    norms = [sum(float(v.double().square().sum()) for v in side.values()) ** 0.5 for side in (found, due)]
    assert cosine / (norms[0] * norms[1]) > 0.95


def returned(comm: Comm, snapshot: Path) -> tuple[list[float], list[list[float]]]:
    """Gradient of this rank's row of the pass, and of its prefix row, where every rank's query chose rows 0 and 3."""
    layout, spec = Layout(chunk=3, cp=comm.size, rank=comm.rank), read_spec(snapshot)
    share = layout.share(Span(index=1, start=3, stop=6))  # a row of the prefix and one of the pass on each of 3 ranks
    shape = PageShape(row_width=1, key_widths=(0,), dtype=torch.float64, grad_dtype=torch.float64)
    store = MemoryRowStore(shape)
    store.append(0, ChunkRows(rows=(torch.full((1, 1), 10.0 + comm.rank, dtype=torch.float64),), keys=(None,)))
    positions = torch.arange(3 + comm.rank, 4 + comm.rank)
    passage = Passage(
        phase="test",
        places=Places(layout=layout, prefix=3, share=share),
        positions=positions,
        rotation=RotaryTable(spec, "float64").rotation(positions, torch.float64),
        prefix=PrefixView(store, exact=True),
        tape=FreshChoice(),
        comm=comm,
        kernels=TorchKernels(query_tile=1),
        keep_rows=False,
        rows_only=False,
    )
    reach = FetchReach(torch.tensor([[3, 0]]), passage, spec, torch.float64, 0)
    own = torch.full((1, 1), 20.0 + comm.rank, dtype=torch.float64)
    table = reach.fetch(own, 0, "rows")
    grad = torch.tensor([[1e16], [1.0], [-1e16]], dtype=torch.float64)[comm.rank].expand(2, 1)
    mine = reach.give_back(grad.contiguous(), own, 0)
    return table.flatten().tolist(), [mine.flatten().tolist(), store.take_grad(0, 0).flatten().tolist()]


def test_rows_come_from_their_owner_and_gradient_returns_to_it_in_the_order_of_ranks(
    ranks: Callable[..., list[Any]], small_snapshot: Path
) -> None:
    first, second, third = ranks(returned, 3, small_snapshot)
    assert first[0] == second[0] == third[0] == [10.0, 20.0]  # by owner, then position
    # (1e16 + 1) - 1e16 is 0 in float64; any other order gives 1.
    assert first[1] == [[0.0], [0.0]]
    assert second[1] == third[1] == [[0.0], [0.0]]


def ledgers(comm: Comm, snapshot: Path) -> str:
    made = policy(comm, snapshot)
    gradients(made, session(made, comm, "exact", chunk=3, prompt=9), "exact")
    comm.agree("all")
    return comm.ledger.digest()


def test_ranks_without_a_token_take_the_same_collectives(ranks: Callable[..., list[Any]], small_snapshot: Path) -> None:
    # Chunks of three and two tokens, a response of one, over four ranks.
    assert len(set(ranks(ledgers, 4, small_snapshot))) == 1


def test_rounds_cover_every_query_once_and_are_the_same_on_all_ranks() -> None:
    for counts in [(5, 5, 4), (1, 0), (700, 700), (3,) * 1000, (2000,)]:
        covered = [0] * len(counts)
        for start, parts in rounds(counts):
            for rank, part in enumerate(parts):
                assert part == 0 or start == covered[rank]
                covered[rank] += part
            assert sum(parts) <= max(512, len(counts))
        assert covered == list(counts)


@pytest.mark.parametrize("zeros", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("world", [1, 2, 4, 7])
def test_merged_candidates_are_those_of_one_sort_over_all_rows(world: int, zeros: float) -> None:
    generator = torch.Generator().manual_seed(world)
    scores = torch.randn(16, 53, generator=generator)
    scores[torch.rand(16, 53, generator=generator) < zeros] = -0.0
    scores[:, ::5] += 0.0  # equal to its neighbour by value and not by bits
    k, parts, places = 8, [], []
    for rank in range(world):
        mine = torch.arange(53)[rank::world]
        order = [sorted(mine.tolist(), key=lambda s, t=t: (-float(scores[t, s]), s))[:k] for t in range(16)]
        padded = torch.tensor([[*row, *[-1] * (k - len(row))] for row in order])
        places.append(padded)
        parts.append(scores.gather(1, padded.clamp(min=0)).masked_fill(padded < 0, float("-inf")))
    due = [sorted(range(53), key=lambda s, t=t: (-float(scores[t, s]), s))[:k] for t in range(16)]
    assert merge_candidates(torch.stack(parts[::-1]), torch.stack(places[::-1]), k).tolist() == due


def resident(comm: Comm, snapshot: Path, prompt: int) -> dict[str, int]:
    """Bytes that a rank holds of the prefix: after capture, and of gradient when its last chunk was reversed."""
    made = policy(comm, snapshot, dtype="float32")
    watching = Watching()
    run = session(made, comm, "exact", chunk=256, page_rows=64, prompt=prompt, decisions=watching)
    run.capture()
    held = {"pages": sum(page.base.numel() for page in run._store._pages), "decisions": watching.held_bytes}
    for response in range(len(RESPONSES)):
        run.replay(response, weighted)

    def look(done: int, _total: int) -> None:
        if done == 256:  # tokens: one chunk
            grads = [page.grads for page in run._store._pages]
            held["gradient"] = sum(grad.numel() * grad.element_size() for grad in grads if grad is not None)

    run.reverse(look)
    held["left"] = sum(page.base.numel() for page in run._store._pages) + watching.held_bytes
    return held


def test_what_a_rank_holds_of_the_prefix_falls_with_the_ranks(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path
) -> None:
    alone = resident(single, small_snapshot, 2049)
    # 2,048 rows of 24 in four layers and keys of 16 in two; 1,792 rows are left when the last chunk is reversed.
    assert alone["pages"] == 2048 * 4 * (4 * 24 + 2 * 16)
    assert alone["gradient"] == 1792 * 4 * 4 * 24
    for world in (2, 4):
        held = ranks(resident, world, small_snapshot, 2049)
        for kind in ("pages", "gradient", "decisions"):
            assert all(rank[kind] * world == alone[kind] for rank in held), kind
        assert all(rank["left"] == 0 for rank in held)
