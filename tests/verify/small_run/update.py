"""What a small run computed: gradient, step by torch's own AdamW, losses in float64, and a checkpoint nobody opens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
import torch

from small_run.inputs import Inputs
from small_run.parts import MODULES, RANK, WIDTH, safetensors


class Update(Inputs):
    """Adapter, gradient, moments, scores and checkpoint."""

    def _update(self) -> None:
        random = np.random.default_rng(self.recipe.seed + 1)
        shapes = {"A": (RANK, WIDTH), "B": (WIDTH, RANK)}
        names = [(f"base_model.model.{m}.lora_{s}.weight", shapes[s]) for m in MODULES for s in "AB"]
        before = {n: random.normal(0, 0.2, shape).astype(np.float32) for n, shape in names}
        # A fresh adapter: the B halves are zero.
        before = {n: np.zeros_like(t) if ".lora_B." in n else t for n, t in before.items()}
        gradient = {n: (self.recipe.gradient_scale * random.normal(0, 1, s)).astype(np.float32) for n, s in names}
        self.before, self.gradient = self.edit("before", before), self.edit("gradient", gradient)
        self.norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in self.gradient.values()))
        self.coefficient = min(1.0, self.recipe.clip_grad / (self.norm + 1e-6))
        after, moments = self._adamw()
        step = self.edit("step", {"after": after, "moments": moments})
        self.after, self.moments = step["after"], step["moments"]
        self._adapter("artifacts/adapter-before", self.before)
        self._adapter("adapter", self.after)
        self.write("artifacts/gradient.safetensors", safetensors(self.gradient))
        self.write("artifacts/optimizer-after.safetensors", safetensors(self.moments))
        self._scores()

    def _adamw(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        torch.set_num_threads(1)
        options = self.profile["optimizer"]
        parameters = {n: torch.nn.Parameter(torch.from_numpy(p.copy())) for n, p in self.before.items()}
        optimizer = torch.optim.AdamW(
            parameters.values(),
            lr=options["lr"],
            betas=(options["beta1"], options["beta2"]),
            eps=options["eps"],
            weight_decay=options["weight_decay"],
            foreach=False,
        )
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(self.gradient[name]) * self.coefficient
        optimizer.step()
        moments = {
            f"{name}.{moment}": optimizer.state[parameter][moment].numpy()
            for name, parameter in parameters.items()
            for moment in ("exp_avg", "exp_avg_sq")
        }
        return {n: p.detach().numpy() for n, p in parameters.items()}, moments

    def _adapter(self, folder: str, tensors: Mapping[str, np.ndarray]) -> None:
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "target_modules": ["gate_proj", "q_a_proj"]}
        self.write(f"{folder}/adapter_config.json", json.dumps(config, indent=2).encode())
        self.write(f"{folder}/adapter_model.safetensors", safetensors(tensors))

    def _scores(self) -> None:
        """The losses in float64, token by token, as DeepSeekMath writes them."""
        options = self.profile["grpo"]
        rewards = [float(x) for x in self.rollout["rewards"]]
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in rewards) / (len(rewards) - 1))
        spread = deviation + options["advantage_eps"]
        self.advantages = [(x - mean) / spread if deviation else 0.0 for x in rewards]
        old = self.policy if self.recipe.old_source == "recompute" else self.old
        entries, self.kls, self.deviations = [], [], []
        for g, tokens in enumerate(self.responses):
            losses, low, high, kls, deviation = [], 0, 0, [], 0.0
            for t in range(len(tokens)):
                ratio = math.exp(float(self.policy[g][t]) - float(old[g][t]))
                a = self.advantages[g]
                clipped = min(max(ratio, 1 - options["clip_low"]), 1 + options["clip_high"])
                loss = -min(ratio * a, clipped * a)
                low += ratio < 1 - options["clip_low"] and a < 0
                high += ratio > 1 + options["clip_high"] and a > 0
                if self.recipe.kl_beta:
                    d = float(self.reference[g][t]) - float(self.policy[g][t])
                    kls.append(math.exp(d) - d - 1)
                    loss += self.recipe.kl_beta * kls[-1]
                losses.append(loss)
                deviation = max(deviation, abs(ratio - 1))
            self.kls.append(kls)
            self.deviations.append(deviation)
            entries.append(
                {
                    "response": g,
                    "tokens": tokens,
                    "first_scored": 0,
                    "policy": [float(x) for x in self.policy[g]],
                    "old": [float(x) for x in old[g]],
                    "ref": [float(x) for x in self.reference[g]] if self.recipe.kl_beta else None,
                    "loss": losses,
                    "clipped_low": low,
                    "clipped_high": high,
                }
            )
        total = sum(len(r) for r in self.responses)
        sizes = [len(r) for r in self.responses]
        weights = [1 / total if self.recipe.aggregation == "token_mean" else 1 / (len(sizes) * n) for n in sizes]
        self.shares = [w * sum(e["loss"]) for w, e in zip(weights, entries, strict=True)]
        scores = {
            "schema": "mint2m.scores/v1",
            "plan_sha256": self.plan_sha256,
            "execution_id": self.recipe.execution_id,
            "rewards": self.rollout["rewards"],
            "advantages": self.advantages,
            "old_source": self.recipe.old_source,
            "ref_source": "rollout" if self.recipe.kl_beta else None,
            "responses": entries,
            "loss": sum(self.shares),
            "kl": sum(map(sum, self.kls)) / total if self.recipe.kl_beta else None,
            "clipped_low": sum(e["clipped_low"] for e in entries),
            "clipped_high": sum(e["clipped_high"] for e in entries),
            "scored_tokens": total,
            "gradient_norm": self.norm,
            "clip_coefficient": self.coefficient,
        }
        self.scores = self.edit("scores", scores)
        self.write_json("artifacts/scores.json", self.scores)

    def _checkpoint(self) -> None:
        files = {".metadata": b"not opened", "__0_0.distcp": b"rank 0" * 20, "__1_0.distcp": b"rank 1" * 20}
        for name, raw in self.edit("checkpoint", files).items():
            self.write(f"checkpoint/{name}", raw)
