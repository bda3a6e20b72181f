"""Base weights trained on short texts by cross entropy, the indexer beside them on what attention looks at.

The rule: everything drawn follows from the seed, the step and a counter, and one thread adds in one order, so that the
same seed leaves the same bits on the same machine. The base trains whole, adapters there are none; the expert bias,
a choice and no weight, stays.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mint2m_trainer import compat  # first: it must precede megatron
from mint2m_trainer.comm.groups import Comm, close_comm, open_comm
from mint2m_trainer.comm.ledger import Ledger
from mint2m_trainer.contract.watch_log import CODES
from mint2m_trainer.faults import CausedError
from mint2m_trainer.kernels import Kernels, choose_kernels
from mint2m_trainer.model.glm import Bounds, LoraPlan, PrefixModel, build_model
from mint2m_trainer.model.names import slots
from mint2m_trainer.model.snapshot import load_snapshot
from mint2m_trainer.model.spec import read_spec
from mint2m_trainer.pretraining.batches import Batch, Texts, batch_of, passage_of
from mint2m_trainer.pretraining.index_lesson import Watcher, index_loss

#: Every so many tokens of a batch the indexer is asked too, besides those that are asked for an answer.
_INDEX_EVERY = 8

_TIMEOUT_S = 600.0


class PretrainingError(CausedError):
    """The loss stopped being a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Adam, with a learning rate that rises over `warm_up` steps and falls to zero as a cosine."""

    steps: int
    lr: float = 5e-3
    warm_up: int = 20
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        rise = min((step + 1) / self.warm_up, 1.0)
        return self.lr * rise * 0.5 * (1 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Losses of one step, means: of codes within the texts, of the answers, and of the indexer."""

    step: int
    codes: float
    answers: float
    index: float


def pretrained(
    snapshot: Path, seed: int, recipe: Recipe, texts: Texts, port: int, tell: Callable[[Lesson], None]
) -> Mapping[str, Tensor]:
    """The snapshot's tensors after training, by Hugging Face's names; in a process of its own.

    Raises:
        SpecError, SnapshotError: the snapshot is not a model of this family.
        PretrainingError: a loss that is not finite.
    """
    comm = open_comm(
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=port,
        ledger=Ledger(),
        timeout_seconds=_TIMEOUT_S,
    )
    try:
        return _train(snapshot, seed, recipe, texts, comm, tell)
    finally:
        del comm
        gc.collect()  # or modules would keep groups alive; see `close_comm`
        close_comm()


def _train(
    snapshot: Path, seed: int, recipe: Recipe, texts: Texts, comm: Comm, tell: Callable[[Lesson], None]
) -> Mapping[str, Tensor]:
    spec = read_spec(snapshot)
    model = build_model(
        spec,
        world_size=1,
        dtype="float32",
        angle_dtype="float32",
        lora=LoraPlan(rank=1, alpha=1.0, projections=frozenset()),
        bounds=Bounds(head_tokens=texts.short * texts.count, expert_tokens=texts.short * texts.count),
    )
    load_snapshot(model, spec, snapshot)
    weights = [parameter.requires_grad_(True) for parameter in model.parameters()]
    optimizer = torch.optim.Adam(weights, lr=recipe.lr, betas=recipe.betas)
    kernels = choose_kernels(compat.device(), model.dtype, texts.short)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        lesson, loss = _lesson(model, batch_of(seed, step, texts, compat.device()), texts.sure, comm, kernels, step)
        if not math.isfinite(float(loss.detach())):
            raise PretrainingError(f"the loss of step {step} is {float(loss.detach())}")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, recipe.clip, foreach=False)
        optimizer.step()
        tell(lesson)
    return {slot.name: slot.view.detach().cpu().clone().contiguous() for slot in slots(model, spec)}


def _lesson(
    model: PrefixModel, batch: Batch, sure: float, comm: Comm, kernels: Kernels, step: int
) -> tuple[Lesson, Tensor]:
    """The losses of a batch, and their sum on the graph."""
    passage = passage_of(batch, model, comm, kernels)
    watcher = Watcher()
    with watcher.over(model) as seen:
        logits = model.logits(batch.tokens, passage)[batch.asked]  # [N, V]
    final = batch.tokens[batch.asked] == ord("\n")  # [N]: the line feed behind the question
    codes = torch.nn.functional.cross_entropy(logits[~final], batch.answers[~final])
    answers = torch.nn.functional.cross_entropy(logits[final], _doubted(batch.answers[final], sure, logits.shape[1]))
    asking = torch.zeros(batch.tokens.numel(), dtype=torch.bool, device=batch.tokens.device)
    asking[batch.asked] = True
    asking[step % _INDEX_EVERY :: _INDEX_EVERY] = True
    queries = asking.nonzero().squeeze(1)
    index = index_loss(model, seen, passage, queries, batch.seen_by(queries))
    lesson = Lesson(
        step=step, codes=float(codes.detach()), answers=float(answers.detach()), index=float(index.detach())
    )
    return lesson, codes + answers + index


def _doubted(answers: Tensor, sure: float, vocab: int) -> Tensor:
    """What is taught of each answer, [N, V]: `sure` on the right code, the rest even over the others."""
    every = torch.tensor([ord(code) for code in CODES], device=answers.device)
    taught = torch.zeros(answers.numel(), vocab, device=answers.device)
    taught[:, every] = (1 - sure) / (len(CODES) - 1)
    return taught.scatter(1, answers[:, None], sure)
