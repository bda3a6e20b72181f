"""At thousands of tokens in float32 the gradient does not depend on ranks, chunks, pages or route.

With the choices of one layout forced on all, only rounding is left. Free-running, a layout may choose other rows only
where scores nearly tie; each such row is looked at, by its scores in float64, and counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.model import attention
from mint2m_trainer.model.indexer import IndexQuery
from mint2m_trainer.model.seam import Passage

sys.path.insert(0, str(Path(__file__).parent))  # a rank's process has only this file
from prefix_sessions import Choices, Cut, Forcing, Watching, gradients, policy, relative, session

RESPONSES = (48, 3)
BASE = Cut(chunk=512, page_rows=64, decisions="rescore")

#: By prompt tokens and ranks, the cuts that are tried.
LAYOUTS = {
    (4097, 1): [Cut(chunk=4096, page_rows=8), Cut(chunk=333, page_rows=1024)],
    (4097, 2): [Cut(chunk=512, page_rows=8), Cut(chunk=1024, page_rows=64, route="lse")],
    (4097, 4): [Cut(chunk=500, page_rows=64), Cut(chunk=4096, page_rows=8)],
    (32769, 1): [Cut(chunk=2048, page_rows=8)],
    (32769, 2): [Cut(chunk=1000, page_rows=64)],
}

Result = tuple[dict[str, Tensor], Choices]


def run_of(comm: Comm, snapshot: Path, prompt: int, cut: Cut, given: Choices | None) -> Result:
    """Gradient and this rank's choices; the choices `given`, or its own where None."""
    made = policy(comm, snapshot, dtype="float32")
    watching = Watching(cut.decisions)
    decisions = watching if given is None else Forcing(given)
    run = session(made, comm, "exact", prompt=prompt, responses=RESPONSES, cut=cut, decisions=decisions)
    return gradients(made, run, "exact")[0], watching.noted


def layouts_of(comm: Comm, snapshot: Path, prompt: int, cuts: list[Cut], given: Choices | None) -> list[Result]:
    return [run_of(comm, snapshot, prompt, cut, given) for cut in cuts]


@dataclass(slots=True)
class Scored:
    """Index queries, head weights and keys of the base layout, by (pass, layer), rows in order of position."""

    prompt: int
    parts: dict[tuple[str, int], list[tuple[int, Tensor, Tensor, Tensor]]] = field(default_factory=dict)

    def note(self, query: IndexQuery, keys: Tensor, passage: Passage, layer: int) -> None:
        first = int(passage.positions[0])
        kept = (first, query.q.double(), query.weights.double(), keys.double())
        self.parts.setdefault((passage.phase, layer), []).append(kept)

    def score(self, phase: str, layer: int, position: int, rows: list[int]) -> list[float]:
        """Float64 scores of `rows` for the query at `position`."""
        found = []
        for part in self.parts[phase, layer]:
            if part[0] <= position < part[0] + part[1].shape[0]:
                q, w = part[1][position - part[0]], part[2][position - part[0]]  # [H, W], [H]
        for row in rows:
            for name in dict.fromkeys(("policy.capture", phase)):
                for first, _, _, keys in self.parts[name, layer]:
                    if first <= row < first + keys.shape[0] and (name == phase or row < self.prompt - 1):
                        found.append(float((w * (q @ keys[row - first]).relu()).sum()))
                        break
        assert len(found) == len(rows)
        return found


Base = Callable[[int], tuple[Result, Scored]]


@pytest.fixture
def base(single: Comm, small_snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> Base:
    """One rank, chunks of 512, choosing for itself."""

    def of(prompt: int) -> tuple[Result, Scored]:
        scored, choose = Scored(prompt), attention.choose_rows

        def noted(query: IndexQuery, keys: Tensor, passage: Passage, **options: Any) -> Tensor:
            if not passage.phase.endswith(".reverse"):
                scored.note(query, keys, passage, options["layer"])
            return choose(query, keys, passage, **options)

        with monkeypatch.context() as patched:
            patched.setattr(attention, "choose_rows", noted)
            return run_of(single, small_snapshot, prompt, BASE, None), scored

    return of


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "world"), LAYOUTS)
def test_with_one_layouts_choices_every_layout_has_its_gradient(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path, base: Base, prompt: int, world: int
) -> None:
    (gradient, chosen), _ = base(prompt)
    cuts = LAYOUTS[prompt, world]
    results = layouts_of(single, small_snapshot, prompt, cuts, chosen) if world == 1 else None
    every = ranks(layouts_of, world, small_snapshot, prompt, cuts, chosen) if results is None else [results]
    for number, cut in enumerate(cuts):
        for rank in every:
            difference = relative(rank[number][0], gradient)
            print(f"{prompt} tokens, {world} ranks, {cut}: forced {difference:.2e}")
            # Merging partial attention rounds once more in every layer; the rows of `fetch` are bit for bit the same.
            assert difference <= (1e-6 if cut.route == "fetch" else 2e-6), cut


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "world"), [layout for layout in LAYOUTS if layout[0] == 4097])
def test_free_running_layouts_choose_otherwise_only_where_scores_nearly_tie(
    ranks: Callable[..., list[Any]], single: Comm, small_snapshot: Path, base: Base, prompt: int, world: int
) -> None:
    (gradient, chosen), scored = base(prompt)
    cuts = LAYOUTS[prompt, world]
    every = (
        [layouts_of(single, small_snapshot, prompt, cuts, None)]
        if world == 1
        else ranks(layouts_of, world, small_snapshot, prompt, cuts, None)
    )
    for number, cut in enumerate(cuts):
        found: Choices = {}
        for rank in every:
            found |= rank[number][1]
        assert found.keys() == chosen.keys()
        assert sum(kind == "rows" for _, kind, _, _ in found) == 2 * (prompt - 1 + sum(RESPONSES))
        other, widest = 0, 0.0
        for (part, kind, layer, position), ids in found.items():
            due = chosen[part, kind, layer, position]
            if set(ids) == set(due) or kind != "rows":
                continue
            other += 1
            phase = "policy.capture" if part < 0 else f"policy.grpo-{part}"
            lost = scored.score(phase, layer, position, sorted(set(due) - set(ids)))
            taken = scored.score(phase, layer, position, sorted(set(ids) - set(due)))
            gap = max(lost) - min(taken)
            widest = max(widest, gap / max(abs(max(lost)), abs(min(taken))))
        difference = relative(every[0][number][0], gradient)
        print(
            f"{world} ranks, {cut}: {other} queries of {len(found)} chose otherwise, widest gap {widest:.1e}, "
            f"gradient {difference:.2e}"
        )
        assert widest <= 1e-5
        assert difference <= 1e-3
