"""The rows that each query keeps are those that Hugging Face's indexer keeps over the whole sequence, for every layout.

In float64 and without adapters, on the oracle's snapshots and prompts. Of equal scores Hugging Face's top-k keeps any;
here it is made to keep the lower positions, by a stable sort.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm

sys.path.insert(0, str(Path(__file__).parent))  # a rank's process has only this file
from prefix_sessions import Cut, Watching, policy, session

LAYOUTS = {
    1: [Cut(chunk=50, page_rows=64)],
    2: [Cut(chunk=16, page_rows=8), Cut(chunk=50, page_rows=64, route="lse")],
    4: [Cut(chunk=50, page_rows=8), Cut(chunk=4096, page_rows=64)],
}

#: Kept rows of a query, by (layer, position).
Kept = dict[tuple[int, int], frozenset[int]]


def kept_here(comm: Comm, snapshot: Path, prompt: list[int], response: list[int], cuts: list[Cut]) -> list[Kept]:
    """What this rank's queries of the prompt and of the response keep, for each cut."""
    found = []
    for cut in cuts:
        made = policy(comm, snapshot, dtype="float64")
        watching = Watching()
        tokens = torch.tensor(prompt), [torch.tensor(response)]
        run = session(made, comm, "exact", cut=cut, decisions=watching, tokens=tokens)
        with made.inner.base_only():
            run.capture()
            run.score(0)
        run.close()
        found.append(
            {
                (layer, position): frozenset(i for i in ids if i >= 0)
                for (_, kind, layer, position), ids in watching.noted.items()
                if kind == "rows"
            }
        )
    return found


@pytest.fixture(scope="module")
def kept_there() -> Callable[[Path, list[int]], Kept]:
    """Hugging Face's choice for every query of a sequence."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as theirs

    def of(snapshot: Path, tokens: list[int]) -> Kept:
        model = transformers.GlmMoeDsaForCausalLM.from_pretrained(
            snapshot, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        ).eval()
        kept: Kept = {}

        def note(module: Any, _inputs: Any, ids: Tensor) -> None:
            for position, chosen in enumerate(ids[0].tolist()):
                kept[module.layer_idx, position] = frozenset(i for i in chosen if i <= position)

        for module in model.modules():
            if isinstance(module, theirs.GlmMoeDsaIndexer):
                module.register_forward_hook(note)
        with pytest.MonkeyPatch.context() as patched, torch.no_grad():
            patched.setattr(Tensor, "topk", _by_position)
            model(torch.tensor([tokens]), use_cache=False)
        return kept

    return of


_TOPK = Tensor.topk


def _by_position(scores: Tensor, k: int, dim: int = -1, **options: Any) -> Any:
    """Index scores [1, T, S] by (score descending, position ascending); anything else as it was."""
    if scores.dim() != 3 or scores.shape[1] != scores.shape[2]:
        return _TOPK(scores, k, dim=dim, **options)
    values, indices = scores.sort(dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values[..., :k], indices[..., :k]))


@pytest.mark.parametrize("world", LAYOUTS)
@pytest.mark.parametrize("case", ["indexshare", "yarn"])
def test_every_layout_keeps_the_rows_that_hugging_face_keeps(
    shared: Callable[[str], Path],
    single: Comm,
    ranks: Callable[..., list[Any]],
    kept_there: Callable[[Path, list[int]], Kept],
    case: str,
    world: int,
) -> None:
    oracle = shared("oracle") / case
    rollout = json.loads((oracle / "rollout.json").read_text())
    prompt, response = rollout["prompt_tokens"], rollout["responses"][0]
    due = kept_there(oracle / "snapshot", [*prompt, *response[:-1]])
    assert any(len(ids) < position + 1 for (_, position), ids in due.items()), "nothing was left out"
    last = json.loads((oracle / "snapshot/config.json").read_text())["num_hidden_layers"] - 1
    for position in range(len(prompt) - 1):  # of the prefix the last layer leaves rows and looks at none
        due.pop((last, position), None)
    given = (oracle / "snapshot", prompt, response, LAYOUTS[world])
    every = [kept_here(single, *given)] if world == 1 else ranks(kept_here, world, *given)
    for number, cut in enumerate(LAYOUTS[world]):
        found: Kept = {}
        for rank in every:
            found |= rank[number]
        assert found == due, cut
