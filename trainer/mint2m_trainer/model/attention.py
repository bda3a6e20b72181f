"""Multi-head latent attention over a resident prefix, absorbed and sparse.

Keeps the parameters of megatron's `MLASelfAttention` and replaces its forward. A token leaves one row
`c_kv ‖ k_rope`, the same for all heads; the key and value up-projections are absorbed into query and output:

    q·k = (q_nope W_uk + s (q_nope B_uk) A) · c + q_rope · k_rope,      o = (Σ w c) W_uv^T + s ((Σ w c) A^T) B_uv^T

so the adapter of kv_b is applied without merging. A row is cast once to the pages' dtype, and the cast value is
used inside its own chunk as well; otherwise the chunk size would change the function. On the graph it is float32 or
wider, so that what several consumers add to its gradient is summed in that precision.

Rows lie with the rank of their token. Which rows a query chose is settled in `selection`, how it reaches them in
`fetch` or `partial`, as the plan's route says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mint2m_trainer import compat  # noqa: F401  # first: it must precede megatron
from mint2m_trainer.model.fetch import FetchReach
from mint2m_trainer.model.indexer import Indexer, IndexQuery
from mint2m_trainer.model.lora import Lora
from mint2m_trainer.model.partial import MergeReach
from mint2m_trainer.model.seam import LayerRows, Passage, Reach, Seam
from mint2m_trainer.model.selection import choose_rows
from mint2m_trainer.model.spec import ModelSpec

from megatron.core.transformer.multi_latent_attention import MLASelfAttention  # isort: skip

#: Epsilon of the two latent norms; Hugging Face's model leaves it at its default instead of `rms_norm_eps`.
LATENT_NORM_EPS = 1e-6


class PrefixAttention(MLASelfAttention):
    """One layer's attention; `bind` gives it what megatron's constructor cannot."""

    def bind(self, spec: ModelSpec, seam: Seam, page_dtype: torch.dtype) -> None:
        """Attach the model's spec and seam, and an indexer where this layer has one."""
        self._spec, self._seam, self._page_dtype = spec, seam, page_dtype
        self._exact = torch.float64 if page_dtype == torch.float64 else torch.float32
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
        stored = row.to(self._page_dtype)
        local = stored.to(self._exact)  # [T, D]
        query, keys = self._index(x, q_latent, passage)
        if passage.keep_rows:
            passage.layers.append(LayerRows(local=local, rows=stored.detach()[: passage.share.count], keys=keys))
        if passage.rows_only and self._layer == spec.layers - 1:
            return torch.zeros_like(hidden_states), None
        if query is not None and keys is not None:
            passage.reach = self._reach(query, keys, passage)
        if passage.reach is None:
            raise RuntimeError(f"layer {self._layer} shares a selection that no layer made")
        mixed = passage.reach.attend(self.absorbed_query(q_latent, passage), local, self._layer)  # [T, H, kv_rank]
        values = self._expand_values(mixed)  # [T, H, value_width]
        return self.linear_proj(values.flatten(1))[0].unsqueeze(1), None

    def _index(self, x: Tensor, q_latent: Tensor, passage: Passage) -> tuple[IndexQuery | None, Tensor | None]:
        """Index queries of this rank's rows, and their keys [count, W] as the pages keep them."""
        if not self._spec.full_indexer(self._layer):
            return None, None
        query = self.indexer(x, q_latent, passage.rotation)
        return query, query.keys.to(self._page_dtype)[: passage.share.count]

    def _reach(self, query: IndexQuery, keys: Tensor, passage: Passage) -> Reach:
        top_k, layer = self._spec.index_top_k, self._layer
        if passage.continuation is not None:
            return passage.continuation.reach(query, keys, passage, layer)
        chosen = passage.tape.rows(layer, lambda: choose_rows(query, keys, passage, layer=layer, top_k=top_k))
        made = FetchReach if passage.places.layout.route == "fetch" else MergeReach
        return made(chosen, passage, self._spec, self._page_dtype, layer)

    def absorbed_query(self, q_latent: Tensor, passage: Passage) -> Tensor:
        """Queries as they meet page rows, [T, H, kv_rank + rope_width].

        Args:
            q_latent: normed query latent, [T, q_rank].
        """
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
