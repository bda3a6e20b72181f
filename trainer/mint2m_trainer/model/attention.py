"""Multi-head latent attention over a resident prefix, absorbed and sparse.

Keeps the parameters of megatron's `MLASelfAttention` and replaces its forward. A token leaves one row
`c_kv ‖ k_rope`, the same for all heads; the key and value up-projections are absorbed into query and output:

    q·k = (q_nope W_uk + s (q_nope B_uk) A) · c + q_rope · k_rope,      o = (Σ w c) W_uv^T + s ((Σ w c) A^T) B_uv^T

so the adapter of kv_b is applied without merging. A row is cast once to the pages' dtype, and the cast value is
used inside its own chunk as well; otherwise the chunk size would change the function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mint2m_trainer import compat  # noqa: F401  # first: it must precede megatron
from mint2m_trainer.comm.collectives import collect_rows, gather_rows
from mint2m_trainer.kernels import KeyBlock, SparseAttention
from mint2m_trainer.model.indexer import Indexer
from mint2m_trainer.model.lora import Lora
from mint2m_trainer.model.seam import LayerRows, Passage, Seam
from mint2m_trainer.model.spec import ModelSpec

from megatron.core.transformer.multi_latent_attention import MLASelfAttention  # isort: skip

#: Epsilon of the two latent norms; Hugging Face's model leaves it at its default instead of `rms_norm_eps`.
LATENT_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scoring:
    """What selection needs of this pass: index queries, head weights, and the chunk's own keys."""

    q: Tensor
    weights: Tensor
    own: KeyBlock


