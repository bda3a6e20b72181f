"""Short texts side by side in one pass: excerpts of watch logs, each seeing itself alone, with what is asked of them.

The rule: the texts of a batch share a passage and nothing else. Each token attends to all earlier tokens of its own
text, which the tape says in place of the indexer; its position is the one that it has in the whole log, so that
short texts teach the distances of long ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.contract.watch_log import Draws, excerpt, named, watch_log
from mint2m_trainer.kernels import Kernels
from mint2m_trainer.model.glm import PrefixModel
from mint2m_trainer.model.seam import Passage
from mint2m_trainer.prefix.layout import Layout, Places, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What texts are trained on: excerpts of at most `short` tokens from logs of `long`; how many a batch.

    `sure` is the probability that the answer to the question is taught, the other codes share the rest: the model
    learns to read and to doubt, and leaves something to learn.
    """

    short: int
    long: int
    count: int
    sure: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """T tokens of several texts, N of them asked for the token that follows."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64, in the whole log
    starts: Tensor  # [T] int64, where each token's own text begins in the batch
    asked: Tensor  # [N] int64, ascending
    answers: Tensor  # [N] int64

    @property
    def chosen(self) -> Tensor:
        """All earlier tokens of the own text and the token itself, [T, K]; -1 in an empty slot."""
        places = torch.arange(self.tokens.numel(), device=self.tokens.device)
        longest = int((places - self.starts).max()) + 1
        slots = self.starts[:, None] + torch.arange(longest, device=self.tokens.device)  # [T, K]
        return slots.masked_fill(slots > places[:, None], -1)

    def seen_by(self, queries: Tensor) -> Tensor:
        """The same of some tokens [N] as a mask over all, [N, T]."""
        places = torch.arange(self.tokens.numel(), device=self.tokens.device)
        return (places >= self.starts[queries, None]) & (places <= queries[:, None])


class WholeText:
    """A tape that looks at everything of the own text and chooses experts freshly."""

    def __init__(self, chosen: Tensor) -> None:
        self._chosen = chosen

    def rows(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        return self._chosen

    def experts(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        return choose()


def batch_of(seed: int, step: int, texts: Texts, device: torch.device) -> Batch:
    """The batch of one step, a function of seed and step."""
    draws = Draws(f"excerpts of {seed}", step)
    tokens: list[int] = []
    positions: list[int] = []
    starts: list[int] = []
    asked: list[int] = []
    answers: list[int] = []
    for _ in range(texts.count):
        log = watch_log(draws.below(2**53), tokens=texts.long)
        text = excerpt(log, draws, tokens=texts.short)
        start = len(tokens)
        tokens += text.tokens
        positions += text.positions
        starts += [start] * len(text.tokens)
        for place, (before, token) in enumerate(pairwise(text.tokens)):
            if named(before, token):
                asked.append(start + place)
                answers.append(token)
        asked.append(len(tokens) - 1)
        answers.append(ord(text.code))

    def made(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return Batch(
        tokens=made(tokens), positions=made(positions), starts=made(starts), asked=made(asked), answers=made(answers)
    )


def passage_of(batch: Batch, model: PrefixModel, comm: Comm, kernels: Kernels) -> Passage:
    """The pass that runs the whole batch, its rows kept for the indexer's lesson."""
    span = Span(index=0, start=0, stop=batch.tokens.numel())
    layout = Layout(chunk=span.tokens, cp=1, rank=0)
    return Passage(
        phase="pretrain",
        places=Places(layout=layout, prefix=0, share=layout.share(span)),
        positions=batch.positions,
        rotation=model.rotary.rotation(batch.positions, model.dtype),
        prefix=None,
        tape=WholeText(batch.chosen),
        comm=comm,
        kernels=kernels,
        keep_rows=True,
        rows_only=False,
    )
