"""What every layer did, token by token, in a few numbers: hidden states, selected rows, chosen experts.

The rule: an entry is a function of the token and its layer, never of the rank, chunk or tile that computed it. So
traces of runs under different layouts can be laid beside each other, position by position, and the first place where
they part is where to look. Of a hidden state two numbers are kept: its L2 norm and its product with a fixed direction
of unit length; of a choice, which is a set, a 48-bit fingerprint of its sorted ids. A difference that both numbers miss
would have to be orthogonal to a direction it cannot know.

Positions are sampled by a stride over global positions, so that what is kept is bounded and the same in every layout.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.model.glm import PrefixModel
from mint2m_trainer.model.seam import Passage, Tape

#: In the order in which a layer makes them.
Kind = Literal["rows", "experts", "hidden"]
KINDS: tuple[Kind, ...] = ("rows", "experts", "hidden")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePoint:
    """One layer of one pass on one rank: for each sampled token its position and its numbers.

    `values` hold (product, norm) for hidden states and (fingerprint,) for choices. `turn` counts the passes of this
    phase and chunk before this one: scoring runs every response under one name.
    """

    phase: str
    turn: int
    chunk: int
    layer: int
    kind: Kind
    positions: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """Everything that one rank traced, in the order in which it happened."""

    rank: int
    world_size: int
    stride: int
    points: tuple[TracePoint, ...]


class LayerTracer:
    """Traces every pass of one model while it is attached."""

    def __init__(self, *, stride: int, limit: int) -> None:
        """Keep tokens at positions divisible by `stride`, and at most `limit` numbers in all.

        Past the limit the tracer refuses: a trace that ends early would look like one that agrees.
        """
        if stride < 1 or limit < 1:
            raise InstrumentError(f"stride and limit are at least 1, not {stride} and {limit}")
        self._stride, self._limit = stride, limit
        self._points: list[TracePoint] = []
        self._kept = 0
        self._turns = Turns()
        self._rank: tuple[int, int] | None = None
        self._direction: Tensor | None = None

    @property
    def trace(self) -> RankTrace:
        """What was traced so far; raises `InstrumentError` where nothing was."""
        if self._rank is None:
            raise InstrumentError("nothing was traced")
        rank, world = self._rank
        return RankTrace(rank=rank, world_size=world, stride=self._stride, points=tuple(self._points))

    @contextmanager
    def attached(self, model: PrefixModel) -> Iterator[LayerTracer]:
        """Watch `model` until the block ends."""
        self._direction = direction(model.spec.hidden)
        with ExitStack() as hooks:
            handle = model.register_forward_pre_hook(self._begins, with_kwargs=True)
            hooks.callback(handle.remove)
            for index, layer in enumerate(model.decoder.layers):
                hooks.callback(layer.register_forward_hook(self._layer_hook(index, model)).remove)
            yield self

    def _begins(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        passage: Passage = kwargs["passage"] if "passage" in kwargs else args[1]
        self._rank = passage.comm.rank, passage.comm.size
        self._turns.begin(passage)
        passage.tape = WatchedTape(passage.tape, lambda kind, layer, ids: self._choice(passage, kind, layer, ids))

    def _layer_hook(self, layer: int, model: PrefixModel) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            passage = model.seam.current()
            if passage.rows_only and layer == model.spec.layers - 1:
                return  # a pass that makes rows leaves its last layer's output out
            hidden = (output[0] if isinstance(output, tuple) else output).detach()
            self._hidden(passage, layer, hidden.reshape(-1, hidden.shape[-1]))

        return hook

    def _hidden(self, passage: Passage, layer: int, hidden: Tensor) -> None:
        if self._direction is None:
            raise InstrumentError("the tracer is not attached")
        chosen, positions = self._sampled(passage)
        rows = hidden[chosen].double()  # [n, hidden]
        product = rows @ self._direction.to(rows.device)  # [n]
        values = torch.stack([product, rows.norm(dim=-1)], dim=1)  # [n, 2]
        self._keep(passage, layer, "hidden", positions, [tuple(row) for row in values.tolist()])

    def _choice(self, passage: Passage, kind: Kind, layer: int, ids: Tensor) -> None:
        chosen, positions = self._sampled(passage)
        prints = [(float(fingerprint(row)),) for row in ids[chosen].tolist()]
        self._keep(passage, layer, kind, positions, prints)

    def _sampled(self, passage: Passage) -> tuple[Tensor, tuple[int, ...]]:
        """Indices [n] of the sampled tokens among this rank's rows, and their positions; never a ghost's."""
        positions = passage.positions[: passage.share.count]
        chosen = (positions % self._stride == 0).nonzero().squeeze(1)
        return chosen, tuple(positions[chosen].tolist())

    def _keep(
        self,
        passage: Passage,
        layer: int,
        kind: Kind,
        positions: tuple[int, ...],
        values: Sequence[tuple[float, ...]],
    ) -> None:
        self._kept += sum(map(len, values))
        if self._kept > self._limit:
            raise InstrumentError(
                f"{passage.phase}, layer {layer}: the trace passed its limit of {self._limit} numbers"
            )
        self._points.append(
            TracePoint(
                phase=passage.phase,
                turn=self._turns.now,
                chunk=passage.share.span.index,
                layer=layer,
                kind=kind,
                positions=positions,
                values=tuple(values),
            )
        )


class Turns:
    """Counts passes by phase and chunk; `now` is the number of equal ones before the current."""

    def __init__(self) -> None:
        self._passes: Counter[tuple[str, int]] = Counter()
        self.now = 0

    def begin(self, passage: Passage) -> None:
        """A pass begins."""
        key = (passage.phase, passage.share.span.index)
        self.now = self._passes[key]
        self._passes[key] += 1


class WatchedTape:
    """A tape that shows its choices, made or repeated."""

    def __init__(self, tape: Tape, show: Callable[[Kind, int, Tensor], None]) -> None:
        self._tape, self._show = tape, show

    def rows(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        ids = self._tape.rows(layer, choose)
        self._show("rows", layer, ids)
        return ids

    def experts(self, layer: int, choose: Callable[[], Tensor]) -> Tensor:
        ids = self._tape.experts(layer, choose)
        self._show("experts", layer, ids)
        return ids


def fingerprint(ids: Sequence[int]) -> int:
    """48 bits of SHA-256 over the sorted ids of a set; empty slots (-1) do not count. Exact in a double."""
    text = ",".join(str(index) for index in sorted(ids) if index >= 0)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def direction(width: int) -> Tensor:
    """The fixed direction of unit length that hidden states of `width` are projected on, [width] float64.

    Drawn from SHA-256, so that it is the same under every version of every library.
    """
    count = -(-width // 4)
    raw = b"".join(hashlib.sha256(f"mint2m.trace/1\0{index}".encode()).digest() for index in range(count))
    drawn = [int.from_bytes(raw[8 * i : 8 * i + 8], "big") / 2.0**63 - 1.0 for i in range(width)]
    values = torch.tensor(drawn, dtype=torch.float64)
    return values / values.norm()
