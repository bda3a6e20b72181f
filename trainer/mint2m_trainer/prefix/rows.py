"""What a rank keeps of the prefix, and what a store of it must offer.

Ids are local: a rank numbers its own rows in the order of their positions, and knows nothing of the rows of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mint2m_trainer.kernels import KeyBlock


class PrefixError(Exception):
    """Pages were used out of order, changed, or do not match what they should hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """What one chunk leaves on one rank: for each layer rows [n, D], and keys [n, W] or None; n may be 0."""

    rows: tuple[Tensor, ...]
    keys: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """A committed append; hand it to `pop` to undo it while it is the last."""

    chunk: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What the store was: whose, under which weights, its changes, chunks, rows, bytes, and each page's identity."""

    owner: str
    weights: str
    version: int
    chunks: int
    rows: int
    page_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageShape:
    """Widths and dtypes of the pages. `key_widths[layer]` is 0 where a layer keeps no keys."""

    row_width: int
    key_widths: tuple[int, ...]
    dtype: torch.dtype
    grad_dtype: torch.dtype

    @property
    def layers(self) -> int:
        """How many layers keep rows."""
        return len(self.key_widths)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token over all layers, keys included."""
        return (self.layers * self.row_width + sum(self.key_widths)) * self.dtype.itemsize


class RowStore(Protocol):
    """One rank's pages, in memory or mapped; ids are local, layers and chunks count from 0."""

    @property
    def length(self) -> int: ...

    @property
    def layers(self) -> int: ...

    def claim(self, owner: str, weights: str) -> None: ...

    def append(self, chunk: int, rows: ChunkRows) -> Txn: ...

    def pop(self, txn: Txn) -> None: ...

    def rows(self, layer: int, ids: Tensor) -> Tensor: ...

    def keys(self, layer: int) -> Iterator[KeyBlock]: ...

    def chunk_rows(self, chunk: int) -> ChunkRows: ...

    def chunk_leaves(self, chunk: int) -> Tensor: ...

    def add_grad(self, layer: int, ids: Tensor, grad: Tensor) -> None: ...

    def take_grad(self, layer: int, chunk: int) -> Tensor: ...

    def release(self, chunk: int) -> None: ...

    def gradient_pages(self) -> Iterator[tuple[int, Tensor]]: ...

    def put_gradient_pages(self, pages: Iterable[tuple[int, Tensor]]) -> None: ...

    def witness(self) -> Witness: ...

    def close(self) -> None: ...
