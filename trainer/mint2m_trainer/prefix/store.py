"""Pages: the rows and indexer keys that the prefix left, and the gradient that returns to them.

One page per chunk and layer. Pages only grow by a whole chunk and only shrink from the end: an append either
commits or leaves no trace, `pop` undoes the last one, and the reverse pass releases pages as it passes them. A
witness taken at each boundary shows any change made behind the store's back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mint2m_trainer.kernels import KeyBlock
from mint2m_trainer.prefix.layout import Span

#: Rows of keys that selection scans at once.
KEY_BLOCK_ROWS = 1 << 13


class PrefixError(Exception):
    """Pages were used out of order, changed, or do not match what they should hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """What one chunk leaves: for each layer rows [tokens, D], and keys [tokens, W] or None."""

    rows: tuple[Tensor, ...]
    keys: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """A committed append; hand it to `pop` to undo it while it is the last."""

    span: Span
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What the store was: number of changes, chunks, rows, bytes, and a digest of every page's identity."""

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


class RowStore(Protocol):
    """Pages in memory, memory-mapped or pinned; positions are global, layers count from 0."""

    @property
    def length(self) -> int: ...

    def append(self, span: Span, rows: ChunkRows) -> Txn: ...

    def pop(self, txn: Txn) -> None: ...

    def rows(self, layer: int, ids: Tensor) -> Tensor: ...

    def keys(self, layer: int) -> Iterator[KeyBlock]: ...

    def chunk_rows(self, span: Span) -> ChunkRows: ...

    def add_grad(self, layer: int, ids: Tensor, grad: Tensor) -> None: ...

    def take_grad(self, layer: int, span: Span) -> Tensor: ...

    def release(self, span: Span) -> None: ...

    def witness(self) -> Witness: ...

    def content_sha256(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class _Page:
    span: Span
    rows: list[Tensor]
    keys: list[Tensor | None]
    grads: list[Tensor | None]


class MemoryRowStore:
    """`RowStore` in this process's memory, on the device of the rows given to it."""

    def __init__(self, shape: PageShape) -> None:
        self._shape = shape
        self._pages: list[_Page] = []
        self._starts = torch.zeros(0, dtype=torch.int64)
        self._version = 0

    @property
    def length(self) -> int:
        """Rows held, which is the position the next chunk starts at."""
        return self._pages[-1].span.stop if self._pages else 0

    def append(self, span: Span, rows: ChunkRows) -> Txn:
        """Add the next chunk's page. Checked whole before anything changes.

        Raises:
            PrefixError: the chunk is not the next one, or its tensors do not have the pages' shape.
        """
        if span.index != len(self._pages) or span.start != self.length or span.tokens < 1:
            raise PrefixError(f"chunk {span.index} at {span.start} does not follow row {self.length}")
        self._check(span, rows)
        page = _Page(
            span=span,
            rows=[row.detach().clone() for row in rows.rows],
            keys=[None if key is None else key.detach().clone() for key in rows.keys],
            grads=[None] * self._shape.layers,
        )
        self._pages.append(page)
        self._changed()
        return Txn(span=span, version=self._version)

    def _check(self, span: Span, rows: ChunkRows) -> None:
        if len(rows.rows) != self._shape.layers or len(rows.keys) != self._shape.layers:
            raise PrefixError(f"chunk {span.index} has {len(rows.rows)} layers, not {self._shape.layers}")
        for layer, (row, key, width) in enumerate(zip(rows.rows, rows.keys, self._shape.key_widths, strict=True)):
            want: list[tuple[Tensor | None, int]] = [(row, self._shape.row_width), (key, width)]
            for tensor, columns in want:
                if (tensor is None) != (columns == 0):
                    raise PrefixError(f"chunk {span.index} layer {layer}: keys where there are none, or none")
                if tensor is None:
                    continue
                if tuple(tensor.shape) != (span.tokens, columns) or tensor.dtype != self._shape.dtype:
                    raise PrefixError(
                        f"chunk {span.index} layer {layer}: expected [{span.tokens}, {columns}] "
                        f"{self._shape.dtype}, found {list(tensor.shape)} {tensor.dtype}"
                    )

    def pop(self, txn: Txn) -> None:
        """Undo an append that nothing followed.

        Raises:
            PrefixError: something changed since.
        """
        if txn.version != self._version:
            raise PrefixError(f"chunk {txn.span.index} is not the store's last change")
        self._pages.pop()
        self._changed()

    def rows(self, layer: int, ids: Tensor) -> Tensor:
        """Rows at ascending positions `ids` [N]: [N, D], without autograd."""
        parts = [page.rows[layer][local] for page, local in self._by_page(ids)]
        if not parts:
            return torch.empty(0, self._shape.row_width, dtype=self._shape.dtype, device=ids.device)
        return torch.cat(parts)

    def keys(self, layer: int) -> Iterator[KeyBlock]:
        """All keys of a layer, in blocks of whole pages."""
        if not self._shape.key_widths[layer]:
            raise PrefixError(f"layer {layer} keeps no indexer keys")
        start, held, count = 0, [], 0
        for page in self._pages:
            key = page.keys[layer]
            if key is None:
                raise PrefixError(f"layer {layer} has no keys for chunk {page.span.index}")
            if not held:
                start = page.span.start
            held.append(key)
            count += key.shape[0]
            if count >= KEY_BLOCK_ROWS:
                yield KeyBlock(start=start, keys=torch.cat(held))
                held, count = [], 0
        if held:
            yield KeyBlock(start=start, keys=torch.cat(held))

    def chunk_rows(self, span: Span) -> ChunkRows:
        """The page of one chunk."""
        page = self._page(span)
        return ChunkRows(rows=tuple(page.rows), keys=tuple(page.keys))

    def add_grad(self, layer: int, ids: Tensor, grad: Tensor) -> None:
        """Add `grad` [N, D] to the gradient of the rows at ascending, distinct positions `ids` [N]."""
        offset = 0
        for page, local in self._by_page(ids):
            held = page.grads[layer]
            if held is None:
                held = page.rows[layer].new_zeros(page.rows[layer].shape, dtype=self._shape.grad_dtype)
                page.grads[layer] = held
            count = local.numel()
            held.index_add_(0, local, grad[offset : offset + count].to(held.dtype))
            offset += count

    def take_grad(self, layer: int, span: Span) -> Tensor:
        """The gradient [tokens, D] that this rank gathered for a chunk; it is handed over, not copied."""
        page = self._page(span)
        grad, page.grads[layer] = page.grads[layer], None
        if grad is None:
            return page.rows[layer].new_zeros(page.rows[layer].shape, dtype=self._shape.grad_dtype)
        return grad

    def release(self, span: Span) -> None:
        """Drop the last chunk's page.

        Raises:
            PrefixError: it is not the last, or a gradient in it was never taken.
        """
        page = self._page(span)
        if page is not self._pages[-1]:
            raise PrefixError(f"chunk {span.index} is not the last page")
        if any(grad is not None for grad in page.grads):
            raise PrefixError(f"chunk {span.index} still holds gradient")
        self._pages.pop()
        self._changed()

    def witness(self) -> Witness:
        """Identity of every page now: storage, autograd version counter, shape, dtype."""
        digest, page_bytes = hashlib.sha256(), 0
        for page in self._pages:
            for tensor in (*page.rows, *page.keys):
                if tensor is not None:
                    page_bytes += tensor.numel() * tensor.element_size()
                    identity = (tensor.data_ptr(), tensor._version, tuple(tensor.shape), str(tensor.dtype))
                    digest.update(repr(identity).encode())
        return Witness(
            version=self._version,
            chunks=len(self._pages),
            rows=self.length,
            page_bytes=page_bytes,
            digest=digest.hexdigest(),
        )

    def content_sha256(self) -> str:
        """SHA-256 over every page's bytes, by chunk, then layer, rows before keys."""
        digest = hashlib.sha256()
        for page in self._pages:
            for row, key in zip(page.rows, page.keys, strict=True):
                for tensor in (row, key):
                    if tensor is not None:
                        digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()

    def _page(self, span: Span) -> _Page:
        if span.index >= len(self._pages) or self._pages[span.index].span != span:
            raise PrefixError(f"no page of chunk {span.index} at {span.start}")
        return self._pages[span.index]

    def _by_page(self, ids: Tensor) -> Sequence[tuple[_Page, Tensor]]:
        """Each page that `ids` touch, with the rows within it."""
        if ids.numel() == 0:
            return ()
        if int(ids[0]) < 0 or int(ids[-1]) >= self.length:
            raise PrefixError(f"rows {int(ids[0])} to {int(ids[-1])} are outside {self.length} pages' rows")
        bounds = [*torch.searchsorted(ids, self._starts.to(ids.device)).tolist(), ids.numel()]
        return tuple(
            (page, ids[low:high] - page.span.start)
            for page, low, high in zip(self._pages, bounds, bounds[1:], strict=False)
            if high > low
        )

    def _changed(self) -> None:
        self._version += 1
        self._starts = torch.tensor([page.span.start for page in self._pages], dtype=torch.int64)
