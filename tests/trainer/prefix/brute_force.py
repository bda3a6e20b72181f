"""GLM-MoE-DSA written out once more, plainly: float64, one token after another where that is clearer, plain autograd.

Shares nothing with the package: tensors by Hugging Face name, projections with their adapters merged (W + s B A),
keys and values expanded for every head, selection by Python's sort over (score descending, position ascending),
experts in a loop. Sources: DeepSeek-V2 (MLA), DeepSeek-V3 (routing), DeepSeek-V3.2 equation 1 (indexer), and Hugging
Face's `glm_moe_dsa` for epsilons and the order of a head's columns. No YaRN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

LATENT_EPS = 1e-6
PEFT = "base_model.model."


class BruteForce:
    """The model over whole sequences; `chosen[layer][t]` are the rows that token t attended to in the last one."""

    def __init__(self, snapshot: Path, adapters: Mapping[str, Tensor], scale: float) -> None:
        """`adapters` by PEFT name, [r, in] and [out, r]; their gradient is the result of `backward`."""
        self.config: dict[str, Any] = json.loads((snapshot / "config.json").read_text())
        self.base: dict[str, Tensor] = {}
        for file in snapshot.glob("*.safetensors"):
            self.base |= {name: tensor.double() for name, tensor in load_file(file).items()}
        self.adapters = {name: tensor.double().clone().requires_grad_() for name, tensor in adapters.items()}
        self.scale = scale
        self.chosen: list[list[list[int]]] = []

    def gradient(self, prompt: Sequence[int], responses: Sequence[Sequence[int]]) -> tuple[dict[str, Tensor], Any]:
        """Gradient of Σ_responses Σ_t (t + 1) log p_t, and for each response (log-probs, chosen rows)."""
        found = []
        for response in responses:
            logp = self.response_logprobs(prompt, response)
            (logp * torch.arange(1, len(response) + 1, dtype=torch.float64)).sum().backward()
            found.append((logp.detach(), self.chosen))
        return {name: _gradient(tensor) for name, tensor in self.adapters.items()}, found

    def response_logprobs(self, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
        """log p of each response token."""
        tokens = [*prompt, *response]
        logits = self.logits(tokens[:-1])[len(prompt) - 1 :]
        return torch.stack([torch.log_softmax(row, 0)[token] for row, token in zip(logits, response, strict=True)])

    def logits(self, tokens: Sequence[int]) -> Tensor:
        config = self.config
        self.chosen = []
        x = self.base["model.embed_tokens.weight"][torch.tensor(tokens)]  # [T, hidden]
        rows: list[list[int]] = []
        for layer in range(config["num_hidden_layers"]):
            stem = f"model.layers.{layer}"
            normed = rms(x, self.base[f"{stem}.input_layernorm.weight"], config["rms_norm_eps"])
            mixed, rows = self.attention(normed, f"{stem}.self_attn", config["indexer_types"][layer] == "full", rows)
            self.chosen.append(rows)
            x = x + mixed
            normed = rms(x, self.base[f"{stem}.post_attention_layernorm.weight"], config["rms_norm_eps"])
            dense = layer < config["first_k_dense_replace"]
            x = x + (self.mlp(normed, f"{stem}.mlp") if dense else self.experts(normed, f"{stem}.mlp"))
        return self.linear(rms(x, self.base["model.norm.weight"], config["rms_norm_eps"]), "lm_head")

    def linear(self, x: Tensor, name: str) -> Tensor:
        weight = self.base[f"{name}.weight"]
        a = self.adapters.get(f"{PEFT}{name}.lora_A.weight")
        if a is not None:
            weight = weight + self.scale * self.adapters[f"{PEFT}{name}.lora_B.weight"] @ a
        return x @ weight.T

    def attention(self, x: Tensor, stem: str, full: bool, rows: list[list[int]]) -> tuple[Tensor, list[list[int]]]:
        config, count = self.config, x.shape[0]
        heads, nope, rope = (config[n] for n in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"))
        latent = rms(self.linear(x, f"{stem}.q_a_proj"), self.base[f"{stem}.q_a_layernorm.weight"], LATENT_EPS)
        if full:
            rows = self.select(x, latent, f"{stem}.indexer")
        q = self.linear(latent, f"{stem}.q_b_proj").view(count, heads, nope + rope)
        compressed = self.linear(x, f"{stem}.kv_a_proj_with_mqa")
        c = rms(compressed[:, : config["kv_lora_rank"]], self.base[f"{stem}.kv_a_layernorm.weight"], LATENT_EPS)
        kv = self.linear(c, f"{stem}.kv_b_proj").view(count, heads, nope + config["v_head_dim"])
        shared = self.rotated(compressed[:, None, config["kv_lora_rank"] :]).expand(-1, heads, -1)
        q = torch.cat([q[..., :nope], self.rotated(q[..., nope:])], -1)
        k = torch.cat([kv[..., :nope], shared], -1)
        mixed = []
        for t in range(count):
            score = torch.einsum("hd,shd->hs", q[t], k[rows[t]]) * (nope + rope) ** -0.5
            mixed.append(torch.einsum("hs,shv->hv", score.softmax(-1), kv[rows[t]][..., nope:]).flatten())
        return self.linear(torch.stack(mixed), f"{stem}.o_proj"), rows

    @torch.no_grad()
    def select(self, x: Tensor, latent: Tensor, stem: str) -> list[list[int]]:
        """Rows of each token, ascending."""
        config, count = self.config, x.shape[0]
        heads, width, rope = config["index_n_heads"], config["index_head_dim"], config["qk_rope_head_dim"]
        q = (latent @ self.base[f"{stem}.wq_b.weight"].T).view(count, heads, width)
        k = torch.nn.functional.layer_norm(
            x @ self.base[f"{stem}.wk.weight"].T,
            (width,),
            self.base[f"{stem}.k_norm.weight"],
            self.base[f"{stem}.k_norm.bias"],
            eps=1e-6,
        )
        q = torch.cat([self.rotated(q[..., :rope]), q[..., rope:]], -1)
        k = torch.cat([self.rotated(k[:, None, :rope]).squeeze(1), k[:, rope:]], -1)
        w = x @ self.base[f"{stem}.weights_proj.weight"].T * (heads * width) ** -0.5
        score = torch.einsum("th,ths->ts", w, torch.einsum("thw,sw->ths", q, k).relu())
        best = [sorted(range(t + 1), key=lambda s, t=t: (-float(score[t, s] + 0.0), s)) for t in range(count)]
        return [sorted(order[: config["index_topk"]]) for order in best]

    def rotated(self, x: Tensor) -> Tensor:
        """Pairs (x0, x1), (x2, x3), … of row t turned by t θ^(-2i/D): [T, H, D]."""
        width = x.shape[-1]
        theta = self.config["rope_parameters"]["rope_theta"]
        angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * theta ** (
            -torch.arange(0, width, 2, dtype=torch.float64) / width
        )
        turned = (
            torch.view_as_complex(x.reshape(*x.shape[:-1], width // 2, 2))
            * torch.polar(torch.ones_like(angle), angle)[:, None]
        )
        return torch.view_as_real(turned).flatten(-2)

    def mlp(self, x: Tensor, stem: str) -> Tensor:
        gate = torch.nn.functional.silu(self.linear(x, f"{stem}.gate_proj"))
        return self.linear(gate * self.linear(x, f"{stem}.up_proj"), f"{stem}.down_proj")

    def experts(self, x: Tensor, stem: str) -> Tensor:
        config = self.config
        score = (x @ self.base[f"{stem}.gate.weight"].T).sigmoid()  # [T, E]
        biased = score.detach() + self.base[f"{stem}.gate.e_score_correction_bias"]
        groups, each = config["n_group"], config["n_routed_experts"] // config["n_group"]
        out = []
        for t in range(x.shape[0]):
            worth = [sum(sorted(biased[t, g * each : (g + 1) * each].tolist())[-2:]) for g in range(groups)]
            open_groups = sorted(range(groups), key=lambda g: (-worth[g], g))[: config["topk_group"]]
            inside = [e for e in range(config["n_routed_experts"]) if e // each in open_groups]
            kept = sorted(inside, key=lambda e, t=t: (-float(biased[t, e]), e))[: config["num_experts_per_tok"]]
            total = sum(score[t, e] for e in kept) if config["norm_topk_prob"] else 1.0
            parts = [self.mlp(x[t], f"{stem}.experts.{e}") * score[t, e] / total for e in kept]
            out.append(sum(parts) * config["routed_scaling_factor"])
        return torch.stack(out) + self.mlp(x, f"{stem}.shared_experts")


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def _gradient(tensor: Tensor) -> Tensor:
    """Zero where nothing flowed: an expert that no token chose."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
