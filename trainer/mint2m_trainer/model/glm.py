"""The model: megatron's `GPTModel` with our attention, routing, adapters and head.

TP and PP are 1. The base is frozen; only adapters train. Layers meet the prefix through the model's `Seam`, and
the forward takes a `Passage`, never a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mint2m_trainer import compat  # first: it must precede megatron
from mint2m_trainer.model.attention import PrefixAttention
from mint2m_trainer.model.head import selected_logprobs
from mint2m_trainer.model.lora import AdaptedOutput, Lora, LoraError
from mint2m_trainer.model.moe import PrefixMoELayer, SigmoidRouter
from mint2m_trainer.model.names import Projection, projection_names, projections
from mint2m_trainer.model.position import AngleDtype, RotaryTable
from mint2m_trainer.model.seam import Passage, Seam
from mint2m_trainer.model.spec import ModelSpec, SpecError

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec  # isort: skip
from megatron.core.models.gpt.gpt_model import GPTModel  # isort: skip
from megatron.core.transformer.identity_op import IdentityOp  # isort: skip
from megatron.core.transformer.moe.moe_layer import MoELayer  # isort: skip
from megatron.core.transformer.transformer_config import MLATransformerConfig  # isort: skip

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPlan:
    """Which projections carry an adapter, by Hugging Face name, and its constants."""

    rank: int
    alpha: float
    projections: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Tokens whose logits exist at once, and tokens that an expert computes at once."""

    head_tokens: int
    expert_tokens: int


class PrefixModel(GPTModel):
    """GLM-MoE-DSA over a resident prefix."""

    spec: ModelSpec
    seam: Seam
    rotary: RotaryTable
    dtype: torch.dtype
    bounds: Bounds

    def forward(self, tokens: Tensor, passage: Passage, targets: Tensor | None = None) -> Tensor | None:
        """Run this rank's rows of a passage.

        Args:
            tokens: [T] int64, T = passage.share.rows.
            passage: what these tokens are.
            targets: [T] int64, whose log-probability is wanted; None in a pass that only makes rows.

        Returns:
            log p(target) of each row, [T], or None.
        """
        hidden = self._hidden(tokens, passage)
        if targets is None:
            return None
        return selected_logprobs(lambda part: self.output_layer(part)[0], hidden, targets, self.bounds.head_tokens)

    def logits(self, tokens: Tensor, passage: Passage) -> Tensor:
        """Logits of the token after each of these, [T, V]; for passages of a few tokens.

        Args:
            tokens: [T] int64, T = passage.share.rows.
        """
        logits: Tensor = self.output_layer(self._hidden(tokens, passage))[0]
        return logits

    def _hidden(self, tokens: Tensor, passage: Passage) -> Tensor:
        """[T, hidden], after the final norm."""
        with self.seam.carry(passage):
            embedded = self.embedding(input_ids=tokens[None], position_ids=passage.positions[None])
            hidden: Tensor = self.decoder(hidden_states=embedded, attention_mask=None)  # [T, 1, hidden]
        return hidden.squeeze(1)

    @contextmanager
    def base_only(self) -> Iterator[None]:
        """Run the base model, adapters off, until the block ends."""
        held = tuple(self.adapters())
        for adapter in held:
            adapter.enabled = False
        try:
            yield
        finally:
            for adapter in held:
                adapter.enabled = True

    def take_expert_tokens(self) -> tuple[int, ...] | None:
        """Choices of this rank's tokens by expert, of all layers together, since this was last asked.

        None where no expert was chosen from: a model without them, or no token since.
        """
        routers = [layer.mlp.router for layer in self.decoder.layers if isinstance(layer.mlp, PrefixMoELayer)]
        counts = [router.chosen_tokens for router in routers if router.chosen_tokens is not None]
        for router in routers:
            router.chosen_tokens = None
        return tuple(torch.stack(counts).sum(0).tolist()) if counts else None

    def adapters(self) -> Iterator[Lora]:
        """This rank's adapters, in order of projection."""
        for projection in projections(self, self.spec):
            held = getattr(projection.module, "adapters", None)
            if held is not None and projection.leaf in held:
                yield held[projection.leaf]


