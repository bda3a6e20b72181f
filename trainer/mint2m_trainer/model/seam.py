"""Where one forward pass meets the resident prefix.

Megatron's layers pass hidden states only, while attention and routing need to know which tokens these are, what
lies before them and which choices to repeat. A `Passage` is that knowledge for one forward of one chunk; the
model's single `Seam` holds it while the forward runs and is empty otherwise. There is no state on a class and no
second owner, so two passes cannot read each other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.kernels import Kernels, KeyBlock
from mint2m_trainer.model.position import Rotation
from mint2m_trainer.prefix.layout import Share


class SeamError(Exception):
    """A layer ran outside a passage, or two passages met."""


class Prefix(Protocol):
    """The rows before a chunk, as attention sees them. Positions are global; layers count from 0."""

    @property
    def length(self) -> int:
        """Rows before the chunk."""
        ...

    def rows(self, layer: int, ids: Tensor) -> Tensor:
        """Rows at ascending positions `ids` [N]: [N, D], differentiable where the gradient is kept."""
        ...

    def keys(self, layer: int) -> Iterator[KeyBlock]:
        """Indexer keys of all rows before the chunk."""
        ...


class Tape(Protocol):
    """What a pass does with its discrete choices: make them, keep them, or repeat kept ones."""

    def rows(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        """Chosen row positions of each query, [T, K], -1 in an empty slot."""
        ...

    def experts(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        """Chosen experts of each token, [T, k]."""
        ...


class FreshChoice:
    """A tape that keeps nothing."""

    def rows(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        return choose()

    def experts(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        return choose()


@dataclass(slots=True, kw_only=True)
class LayerRows:
    """What a layer left in this pass: own rows of this rank, and all ranks' rows and keys of the chunk."""

    local: Tensor  # [T, D], on the autograd graph when there is one
    rows: Tensor  # [tokens, D], without graph
    keys: Tensor | None  # [tokens, W], full-indexer layers only


@dataclass(slots=True, kw_only=True)
class Passage:
    """One forward of this rank's share of one span."""

    phase: str
    share: Share
    positions: Tensor  # [T] int64, T = share.rows
    rotation: Rotation
    prefix: Prefix | None
    tape: Tape
    comm: Comm
    kernels: Kernels
    keep_rows: bool
    rows_only: bool  # nothing behind the last layer's rows is wanted
    layers: list[LayerRows] = field(default_factory=list)
    chosen: Tensor | None = None  # [T, K] positions, of the last full indexer

    def tag(self, layer: int) -> Tag:
        """The ledger tag of a collective in `layer`."""
        return Tag(phase=self.phase, chunk=self.share.span.index, layer=layer)

    @property
    def gate(self) -> Tensor:
        """Which rows are tokens, [T] bool; all but a ghost's."""
        return torch.arange(self.share.rows, device=self.positions.device) < self.share.count

    @property
    def counts(self) -> Sequence[int]:
        """Tokens of each rank."""
        return self.share.counts


class Seam:
    """Holds the passage of the forward that is running."""

    def __init__(self) -> None:
        self._passage: Passage | None = None

    @contextmanager
    def carry(self, passage: Passage) -> Iterator[Passage]:
        """Make `passage` current until the block ends, however it ends."""
        if self._passage is not None:
            raise SeamError("a passage is open already")
        self._passage = passage
        try:
            yield passage
        finally:
            self._passage = None

    def current(self) -> Passage:
        """The open passage.

        Raises:
            SeamError: a layer was called outside a passage.
        """
        if self._passage is None:
            raise SeamError("no passage is open: call the model through its session")
        return self._passage
