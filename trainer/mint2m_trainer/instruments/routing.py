"""Which rows and experts were chosen: every token's ids, exported, and what the ranks' exports must agree on.

The rule: ranks differ in the tokens they have and in nothing else. They make the same choices in the same order, their
tokens are disjoint and together a whole span, and a recomputed chunk repeats the choices of its capture. A routing that
breaks one of these trained another function than the one whose log-probs were scored, and no loss would show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from mint2m_trainer.comm.collectives import collect_rows
from mint2m_trainer.comm.groups import Comm
from mint2m_trainer.comm.ledger import Tag
from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.instruments.trace import Kind, Turns, WatchedTape
from mint2m_trainer.model.glm import PrefixModel
from mint2m_trainer.model.seam import Passage
from mint2m_verify.files import read_once, write_atomic

_CAPTURE, _REVERSE = ".capture", ".reverse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Ids of one layer in one pass on one rank: `ids` [n, k] int32 of the tokens at `positions` [n] int64."""

    phase: str
    turn: int
    chunk: int
    layer: int
    kind: Kind
    positions: Tensor
    ids: Tensor

    @property
    def place(self) -> str:
        """The same on all ranks."""
        return f"{self.phase}/{self.turn}/{self.chunk}/{self.layer}/{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRouting:
    """Everything that one rank chose, in order."""

    rank: int
    world_size: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConsensus:
    """What all ranks together chose.

    `expert_tokens` [layers with experts, E] counts the tokens sent to each expert in all passes; `repeated` counts the
    choices that a recomputed chunk had to repeat, `repeated_differently` those that it did not.
    """

    places: int
    tokens: int
    expert_tokens: Mapping[int, tuple[int, ...]]
    repeated: int
    repeated_differently: int


