"""Texts side by side in one pass: each is computed as if it were alone, and the indexer is taught what it should."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.kernels import choose_kernels
from mint2m_trainer.model.glm import Bounds, LoraPlan, PrefixModel, build_model
from mint2m_trainer.model.init_tiny import init_tiny
from mint2m_trainer.model.snapshot import load_snapshot
from mint2m_trainer.model.spec import read_spec
from mint2m_trainer.pretraining.batches import Batch, Texts, batch_of, passage_of
from mint2m_trainer.pretraining.index_lesson import Watcher, index_loss
from mint2m_trainer.pretraining.request import CONFIG, PretrainRequest, pretrain

TEXTS = Texts(short=80, long=512, count=3, sure=0.4)


@pytest.fixture
def model(tmp_path: Path, single: Comm) -> PrefixModel:
    """The model that is trained, before it is."""
    init_tiny(tmp_path / "model", 5, CONFIG)
    spec = read_spec(tmp_path / "model")
    made = build_model(
        spec,
        world_size=1,
        dtype="float32",
        angle_dtype="float32",
        lora=LoraPlan(rank=1, alpha=1.0, projections=frozenset()),
        bounds=Bounds(head_tokens=512, expert_tokens=512),
    )
    load_snapshot(made, spec, tmp_path / "model")
    return made


def alone(batch: Batch, text: slice) -> Batch:
    """One text of a batch as a batch."""
    tokens = batch.tokens[text]
    nothing = torch.empty(0, dtype=torch.int64)
    return Batch(
        tokens=tokens,
        positions=batch.positions[text],
        starts=torch.zeros_like(tokens),
        asked=nothing,
        answers=nothing,
    )


def slices(batch: Batch) -> list[slice]:
    edges = [*batch.starts.unique().tolist(), batch.tokens.numel()]
    return [slice(a, b) for a, b in pairwise(edges)]


@torch.no_grad()
def test_a_text_among_others_has_the_logits_of_the_text_alone(model: PrefixModel, single: Comm) -> None:
    kernels = choose_kernels(torch.device("cpu"), model.dtype, 64)
    batch = batch_of(1, 0, TEXTS, torch.device("cpu"))
    together = model.logits(batch.tokens, passage_of(batch, model, single, kernels))
    assert len(slices(batch)) == TEXTS.count
    for text in slices(batch):
        one = alone(batch, text)
        right = model.logits(one.tokens, passage_of(one, model, single, kernels))
        torch.testing.assert_close(together[text], right, rtol=1e-5, atol=1e-5)


def test_every_code_that_an_entry_names_is_asked_for_and_the_answer_last() -> None:
    batch = batch_of(1, 0, TEXTS, torch.device("cpu"))
    want = []
    for text in slices(batch):
        words = bytes(batch.tokens[text].tolist()).decode()
        named = [text.start + place - 1 for place, sign in enumerate(words) if sign in "ABCDEFGHIJ"]
        want += [*named, text.stop - 1]
    assert batch.asked.tolist() == want
    for place, answer in zip(batch.asked.tolist(), batch.answers.tolist(), strict=True):
        if batch.tokens[place] == ord(" "):
            assert batch.tokens[place + 1] == answer
        else:
            assert batch.tokens[place] == ord("\n") and chr(answer) in "ABCDEFGHIJ"


def test_another_step_or_seed_is_another_batch_and_the_same_the_same() -> None:
    device = torch.device("cpu")
    first = batch_of(1, 0, TEXTS, device).tokens.tolist()
    assert batch_of(1, 0, TEXTS, device).tokens.tolist() == first
    assert batch_of(1, 1, TEXTS, device).tokens.tolist() != first
    assert batch_of(2, 0, TEXTS, device).tokens.tolist() != first


def _brute_force(model: PrefixModel, layer: int, seen: Watcher, rows: Tensor, rotated: Tensor, query: int) -> float:
    """Cross entropy of one query of the first text, in float64 and loops over keys."""
    attention, spec = model.decoder.layers[layer].self_attention, model.spec
    keep, indexer = seen.layers[layer], attention.indexer
    index = indexer(keep.hidden, keep.q_latent, rotated)
    scores, weights = [], []
    with torch.no_grad():
        q = attention.linear_q_up_proj(keep.q_latent[query])[0].view(spec.heads, spec.query_width).double()
        up = attention.linear_kv_up_proj.weight.double().view(spec.heads, -1, spec.kv_rank)[:, : spec.nope_width]
        turned = rotated.apply(q[:, spec.nope_width :].float()[None].expand(rows.shape[0], -1, -1))[query].double()
        for key in range(query + 1):
            score = sum(
                float(index.weights[query, head].double())
                * max(float(index.q[query, head].double() @ index.keys[key].double()), 0.0)
                for head in range(spec.index_heads)
            )
            scores.append(score)
            row = rows[key].double()
            heads = [
                float(q[head, : spec.nope_width] @ up[head] @ row[: spec.kv_rank] + turned[head] @ row[spec.kv_rank :])
                for head in range(spec.heads)
            ]
            weights.append(heads)
    logs = torch.tensor(scores, dtype=torch.float64).log_softmax(0)
    taught = (torch.tensor(weights, dtype=torch.float64) * spec.softmax_scale).softmax(0).mean(1)
    return -float(taught @ logs)


def test_the_indexer_is_held_against_the_weights_of_attention(model: PrefixModel, single: Comm) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    kernels = choose_kernels(torch.device("cpu"), model.dtype, 64)
    batch = batch_of(1, 0, replace(TEXTS, count=1), torch.device("cpu"))
    passage, watcher = passage_of(batch, model, single, kernels), Watcher()
    with watcher.over(model) as seen:
        model.logits(batch.tokens, passage)
    query = 40
    queries = torch.tensor([query])
    loss = index_loss(model, seen, passage, queries, batch.seen_by(queries))
    right = [
        _brute_force(model, layer, watcher, passage.layers[layer].local, passage.rotation, query) for layer in (0, 1)
    ]
    assert float(loss) == pytest.approx(sum(right) / 2, rel=1e-5)
    loss.backward()
    taught = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert taught and all(".indexer." in name for name in taught)


#: Texts that are long enough to be learned from, and no longer.
FEW = Texts(short=48, long=128, count=1, sure=0.4)


def trained(place: Path, seed: int) -> dict[str, str]:
    """Digests of what two steps from this seed leave."""
    result = pretrain(PretrainRequest(output=place, seed=seed, steps=2, texts=FEW, config=None))
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()}
    assert result.manifest.file_count == len(digests)
    return digests


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A snapshot that was trained from seed 3, and its digests."""
    place = tmp_path_factory.mktemp("trained") / "model"
    return place, trained(place, 3)


def test_the_same_seed_leaves_the_same_bytes_and_only_the_seed_decides(
    first: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    assert trained(tmp_path / "two", 3) == first[1]
    assert trained(tmp_path / "three", 4) != first[1]


def test_what_was_trained_is_what_transformers_loads(first: tuple[Path, dict[str, str]]) -> None:
    transformers = pytest.importorskip("transformers")
    _, info = transformers.GlmMoeDsaForCausalLM.from_pretrained(
        first[0], output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
