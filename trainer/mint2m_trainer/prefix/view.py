"""The prefix as attention sees it: this rank's rows and keys, and where their gradient goes.

In an exact update the gradient of a row goes straight to its owner's gradient pages; nothing of the prefix's size
hangs on the graph. In a detached update it is dropped here, and only here.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from mint2m_trainer.kernels import KeyBlock
from mint2m_trainer.prefix.rows import RowStore


class PrefixView:
    """`Prefix` over a row store; `exact` decides whether gradient is kept."""

    def __init__(self, store: RowStore, *, exact: bool) -> None:
        self._store, self._exact = store, exact

    @property
    def keeps_gradient(self) -> bool:
        return self._exact

    def rows(self, layer: int, ids: Tensor) -> Tensor:
        return self._store.rows(layer, ids)

    def keys(self, layer: int) -> Iterator[KeyBlock]:
        return self._store.keys(layer)

    def add_grad(self, layer: int, ids: Tensor, grad: Tensor) -> None:
        if self._exact:
            self._store.add_grad(layer, ids, grad)