class RoutingRecorder:
    """Records every choice of one model while it is attached."""

    def __init__(self, *, limit_bytes: int) -> None:
        """Keep at most `limit_bytes` of ids; past it the recorder refuses."""
        self._limit, self._held = limit_bytes, 0
        self._choices: list[Choice] = []
        self._turns = Turns()
        self._rank: tuple[int, int] | None = None

    @property
    def routing(self) -> RankRouting:
        """What was recorded so far; raises `InstrumentError` where nothing was."""
        if self._rank is None:
            raise InstrumentError("no routing was recorded")
        return RankRouting(rank=self._rank[0], world_size=self._rank[1], choices=tuple(self._choices))

    @contextmanager
    def attached(self, model: PrefixModel) -> Iterator[RoutingRecorder]:
        """Watch `model` until the block ends."""
        handle = model.register_forward_pre_hook(self._begins, with_kwargs=True)
        try:
            yield self
        finally:
            handle.remove()

    def _begins(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        passage: Passage = kwargs["passage"] if "passage" in kwargs else args[1]
        self._rank = passage.comm.rank, passage.comm.size
        self._turns.begin(passage)
        passage.tape = WatchedTape(passage.tape, lambda kind, layer, ids: self._keep(passage, kind, layer, ids))

    def _keep(self, passage: Passage, kind: Kind, layer: int, ids: Tensor) -> None:
        count = passage.share.count  # a ghost's choice is nobody's
        kept = ids[:count].to("cpu", torch.int32)
        self._held += kept.numel() * kept.element_size() + 8 * count
        if self._held > self._limit:
            raise InstrumentError(f"{passage.phase}, layer {layer}: routing passed its limit of {self._limit} bytes")
        self._choices.append(
            Choice(
                phase=passage.phase,
                turn=self._turns.now,
                chunk=passage.share.span.index,
                layer=layer,
                kind=kind,
                positions=passage.positions[:count].to("cpu", copy=True),
                ids=kept.clone(),
            )
        )


def write_routing(directory: Path, routing: RankRouting) -> Path:
    """Write one rank's routing as safetensors: `PLACE/ids`, `PLACE/positions`, in order of their number."""
    tensors: dict[str, Tensor] = {}
    for number, choice in enumerate(routing.choices):
        tensors[f"{number:06d}/{choice.place}/ids"] = choice.ids.contiguous()
        tensors[f"{number:06d}/{choice.place}/positions"] = choice.positions.contiguous()
    path = directory / f"routing-{routing.rank:04d}.safetensors"
    write_atomic(path, save(tensors, metadata={"rank": str(routing.rank), "world_size": str(routing.world_size)}))
    return path


def read_routing(path: Path, *, rank: int, world_size: int, limit_bytes: int) -> RankRouting:
    """What `write_routing` wrote; raises `InstrumentError` for a name that it does not write."""
    tensors = load(read_once(path, limit=limit_bytes))
    choices = []
    for name in sorted(name for name in tensors if name.endswith("/ids")):
        parts = name.split("/")
        if len(parts) != 7 or parts[5] not in ("rows", "experts") or f"{name[:-4]}/positions" not in tensors:
            raise InstrumentError(f"{path.name}: {name} is no choice")
        choices.append(
            Choice(
                phase=parts[1],
                turn=int(parts[2]),
                chunk=int(parts[3]),
                layer=int(parts[4]),
                kind="rows" if parts[5] == "rows" else "experts",
                positions=tensors[f"{name[:-4]}/positions"],
                ids=tensors[name],
            )
        )
    return RankRouting(rank=rank, world_size=world_size, choices=tuple(choices))


def routing_consensus(ranks: Sequence[RankRouting], *, experts: int) -> RoutingConsensus:
    """Lay all ranks' routings together.

    Args:
        ranks: every rank once.
        experts: how many experts the model has.

    Raises:
        InstrumentError: ranks are missing or made other choices than rank 0, naming them; tokens of a span overlap or
            leave a gap; nothing was chosen.
    """
    if not ranks or sorted(routing.rank for routing in ranks) != list(range(ranks[0].world_size)):
        raise InstrumentError(f"each rank once, not {sorted(routing.rank for routing in ranks)}")
    ordered = sorted(ranks, key=lambda routing: routing.rank)
    places = [[choice.place for choice in routing.choices] for routing in ordered]
    others = [rank for rank, own in enumerate(places) if own != places[0]]
    if others:
        raise InstrumentError(f"ranks {others} made other choices than rank 0, or in another order")
    if not places[0]:
        raise InstrumentError("no choice was recorded")
    whole: dict[str, Tensor] = {}
    tokens, counts = 0, dict[int, Tensor]()
    for index, choices in enumerate(zip(*(routing.choices for routing in ordered), strict=True)):
        ids = _together(choices)
        whole[places[0][index]] = ids
        tokens += ids.shape[0]
        if choices[0].kind == "experts":
            layer = choices[0].layer
            seen = torch.bincount(ids.flatten().long(), minlength=experts)
            counts[layer] = counts.get(layer, torch.zeros(experts, dtype=torch.int64)) + seen
    repeated, differently = _repeats(whole)
    return RoutingConsensus(
        places=len(places[0]),
        tokens=tokens,
        expert_tokens={layer: tuple(count.tolist()) for layer, count in sorted(counts.items())},
        repeated=repeated,
        repeated_differently=differently,
    )


def replicated(value: Tensor, comm: Comm, tag: Tag, name: str) -> float:
    """How far the ranks are apart in a value that all should hold alike: the largest |rank r - rank 0|; a collective.

    Args:
        value: any shape, the same on all ranks; small, since every rank gathers all of them.

    Returns:
        0.0 where all bits are equal, NaN included; otherwise the difference, infinite where a NaN stands alone.
    """
    every = collect_rows(value.detach().reshape(1, -1), [1] * comm.size, comm, tag, name)  # [ranks, n]
    if not every.is_contiguous() or every.shape[0] != comm.size:
        raise InstrumentError(f"{name}: gathered {list(every.shape)} of {comm.size} ranks")
    bits = every.view(torch.uint8)
    if torch.equal(bits, bits[:1].expand_as(bits)):
        return 0.0
    difference = (every - every[:1]).abs().double()
    return float(torch.nan_to_num(difference, nan=float("inf")).max())


def _together(choices: Sequence[Choice]) -> Tensor:
    """The ids of all tokens of a span in order of position, [tokens, k]."""
    positions = torch.cat([choice.positions for choice in choices])
    order = positions.argsort(stable=True)
    ordered = positions[order]
    if ordered.numel() == 0 or not torch.equal(ordered, torch.arange(int(ordered[0]), int(ordered[-1]) + 1)):
        raise InstrumentError(f"{choices[0].place}: the ranks' tokens overlap, leave a gap, or are none")
    # Ranks without a token keep the width of their ghost's choice.
    return torch.cat([choice.ids for choice in choices if choice.ids.shape[0]])[order]


def _repeats(whole: Mapping[str, Tensor]) -> tuple[int, int]:
    """Tokens of recomputed chunks whose capture was recorded, and how many of them chose another set."""
    repeated = differently = 0
    for place, ids in whole.items():
        phase, _, rest = place.partition("/")
        if not phase.endswith(_REVERSE):
            continue
        captured = whole.get(f"{phase.removesuffix(_REVERSE)}{_CAPTURE}/{rest}")
        if captured is None:
            continue
        repeated += ids.shape[0]
        if captured.shape != ids.shape:
            differently += ids.shape[0]
        else:
            differently += int((captured.sort(-1).values != ids.sort(-1).values).any(-1).sum())
    return repeated, differently
