"""Policy log-probs computed again from the logits that the run made: `log_softmax(logits).gather(targets)` in float32.

The rule: the audit reads the logits of the run and none of its own. The chunked head works tile by tile and hands out
log-probs only, so its tiles are audited while they exist; a second projection could round differently and would then
audit itself. What is kept is a few numbers, and of a tile only its first rows are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mint2m_trainer.instruments.faults import InstrumentError
from mint2m_trainer.model.glm import PrefixModel


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobAudit:
    """`worst` is the largest |reported - audited| of `tokens`, at `position` of `phase`; both None for no token."""

    tokens: int
    worst: float
    phase: str | None
    position: int | None

    def require(self, bound: float) -> None:
        """Refuse a difference past `bound`, and an audit of nothing.

        Raises:
            InstrumentError: naming phase and position.
        """
        if self.tokens == 0:
            raise InstrumentError("no log-prob was audited")
        if not self.worst <= bound:  # a NaN is no agreement
            raise InstrumentError(
                f"{self.phase}, position {self.position}: reported and audited log-prob differ by {self.worst:g}, "
                f"at most {bound:g} is allowed"
            )


def audit_policy_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """log p(target), [R] float32, by the canonical formula; without autograd.

    Args:
        logits: [R, V], of any dtype; they are widened to float32 first, or narrowed to it.
        targets: [R] int64.
    """
    if logits.dim() != 2 or targets.shape != logits.shape[:1]:
        raise InstrumentError(f"logits [R, V] and targets [R], not {list(logits.shape)} and {list(targets.shape)}")
    with torch.no_grad():
        wide = logits.detach().to(torch.float32)
        return torch.log_softmax(wide, dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


class HeadAuditor:
    """Audits every pass of one model through its head; attach it with `attached`."""

    def __init__(self, *, rows_per_tile: int) -> None:
        """Of each tile of the head, at most `rows_per_tile` rows are computed again."""
        if rows_per_tile < 1:
            raise InstrumentError(f"rows_per_tile is at least 1, not {rows_per_tile}")
        self._limit = rows_per_tile
        self._tiles: list[Tensor] | None = None  # logits of the pass that runs, [t, V], at most rows_per_tile each
        self._sizes: list[int] = []
        self._tokens, self._worst = 0, 0.0
        self._place: tuple[str, int] | None = None

    @property
    def result(self) -> LogprobAudit:
        """What was audited so far."""
        phase, position = self._place or (None, None)
        return LogprobAudit(tokens=self._tokens, worst=self._worst, phase=phase, position=position)

    @contextmanager
    def attached(self, model: PrefixModel) -> Iterator[HeadAuditor]:
        """Watch `model` until the block ends."""
        hooks = (
            model.register_forward_pre_hook(self._begins, with_kwargs=True),
            model.output_layer.register_forward_hook(self._tile),
            model.register_forward_hook(self._ends, with_kwargs=True),
        )
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()
            self._tiles = None

    def _begins(self, _model: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._tiles, self._sizes = [], []

    def _tile(self, _layer: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        # Under autograd a tile is made again in backward; by then the pass is over and `_tiles` is None.
        if self._tiles is not None:
            logits = output[0].detach()
            self._sizes.append(logits.shape[0])
            self._tiles.append(logits[: self._limit].clone())

    def _ends(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor | None) -> None:
        tiles, self._tiles = self._tiles, None
        if output is None or tiles is None:
            return
        passage = kwargs.get("passage", args[1] if len(args) > 1 else None)
        targets = kwargs.get("targets", args[2] if len(args) > 2 else None)
        if sum(self._sizes) != output.shape[0] or passage is None or targets is None:
            raise InstrumentError(f"the head made {sum(self._sizes)} rows of logits for {output.shape[0]} log-probs")
        start = 0
        for logits, size in zip(tiles, self._sizes, strict=True):
            rows = min(logits.shape[0], max(passage.share.count - start, 0))  # a ghost row is no token
            if rows:
                here = slice(start, start + rows)
                audited = audit_policy_logprobs(logits[:rows], targets[here])
                # Both in float64: a float64 run must not be rounded before it is compared.
                difference = (output.detach()[here].double() - audited.double()).abs()
                self._note(difference, passage.phase, passage.positions[here])
            start += size

    def _note(self, difference: Tensor, phase: str, positions: Tensor) -> None:
        self._tokens += difference.numel()
        finite = torch.nan_to_num(difference, nan=float("inf"), posinf=float("inf"))
        at = int(finite.argmax())
        if self._place is None or float(finite[at]) > self._worst:
            self._worst, self._place = float(finite[at]), (phase, int(positions[at]))