class PrefixAttention(MLASelfAttention):
    """One layer's attention; `bind` gives it what megatron's constructor cannot."""

    def bind(self, spec: ModelSpec, seam: Seam, page_dtype: torch.dtype) -> None:
        """Attach the model's spec and seam, and an indexer where this layer has one."""
        self._spec, self._seam, self._page_dtype = spec, seam, page_dtype
        self._layer = self.layer_number - 1
        self.q_layernorm.eps = self.kv_layernorm.eps = LATENT_NORM_EPS
        if spec.full_indexer(self._layer):
            self.indexer = Indexer(spec, self.config.params_dtype)

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """Hidden states [T, 1, hidden] of the current passage's tokens; returns the same shape and no bias."""
        spec, passage = self._spec, self._seam.current()
        x = hidden_states.squeeze(1)  # [T, hidden]
        q_latent = self.q_layernorm(self.linear_q_down_proj(x)[0])  # [T, q_rank]
        compressed, k_rope = self.linear_kv_down_proj(x)[0].split([spec.kv_rank, spec.rope_width], dim=-1)
        row = torch.cat([self.kv_layernorm(compressed), passage.rotation.apply(k_rope)], dim=-1)  # [T, D]
        local = row.to(self._page_dtype)
        chunk_rows = gather_rows(local, passage.counts, passage.comm, passage.tag(self._layer), "rows")
        scoring = self._own_keys(x, q_latent, passage)
        if passage.keep_rows:
            keys = None if scoring is None else scoring.own.keys
            passage.layers.append(LayerRows(local=local, rows=chunk_rows.detach(), keys=keys))
        if passage.rows_only and self._layer == spec.layers - 1:
            return torch.zeros_like(hidden_states), None
        if scoring is not None:
            passage.chosen = passage.tape.rows(self._layer, lambda: self._choose(scoring, passage))
        if passage.chosen is None:
            raise RuntimeError(f"layer {self._layer} shares a selection that no layer made")
        mixed = self._attend(self._absorbed_query(q_latent, passage), chunk_rows, passage.chosen, passage)
        values = self._expand_values(mixed)  # [T, H, value_width]
        return self.linear_proj(values.flatten(1))[0].unsqueeze(1), None

    def _own_keys(self, x: Tensor, q_latent: Tensor, passage: Passage) -> _Scoring | None:
        if not self._spec.full_indexer(self._layer):
            return None
        query = self.indexer(x, q_latent, passage.rotation)
        keys = collect_rows(
            query.keys.to(self._page_dtype), passage.counts, passage.comm, passage.tag(self._layer), "keys"
        )
        own = KeyBlock(start=passage.share.span.start, keys=keys)
        return _Scoring(q=query.q, weights=query.weights, own=own)

    @torch.no_grad()
    def _choose(self, scoring: _Scoring, passage: Passage) -> Tensor:
        """Positions of the selected rows, [T, K], -1 in an empty slot."""

        def blocks() -> Iterator[KeyBlock]:
            if passage.prefix is not None:
                yield from passage.prefix.keys(self._layer)
            yield scoring.own

        visible = passage.share.span.stop
        kept = min(self._spec.index_top_k, visible)
        return passage.kernels.topk(scoring.q, scoring.weights, blocks(), passage.positions, kept).positions

    def _absorbed_query(self, q_latent: Tensor, passage: Passage) -> Tensor:
        """[T, H, kv_rank + rope_width]."""
        spec = self._spec
        q = self.linear_q_up_proj(q_latent)[0].view(-1, spec.heads, spec.query_width)  # [T, H, query_width]
        nope, rope = q.split([spec.nope_width, spec.rope_width], dim=-1)
        up, adapter = self._up_weight(slice(0, spec.nope_width))
        latent = torch.einsum("thd,hdr->thr", nope, up)  # [T, H, kv_rank]
        if adapter is not None:
            b = self._adapter_b(adapter, slice(0, spec.nope_width))  # [H, nope, rank]
            delta = torch.einsum("thd,hdk->thk", nope.to(b.dtype), b) @ adapter.A * adapter.scale
            latent = (latent + delta).to(latent.dtype)
        return torch.cat([latent, passage.rotation.apply(rope)], dim=-1)

    def _expand_values(self, mixed: Tensor) -> Tensor:
        """[T, H, kv_rank] -> [T, H, value_width]."""
        spec = self._spec
        part = slice(spec.nope_width, spec.nope_width + spec.value_width)
        up, adapter = self._up_weight(part)
        values = torch.einsum("thr,hvr->thv", mixed, up)
        if adapter is None:
            return values
        b = self._adapter_b(adapter, part)  # [H, value, rank]
        down = torch.nn.functional.linear(mixed.to(b.dtype), adapter.A)  # [T, H, rank]
        delta = torch.einsum("thk,hvk->thv", down, b) * adapter.scale
        return (values + delta).to(values.dtype)

    def _up_weight(self, part: slice) -> tuple[Tensor, Lora | None]:
        spec, up = self._spec, self.linear_kv_up_proj
        weight = up.weight.view(spec.heads, spec.nope_width + spec.value_width, spec.kv_rank)
        adapters = getattr(up, "adapters", None)
        adapter = None if adapters is None else adapters["kv_b_proj"]
        return weight[:, part], adapter if adapter is not None and adapter.enabled else None

    def _adapter_b(self, adapter: Lora, part: slice) -> Tensor:
        spec = self._spec
        return adapter.B.view(spec.heads, spec.nope_width + spec.value_width, -1)[:, part]

    def _attend(self, q: Tensor, own: Tensor, chosen: Tensor, passage: Passage) -> Tensor:
        """Attend to the chosen positions; prefix rows come through the store, once each."""
        spec, start = self._spec, passage.share.span.start
        ok = chosen >= 0  # [T, K]
        table, idx = own, (chosen - start).clamp(min=0)
        if passage.prefix is not None and passage.prefix.length > 0:
            before = ok & (chosen < start)
            used = torch.zeros(start, dtype=torch.bool, device=chosen.device)
            used[chosen[before]] = True
            ids = used.nonzero().squeeze(1)  # [U] ascending: each row is fetched once, in one order
            place = used.cumsum(0) - 1  # [start]
            idx = torch.where(before, place[chosen.clamp(0, start - 1)], (chosen - start + ids.numel()).clamp(min=0))
            table = torch.cat([passage.prefix.rows(self._layer, ids), own])  # [U + tokens, D]
        return SparseAttention.apply(q, table, idx, ok, spec.softmax_scale, spec.kv_rank, passage.kernels)
