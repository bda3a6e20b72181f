"""Discrete choices of the captured prefix, kept for the reverse pass.

Selection and routing are not differentiable; the gradient is that of the function with its choices held. With
`store` the choices of capture are kept and repeated when a chunk is recomputed. With `rescore` they are made
again, which is right only because a recomputed row must equal its stored row bit for bit. Keys are (chunk,
layer); a choice is taken exactly once, and one left over is a fault: another order of passes cannot repeat wrong
ids in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mint2m_trainer.model.seam import FreshChoice, Tape
from mint2m_trainer.prefix.layout import Share
from mint2m_trainer.prefix.rows import PrefixError

DecisionMode = Literal["store", "rescore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen in one layer for a chunk's rows on this rank: ids [T, K] of rows, or [T, k] of experts; int32."""

    kind: Literal["rows", "experts"]
    layer: int
    ids: Tensor


class Decisions:
    """The choices of one session's prefix on this rank."""

    def __init__(self, mode: DecisionMode) -> None:
        if mode not in ("store", "rescore"):
            raise PrefixError(f"decisions are 'store' or 'rescore', not {mode!r}")
        self.mode: DecisionMode = mode
        self._rows: dict[tuple[int, int], Tensor] = {}
        self._experts: dict[tuple[int, int], Tensor] = {}

    def recorder(self, share: Share) -> Tape:
        """The tape of a chunk's capture, for what this rank carries of it."""
        return _Record(self, share.span.index) if self.mode == "store" else FreshChoice()

    def replayer(self, share: Share) -> Tape:
        """The tape of a chunk's recomputation."""
        return _Repeat(self, share.span.index, share.rows) if self.mode == "store" else FreshChoice()

    def responder(self, share: Share, response: int) -> Tape:
        """The tape of a response's forward: its backward follows at once, so nothing is kept."""
        return FreshChoice()

    @property
    def held_bytes(self) -> int:
        """Memory of the kept ids."""
        kept = (*self._rows.values(), *self._experts.values())
        return sum(ids.numel() * ids.element_size() for ids in kept)

    def chosen(self, chunk: int) -> tuple[Choice, ...]:
        """What is kept of a chunk, by layer, rows before experts; nothing where choices are made again."""
        rows = sorted(layer for n, layer in self._rows if n == chunk)
        experts = sorted(layer for n, layer in self._experts if n == chunk)
        return (
            *(Choice(kind="rows", layer=layer, ids=self._rows[chunk, layer]) for layer in rows),
            *(Choice(kind="experts", layer=layer, ids=self._experts[chunk, layer]) for layer in experts),
        )

    def restore(self, chunk: int, choices: Sequence[Choice]) -> None:
        """Keep what an earlier capture of the same chunk chose."""
        for choice in choices:
            kept = self._rows if choice.kind == "rows" else self._experts
            self._keep(kept, chunk, choice.layer, choice.ids)

    def drop(self, chunk: int) -> None:
        """Forget a chunk whose reverse pass is over."""
        for kept in (self._rows, self._experts):
            for key in [key for key in kept if key[0] == chunk]:
                del kept[key]

    def finish(self) -> None:
        """All choices must have been repeated.

        Raises:
            PrefixError: some were not.
        """
        left = sorted({*self._rows, *self._experts})
        if left:
            raise PrefixError(f"{len(left)} decisions were never repeated, the first of chunk, layer {left[0]}")

    def clear(self) -> None:
        """Forget everything, on the way out of a failed update."""
        self._rows.clear()
        self._experts.clear()

    def _keep(self, kept: dict[tuple[int, int], Tensor], chunk: int, layer: int, ids: Tensor) -> None:
        if (chunk, layer) in kept:
            raise PrefixError(f"chunk {chunk} layer {layer} chose twice")
        if ids.numel() and int(ids.max()) > torch.iinfo(torch.int32).max:
            raise PrefixError(f"chunk {chunk} layer {layer}: an id beyond 32 bits")
        kept[chunk, layer] = ids.to(torch.int32)

    def _take(self, kept: dict[tuple[int, int], Tensor], chunk: int, layer: int, tokens: int) -> Tensor:
        ids = kept.pop((chunk, layer), None)
        if ids is None:
            raise PrefixError(f"chunk {chunk} layer {layer} has no decision to repeat")
        if ids.shape[0] != tokens:
            raise PrefixError(f"chunk {chunk} layer {layer} chose for {ids.shape[0]} rows, not {tokens}")
        return ids.to(torch.int64)


class _Record:
    def __init__(self, decisions: Decisions, chunk: int) -> None:
        self._decisions, self._chunk = decisions, chunk

    def rows(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        ids = choose()
        self._decisions._keep(self._decisions._rows, self._chunk, layer, ids)
        return ids

    def experts(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        ids = choose()
        self._decisions._keep(self._decisions._experts, self._chunk, layer, ids)
        return ids


class _Repeat:
    def __init__(self, decisions: Decisions, chunk: int, tokens: int) -> None:
        self._decisions, self._chunk, self._tokens = decisions, chunk, tokens

    def rows(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        return self._decisions._take(self._decisions._rows, self._chunk, layer, self._tokens)

    def experts(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        return self._decisions._take(self._decisions._experts, self._chunk, layer, self._tokens)
