"""Mixture of experts: megatron's layer with Hugging Face's routing and an all-to-all that the ledger sees.

The router's choice is a decision of the passage's tape, so a recomputed forward repeats it. Group-limited routing
scores a group by the sum of its two best experts, and equal scores go to the lower id. The dispatcher is
megatron's all-to-all; without CUDA its device-to-host copies need no stream.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mint2m_trainer import compat  # noqa: F401  # first: it must precede megatron
from mint2m_trainer.comm.collectives import exchange_rows
from mint2m_trainer.model.seam import Seam
from mint2m_trainer.model.spec import ModelSpec

from megatron.core.transformer.mlp import MLP  # isort: skip
from megatron.core.transformer.moe.moe_layer import MoELayer  # isort: skip
from megatron.core.transformer.moe.router import TopKRouter  # isort: skip
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher  # isort: skip


class SigmoidRouter(TopKRouter):
    """Sigmoid scores, a bias that only chooses, group limits, and weights from the unbiased scores."""

    def bind(self, spec: ModelSpec, seam: Seam) -> None:
        """Attach the model's spec and seam."""
        self._spec, self._seam = spec, seam
        #: Choices of this rank's tokens by expert, [E] int64, in every forward since it was last set to None.
        self.chosen_tokens: Tensor | None = None

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Route tokens.

        Args:
            logits: [T, 1, E], float32 or float64.
            padding_mask: not used; a ghost row is told by the passage.

        Returns:
            (weights [T, E], zero where not chosen; chosen [T, E] bool).
        """
        spec, passage = self._spec, self._seam.current()
        scores = logits.view(-1, spec.experts).sigmoid()  # [T, E]
        ids = passage.tape.experts(
            self.layer_number - 1, lambda: choose_experts(scores.detach() + self.expert_bias, spec)
        ).long()  # [T, k]
        weights = scores.gather(1, ids)  # [T, k]
        if spec.normalize_top_k:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * spec.routed_scaling
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(1, ids, True)
        counts = (chosen & passage.gate.unsqueeze(1)).sum(0)  # [E]
        self.chosen_tokens = counts if self.chosen_tokens is None else self.chosen_tokens + counts
        if torch.is_grad_enabled():
            self.local_tokens_per_expert += counts
        return torch.zeros_like(scores).scatter(1, ids, weights), chosen


def choose_experts(scores: Tensor, spec: ModelSpec) -> Tensor:
    """Experts of each token by (score descending, id ascending) within the best groups, [T, k].

    Args:
        scores: biased scores, [T, E].
    """
    grouped = scores.view(-1, spec.groups, spec.experts // spec.groups)  # [T, groups, E / groups]
    worth = grouped.sort(dim=-1, descending=True, stable=True).values[..., :2].sum(-1)  # [T, groups]
    best = worth.argsort(dim=-1, descending=True, stable=True)[:, : spec.groups_per_token]
    open_groups = torch.zeros_like(worth, dtype=torch.bool).scatter(1, best, True)
    masked = grouped.masked_fill(~open_groups.unsqueeze(-1), float("-inf")).flatten(1)  # [T, E]
    return masked.argsort(dim=-1, descending=True, stable=True)[:, : spec.experts_per_token]


class LedgeredAllToAll(MoEAlltoAllTokenDispatcher):
    """Megatron's dispatcher with our all-to-all."""

    def bind(self, seam: Seam, layer: int) -> None:
        """Attach the model's seam; `layer` counts from 0."""
        self._seam, self._layer = seam, layer

    def preprocess(self, routing_map: Tensor) -> Tensor:
        passage = self._seam.current()
        # Megatron gathers the counts of all ranks in here.
        passage.comm.ledger.record(passage.tag(self._layer), "experts.counts", routing_map.shape[1] * 8)
        return super().preprocess(routing_map)

    def token_dispatch(self, tokens: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        self.tokens_per_expert = self._maybe_dtoh_and_synchronize("before_ep_alltoall", self.tokens_per_expert)
        received, sent = self._splits(self.output_splits, tokens), self._splits(self.input_splits, tokens)
        return (
            self._exchange(tokens, received, sent, "experts.tokens"),
            self._exchange(probs, received, sent, "experts.weights"),
        )

    def token_combine(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        received = self._splits(self.input_splits, hidden_states)
        sent = self._splits(self.output_splits, hidden_states)
        return self._exchange(hidden_states, received, sent, "experts.combine")

    def _exchange(self, x: Tensor, received: list[int], sent: list[int], name: str) -> Tensor:
        passage = self._seam.current()
        tag = passage.tag(self._layer)
        return exchange_rows(x, received=received, sent=sent, comm=passage.comm, tag=tag, name=name)

    def _splits(self, splits: Any, rows: Tensor) -> list[int]:
        return [rows.shape[0]] if splits is None else [int(count) for count in splits]

    def _maybe_dtoh_and_synchronize(self, point: str, tokens_per_expert: Tensor | None = None) -> Tensor | None:
        if torch.cuda.is_available():
            return super()._maybe_dtoh_and_synchronize(point, tokens_per_expert)
        return tokens_per_expert


class TiledExpert(MLP):
    """One expert, a tile of its tokens at a time; under autograd a tile's activations are made again in backward."""

    tile_tokens: int

    def forward(self, hidden_states: Tensor, per_token_scale: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        run = super().forward
        if hidden_states.shape[0] <= self.tile_tokens:
            return run(hidden_states, per_token_scale)[0], None
        parts = []
        for rows, scale in zip(
            hidden_states.split(self.tile_tokens), per_token_scale.split(self.tile_tokens), strict=True
        ):
            if torch.is_grad_enabled():
                part = checkpoint(run, rows, scale, use_reentrant=False, preserve_rng_state=False)
            else:
                part = run(rows, scale)
            parts.append(part[0])
        return torch.cat(parts), None


class PrefixMoELayer(MoELayer):
    """Megatron's layer with `LedgeredAllToAll` in place of the dispatcher it hard-codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not torch.cuda.is_available():
            MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = "unused without CUDA"
        super().__init__(*args, **kwargs)
        self.token_dispatcher.__class__ = LedgeredAllToAll

    def bind(self, spec: ModelSpec, seam: Seam, expert_tokens: int) -> None:
        """Attach the model's spec and seam to router and dispatcher, and bound each expert's batch."""
        self._spec, self._seam = spec, seam
        for expert in self.experts.local_experts:
            expert.__class__ = TiledExpert
            expert.tile_tokens = expert_tokens
        self.router.bind(spec, seam)
        self.token_dispatcher.bind(seam, self.layer_number - 1)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        passage = self._seam.current()
        if passage.rows_only and self.layer_number == self._spec.layers:
            return torch.zeros_like(hidden_states), None
        result = super().forward(hidden_states, *args, **kwargs)
        self._let_go()
        return result

    def _let_go(self) -> None:
        """Drop what the dispatcher keeps of the graph.

        References lead from there through autograd's hooks to the whole model: a cycle that is never collected, with
        its process groups, and a layer's activations until the next forward.
        """
        for name, value in vars(self.token_dispatcher).items():
            if isinstance(value, Tensor) and value.requires_grad:
                setattr(self.token_dispatcher, name, None)
