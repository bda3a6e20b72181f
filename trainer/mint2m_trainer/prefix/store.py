"""Pages: the rows and indexer keys that one rank's prefix tokens left, and the gradient that returns to them.

Rows are numbered locally, in the order of their positions, and lie in pages of a fixed number of rows whatever the
chunks were. The store grows by a whole chunk and shrinks from the end: an append either commits or leaves no trace,
`pop` undoes the last one, and the reverse pass releases chunks as it passes them. What lies behind the last
committed row is never read, so an append that fails half-way has changed nothing. A witness taken at each boundary
shows any change made behind the store's back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mint2m_trainer.kernels import KeyBlock
from mint2m_trainer.prefix.pages import MappedFiles, PageMemory, ProcessMemory
from mint2m_trainer.prefix.rows import ChunkRows, PageShape, PrefixError, RowStore, Txn, Witness

#: Rows of keys that selection scans at once, from row 0 on, so that the cut does not depend on the page size.
KEY_BLOCK_ROWS = 1 << 13

#: Rows of a page unless the profile says otherwise.
PAGE_ROWS = 1024

StoreKind = Literal["memory", "mapped"]


@dataclass(slots=True, kw_only=True)
class _Page:
    """`page_rows` rows of every layer; gradient appears with the first that is added."""

    base: Tensor  # [bytes] uint8, what the others are views of
    rows: tuple[Tensor, ...]  # each [page_rows, D]
    keys: tuple[Tensor | None, ...]  # each [page_rows, W]
    grads: Tensor | None  # [layers, page_rows, D]


class PagedRowStore:
    """`RowStore` over any page memory."""

    def __init__(
        self,
        shape: PageShape,
        memory: PageMemory,
        *,
        page_rows: int = PAGE_ROWS,
        device: torch.device | None = None,
    ) -> None:
        """Pages lie on the CPU; rows and keys are handed out on `device`, the CPU where None."""
        if page_rows < 1:
            raise PrefixError(f"a page has at least one row, not {page_rows}")
        self._shape, self._memory, self._page_rows = shape, memory, page_rows
        self._device = torch.device("cpu") if device is None else device
        self._pages: list[_Page] = []
        self._ends: list[int] = []  # local id behind each chunk
        self._dirty = [0] * shape.layers  # gradient of this layer may lie before this local id
        self._version = 0
        self._owner = self._weights = ""

    @property
    def length(self) -> int:
        """Rows held, which is the local id of the next."""
        return self._ends[-1] if self._ends else 0

    @property
    def layers(self) -> int:
        """Layers that keep rows."""
        return self._shape.layers

    def claim(self, owner: str, weights: str) -> None:
        """Make the store `owner`'s, for pages under `weights`.

        Raises:
            PrefixError: it has an owner already; pages are never shared, nor used under two sets of weights.
        """
        if self._owner or self._ends:
            raise PrefixError(f"the store belongs to {self._owner or 'nobody, and holds rows'}")
        self._owner, self._weights = owner, weights

    def append(self, chunk: int, rows: ChunkRows) -> Txn:
        """Add the next chunk's rows: all of them, or none.

        Raises:
            PrefixError: the chunk is not the next one, or its tensors do not have the pages' shape.
            OSError, RuntimeError: there is no room for them.
        """
        if chunk != len(self._ends):
            raise PrefixError(f"chunk {chunk} does not follow {len(self._ends)} chunks")
        count = self._check(chunk, rows)
        start, stop = self.length, self.length + count
        pages = list(self._pages)
        while len(pages) * self._page_rows < stop:
            pages.append(self._new_page())
        for layer, (row, key) in enumerate(zip(rows.rows, rows.keys, strict=True)):
            for page, inside, outside in self._cut(pages, start, stop):
                # `data` has a version counter of its own: what the witness sees are writes of others.
                page.rows[layer].data[inside].copy_(row[outside])
                held = page.keys[layer]
                if held is not None and key is not None:
                    held.data[inside].copy_(key[outside])
        # Nothing above is visible; from here on nothing can fail.
        self._pages = pages
        self._ends.append(stop)
        self._version += 1
        return Txn(chunk=chunk, version=self._version)

    def _check(self, chunk: int, rows: ChunkRows) -> int:
        if len(rows.rows) != self._shape.layers or len(rows.keys) != self._shape.layers:
            raise PrefixError(f"chunk {chunk} has {len(rows.rows)} layers, not {self._shape.layers}")
        count = rows.rows[0].shape[0]
        for layer, (row, key, width) in enumerate(zip(rows.rows, rows.keys, self._shape.key_widths, strict=True)):
            want: list[tuple[Tensor | None, int]] = [(row, self._shape.row_width), (key, width)]
            for tensor, columns in want:
                if (tensor is None) != (columns == 0):
                    raise PrefixError(f"chunk {chunk} layer {layer}: keys where there are none, or none")
                if tensor is None:
                    continue
                if tuple(tensor.shape) != (count, columns) or tensor.dtype != self._shape.dtype:
                    raise PrefixError(
                        f"chunk {chunk} layer {layer}: expected [{count}, {columns}] "
                        f"{self._shape.dtype}, found {list(tensor.shape)} {tensor.dtype}"
                    )
        return count

    def pop(self, txn: Txn) -> None:
        """Undo an append that nothing followed.

        Raises:
            PrefixError: something changed since.
        """
        if txn.version != self._version or txn.chunk != len(self._ends) - 1:
            raise PrefixError(f"chunk {txn.chunk} is not the store's last change")
        self._shrink()

    def rows(self, layer: int, ids: Tensor) -> Tensor:
        """Rows of ascending local ids [N]: [N, D], without autograd."""
        local = ids.to("cpu")
        found = torch.empty(local.numel(), self._shape.row_width, dtype=self._shape.dtype)
        for page, inside, outside in self._by_page(local):
            torch.index_select(page.rows[layer], 0, inside, out=found[outside])
        return found.to(ids.device)

    def keys(self, layer: int) -> Iterator[KeyBlock]:
        """All keys of a layer, in blocks of `KEY_BLOCK_ROWS` from local id 0 on."""
        if not self._shape.key_widths[layer]:
            raise PrefixError(f"layer {layer} keeps no indexer keys")
        for start in range(0, self.length, KEY_BLOCK_ROWS):
            stop = min(start + KEY_BLOCK_ROWS, self.length)
            parts = [self._key_page(page, layer)[inside] for page, inside, _ in self._cut(self._pages, start, stop)]
            yield KeyBlock(start=start, keys=_joined(parts).to(self._device))

    def _key_page(self, page: _Page, layer: int) -> Tensor:
        key = page.keys[layer]
        if key is None:
            raise PrefixError(f"layer {layer} keeps no indexer keys")
        return key

    def chunk_rows(self, chunk: int) -> ChunkRows:
        """The stored rows of one chunk; views where the chunk lies in one page."""
        start, stop = self._bounds(chunk)
        cut = list(self._cut(self._pages, start, stop))
        empty = torch.empty(0, self._shape.row_width, dtype=self._shape.dtype)

        def rows(layer: int) -> Tensor:
            return _joined([page.rows[layer][inside] for page, inside, _ in cut]) if cut else empty

        def keys(layer: int) -> Tensor | None:
            width = self._shape.key_widths[layer]
            if not width:
                return None
            parts = [self._key_page(page, layer)[inside] for page, inside, _ in cut]
            return _joined(parts) if parts else empty.new_empty(0, width)

        layers = range(self._shape.layers)
        return ChunkRows(rows=tuple(map(rows, layers)), keys=tuple(map(keys, layers)))

    def chunk_leaves(self, chunk: int) -> Tensor:
        """SHA-256 of each stored row of a chunk over all layers, by layer, row before key: [n, 32] uint8."""
        held = self.chunk_rows(chunk)
        parts = [part for pair in zip(held.rows, held.keys, strict=True) for part in pair if part is not None]
        raw = torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1).numpy()  # [n, row_bytes]
        leaves = b"".join(hashlib.sha256(row).digest() for row in raw)
        return (
            torch.frombuffer(bytearray(leaves), dtype=torch.uint8).view(-1, 32)
            if leaves
            else torch.empty(0, 32, dtype=torch.uint8)
        )

    def add_grad(self, layer: int, ids: Tensor, grad: Tensor) -> None:
        """Add `grad` [N, D] to the gradient of the rows of ascending, distinct local ids [N]."""
        local, given = ids.to("cpu"), grad.to("cpu", self._shape.grad_dtype)
        for page, inside, outside in self._by_page(local):
            if page.grads is None:
                page.grads = self._new_gradient()
            page.grads[layer].index_add_(0, inside, given[outside])
        if local.numel():
            self._dirty[layer] = max(self._dirty[layer], int(local[-1]) + 1)

    def take_grad(self, layer: int, chunk: int) -> Tensor:
        """The gradient [n, D] gathered for the rows of the last chunk; the store holds it no more."""
        start, stop = self._bounds(chunk)
        if stop != self.length:
            raise PrefixError(f"chunk {chunk} is not the last: its gradient may still grow")
        taken = torch.zeros(stop - start, self._shape.row_width, dtype=self._shape.grad_dtype)
        for page, inside, outside in self._cut(self._pages, start, stop):
            if page.grads is not None:
                taken[outside] = page.grads[layer, inside]
                page.grads[layer, inside] = 0
        self._dirty[layer] = min(self._dirty[layer], start)
        return taken.to(self._device)

    def release(self, chunk: int) -> None:
        """Drop the last chunk, and every page that it alone was on.

        Raises:
            PrefixError: it is not the last, or a gradient in it was never taken.
        """
        start, _ = self._bounds(chunk)
        if chunk != len(self._ends) - 1:
            raise PrefixError(f"chunk {chunk} is not the last")
        if max(self._dirty) > start:
            raise PrefixError(f"chunk {chunk} still holds gradient")
        self._shrink()

    def gradient_pages(self) -> Iterator[tuple[int, Tensor]]:
        """Each page that holds gradient: its number, and [layers, page_rows, D]; a view."""
        yield from ((number, page.grads) for number, page in enumerate(self._pages) if page.grads is not None)

    def put_gradient_pages(self, pages: Iterable[tuple[int, Tensor]]) -> None:
        """Hold exactly this gradient, as `gradient_pages` gave it when the same rows were held; page by page.

        Raises:
            PrefixError: a page that is not there, or of another shape.
        """
        given = set()
        for number, grad in pages:
            if not 0 <= number < len(self._pages):
                raise PrefixError(f"no page {number} among {len(self._pages)}")
            page = self._pages[number]
            page.grads = self._new_gradient() if page.grads is None else page.grads
            if grad.shape != page.grads.shape or grad.dtype != page.grads.dtype:
                raise PrefixError(f"gradient of page {number}: {list(grad.shape)} {grad.dtype}")
            page.grads.copy_(grad)
            given.add(number)
        for number, page in enumerate(self._pages):
            if number not in given:
                page.grads = None
        self._dirty = [self.length if given else 0] * self._shape.layers

    def witness(self) -> Witness:
        """Owner, weights, and the identity of every page now: storage, autograd version counter, shape."""
        digest = hashlib.sha256()
        for page in self._pages:
            identity = (page.base.data_ptr(), page.base._version, tuple(page.base.shape))
            digest.update(repr(identity).encode())
        return Witness(
            owner=self._owner,
            weights=self._weights,
            version=self._version,
            chunks=len(self._ends),
            rows=self.length,
            page_bytes=self.length * self._shape.row_bytes,
            digest=digest.hexdigest(),
        )

    def close(self) -> None:
        """Drop all pages and their gradient; harmless twice."""
        self._pages, self._ends = [], []
        self._dirty = [0] * self._shape.layers
        self._version += 1
        self._memory.close()

    def _bounds(self, chunk: int) -> tuple[int, int]:
        if not 0 <= chunk < len(self._ends):
            raise PrefixError(f"no rows of chunk {chunk}")
        return self._ends[chunk - 1] if chunk else 0, self._ends[chunk]

    def _shrink(self) -> None:
        self._ends.pop()
        del self._pages[-(-self.length // self._page_rows) :]
        self._version += 1

    def _new_page(self) -> _Page:
        shape = self._shape
        base = self._memory.allocate(self._page_rows * shape.row_bytes)
        widths = [width for key in shape.key_widths for width in (shape.row_width, key)]
        parts = base.view(shape.dtype).split([self._page_rows * width for width in widths])
        views = [
            part.view(self._page_rows, width) if width else None for part, width in zip(parts, widths, strict=True)
        ]
        return _Page(
            base=base,
            rows=tuple(view for view in views[0::2] if view is not None),
            keys=tuple(views[1::2]),
            grads=None,
        )

    def _new_gradient(self) -> Tensor:
        """[layers, page_rows, D] of zeros, in the same memory as the rows."""
        shape = self._shape
        size = shape.layers * self._page_rows * shape.row_width * shape.grad_dtype.itemsize
        return self._memory.allocate(size).view(shape.grad_dtype).view(shape.layers, self._page_rows, shape.row_width)

    def _cut(self, pages: list[_Page], start: int, stop: int) -> Iterator[tuple[_Page, slice, slice]]:
        """Each page that rows [start, stop) touch: (page, rows within it, rows within the cut)."""
        low = start
        while low < stop:
            number, inside = divmod(low, self._page_rows)
            count = min(self._page_rows - inside, stop - low)
            yield pages[number], slice(inside, inside + count), slice(low - start, low - start + count)
            low += count

    def _by_page(self, ids: Tensor) -> Iterator[tuple[_Page, Tensor, slice]]:
        """Each page that ascending `ids` touch, with the rows within it and their place in `ids`."""
        if ids.numel() == 0:
            return
        first, last = int(ids[0]), int(ids[-1])
        if first < 0 or last >= self.length:
            raise PrefixError(f"rows {first} to {last} are outside the {self.length} rows held")
        numbers = range(first // self._page_rows, last // self._page_rows + 1)
        starts = torch.arange(numbers.start, numbers.stop, dtype=torch.int64) * self._page_rows
        bounds = [*torch.searchsorted(ids, starts).tolist(), ids.numel()]
        for number, low, high in zip(numbers, bounds, bounds[1:], strict=False):
            if high > low:
                yield self._pages[number], ids[low:high] - number * self._page_rows, slice(low, high)


class MemoryRowStore(PagedRowStore):
    """`RowStore` in this process's memory."""

    def __init__(self, shape: PageShape, *, page_rows: int = PAGE_ROWS, device: torch.device | None = None) -> None:
        super().__init__(shape, ProcessMemory(), page_rows=page_rows, device=device)


class MappedRowStore(PagedRowStore):
    """`RowStore` in mapped files, for a prefix larger than memory; see `MappedFiles`."""

    def __init__(self, shape: PageShape, *, page_rows: int = PAGE_ROWS, device: torch.device | None = None) -> None:
        super().__init__(shape, MappedFiles(), page_rows=page_rows, device=device)


def make_store(kind: StoreKind, shape: PageShape, *, page_rows: int, device: torch.device) -> RowStore:
    """The store that a profile names."""
    made = MappedRowStore if kind == "mapped" else MemoryRowStore
    return made(shape, page_rows=page_rows, device=device)


def _joined(parts: list[Tensor]) -> Tensor:
    """Rows of adjacent pages, without a copy where there is one part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
