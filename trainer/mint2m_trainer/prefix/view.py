"""The prefix as attention sees it: rows that take part in autograd without being leaves.

In an exact update the gradient of a fetched row goes straight to the store's gradient pages; nothing of the
prefix's size hangs on the graph. In a detached update it is dropped here, and only here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mint2m_trainer.kernels import KeyBlock
from mint2m_trainer.prefix.store import RowStore


class PrefixView:
    """`Prefix` over a row store; `exact` decides whether fetched rows pass their gradient on."""

    def __init__(self, store: RowStore, *, exact: bool) -> None:
        self._store, self._exact = store, exact
        # A fetched row needs an input that asks for gradient, or autograd would not call back.
        self._anchor = torch.zeros((), requires_grad=exact)

    @property
    def length(self) -> int:
        return self._store.length

    def rows(self, layer: int, ids: Tensor) -> Tensor:
        if not self._exact or not torch.is_grad_enabled():
            return self._store.rows(layer, ids)
        return _Fetch.apply(self._anchor, self._store, layer, ids)

    def keys(self, layer: int) -> Iterator[KeyBlock]:
        return self._store.keys(layer)


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, store: RowStore, layer: int, ids: Tensor) -> Tensor:
        ctx.store, ctx.layer, ctx.ids = store, layer, ids
        return store.rows(layer, ids)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.store.add_grad(ctx.layer, ctx.ids, grad)
        return None, None, None, None