def build_model(
    spec: ModelSpec, *, world_size: int, dtype: str, angle_dtype: AngleDtype, lora: LoraPlan, bounds: Bounds
) -> PrefixModel:
    """The model on this rank, base weights uninitialized, adapters zero; `load_snapshot` fills the base.

    Args:
        world_size: context-parallel and expert-parallel size.
        bounds: sizes of the tiles that keep working memory small.
        dtype: of the base: float32, float64 or bfloat16. Adapters are float32, or float64 in float64.

    Raises:
        SpecError: experts do not divide over the ranks.
        LoraError: an adapter is planned for a projection that does not exist.
    """
    if "sparse" in spec.mlps and spec.experts % world_size:
        raise SpecError("/n_routed_experts", f"a multiple of {world_size} ranks", str(spec.experts))
    config = _config(spec, world_size=world_size, dtype=dtype)
    model = PrefixModel(
        config,
        _layers(config),
        vocab_size=spec.vocab,
        max_sequence_length=1,  # position embeddings are off; nothing is sized by it
        position_embedding_type="none",
        share_embeddings_and_output_weights=False,
    )
    model.spec, model.seam, model.dtype, model.bounds = spec, Seam(), DTYPES[dtype], bounds
    model.rotary = RotaryTable(spec, angle_dtype)
    for module in model.modules():
        if isinstance(module, PrefixAttention):
            module.bind(spec, model.seam, DTYPES[dtype])
        elif isinstance(module, PrefixMoELayer):
            module.bind(spec, model.seam, bounds.expert_tokens)
    _set_dtype(model, DTYPES[dtype])
    model.to(compat.device())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    _attach(model, spec, lora, torch.float64 if dtype == "float64" else torch.float32)
    return model.eval()


def _config(spec: ModelSpec, *, world_size: int, dtype: str) -> MLATransformerConfig:
    sparse = "sparse" in spec.mlps
    experts: Mapping[str, Any] = {
        "num_moe_experts": spec.experts,
        "moe_layer_freq": [int(kind == "sparse") for kind in spec.mlps],
        "moe_router_topk": spec.experts_per_token,
        "moe_ffn_hidden_size": spec.expert_width,
        "moe_shared_expert_intermediate_size": spec.expert_width * spec.shared_experts,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.0,  # finalize would otherwise move the bias, a base weight
        "moe_router_dtype": "fp64" if dtype == "float64" else "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall",
        "expert_model_parallel_size": world_size,
    }
    return MLATransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.hidden,
        num_attention_heads=spec.heads,
        q_lora_rank=spec.q_rank,
        kv_lora_rank=spec.kv_rank,
        qk_head_dim=spec.nope_width,
        qk_pos_emb_head_dim=spec.rope_width,
        v_head_dim=spec.value_width,
        ffn_hidden_size=spec.dense_width,
        layernorm_epsilon=spec.norm_eps,
        multi_latent_attention=True,
        normalization="RMSNorm",
        qk_layernorm=True,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        rope_type="rope",  # megatron's own rotation is unused: `position` rotates
        apply_rope_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        transformer_impl="local",
        use_cpu_initialization=True,
        perform_initialization=False,  # the snapshot fills every base weight
        calculate_per_token_loss=True,  # gradients are summed over ranks; weights are normalized before
        params_dtype=torch.float32,
        context_parallel_size=world_size,
        **(experts if sparse else {}),
    )


def _layers(config: MLATransformerConfig) -> Any:
    """Megatron's local layer specs with our attention, MoE layer and router."""
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    for layer in block.layer_specs:
        attention, mlp = layer.submodules.self_attention, layer.submodules.mlp
        attention.module = PrefixAttention
        attention.submodules.core_attention = IdentityOp  # the whole of attention is ours
        if mlp.module is MoELayer:
            mlp.module = PrefixMoELayer
            mlp.submodules.router = SigmoidRouter
    return block


def _set_dtype(model: PrefixModel, dtype: torch.dtype) -> None:
    """Cast the base; in bfloat16 what chooses experts and weighs index heads stays float32."""
    for name, parameter in model.named_parameters():
        chooses = name.endswith((".router.weight", ".weights_proj.weight"))
        parameter.data = parameter.data.to(torch.float32 if chooses and dtype == torch.bfloat16 else dtype)


def _attach(model: PrefixModel, spec: ModelSpec, plan: LoraPlan, dtype: torch.dtype) -> None:
    """Give each planned projection its adapter and each module the hook that adds them."""
    by_module: dict[nn.Module, list[Projection]] = {}
    for projection in projections(model, spec):
        if projection.name in plan.projections:
            by_module.setdefault(projection.module, []).append(projection)
    unknown = plan.projections - projection_names(spec)
    if unknown:
        raise LoraError(f"the model has no projection {sorted(unknown)[0]}")
    for module, parts in by_module.items():
        weight = module.weight
        adapters = {
            part.leaf: Lora(
                name=part.name,
                rows=part.rows,
                columns=weight.shape[1],
                rank=plan.rank,
                alpha=plan.alpha,
                base=weight,
                dtype=dtype,
            )
            for part in parts
        }
        module.adapters = nn.ModuleDict(adapters)
        if parts[0].leaf != "kv_b_proj":  # attention applies the absorbed one itself
            module.register_forward_hook(AdaptedOutput(tuple(adapters.values()), weight.shape[0]))
