"""Where one forward pass meets the resident prefix.

Megatron's layers pass hidden states only, while attention and routing need to know which tokens these are, what
lies before them and which choices to repeat. A `Passage` is that knowledge for one forward of one chunk; the
model's single `Seam` holds it while the forward runs and is empty otherwise. There is no state on a class and no
second owner, so two passes cannot read each other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.kernels import Kernels, KeyBlock
from mint2m_trainer.model.indexer import IndexQuery
from mint2m_trainer.model.position import Rotation
from mint2m_trainer.prefix.layout import Places, Share


class SeamError(Exception):
    """A layer ran outside a passage, or two passages met."""


class Prefix(Protocol):
    """This rank's rows before a chunk, as attention sees them. Ids are local; layers count from 0."""

    @property
    def keeps_gradient(self) -> bool:
        """Whether `add_grad` keeps what it is given."""
        ...

    def rows(self, layer: int, ids: Tensor) -> Tensor:
        """Rows of ascending local ids [N]: [N, D], without autograd."""
        ...

    def keys(self, layer: int) -> Iterator[KeyBlock]:
        """Indexer keys of this rank's rows, in local ids."""
        ...

    def add_grad(self, layer: int, ids: Tensor, grad: Tensor) -> None:
        """Take the gradient [N, D] of ascending, distinct local ids [N]."""
        ...


class Reach(Protocol):
    """How the queries of one pass reach the rows that a full indexer chose, wherever they lie."""

    def attend(self, q: Tensor, local: Tensor, layer: int) -> Tensor:
        """Attention over the chosen rows, differentiable.

        Args:
            q: absorbed queries, [T, H, D].
            local: this rank's rows of the pass, [T, D], float32 or float64, values of the pages' dtype.
            layer: whose prefix rows.

        Returns:
            [T, H, kv_rank].
        """
        ...


class Continuation(Protocol):
    """Responses under way, whose rows lie beside the pages; see `sampling.continuation`."""

    def reach(self, query: IndexQuery, keys: Tensor, passage: Passage, layer: int) -> Reach:
        """How this step's queries reach what a full-indexer layer selects for them; `keys` [count, W] are kept."""
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
    """What a layer left in this pass on this rank; a ghost leaves nothing."""

    local: Tensor  # [T, D] float32 or float64, on the autograd graph when there is one
    rows: Tensor  # [count, D] in the pages' dtype, without graph
    keys: Tensor | None  # [count, W], full-indexer layers only


@dataclass(slots=True, kw_only=True)
class Passage:
    """One forward of this rank's share of one span."""

    phase: str
    places: Places
    positions: Tensor  # [T] int64, T = share.rows
    rotation: Rotation
    prefix: Prefix | None
    tape: Tape
    comm: Comm
    kernels: Kernels
    keep_rows: bool
    rows_only: bool  # nothing behind the last layer's rows is wanted
    layers: list[LayerRows] = field(default_factory=list)
    reach: Reach | None = None  # to the rows that the last full indexer chose
    continuation: Continuation | None = None  # in a step of decoding

    @property
    def share(self) -> Share:
        """This rank's share of the span."""
        return self.places.share

    def tag(self, layer: int) -> Tag:
        """The ledger tag of a collective in `layer`."""
        return Tag(phase=self.phase, chunk=self.share.span.index, layer=layer)

    @property
    def gate(self) -> Tensor:
        """Which rows are tokens, [T] bool; all but a ghost's."""
        return torch.arange(self.share.rows, device=self.positions.device) < self.share.count


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
