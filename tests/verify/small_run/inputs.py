"""The inputs of a small run and the plan that binds them."""

from __future__ import annotations

import math

import numpy as np
import rfc8785

from small_run.parts import NONCE, RANK, RESPONSES, SOURCE, Json, Parts, sha256


class Inputs(Parts):
    """Profile, payload, rollout, fixture, deployment, runtime identity and plan."""

    def _profile(self) -> Json:
        r = self.recipe
        return {
            "schema": "mint2m.run-profile/v1",
            "name": "small",
            "topology": {
                "world_size": r.world_size,
                "tensor_parallel": 1,
                "pipeline_parallel": 1,
                "context_parallel": r.world_size,
                "expert_parallel": r.world_size,
            },
            "context": {"prompt_tokens": len(self.recipe.prompt), "max_response_tokens": 16},
            "group_size": len(RESPONSES),
            "model": {"dtype": "float32", "rope_angle_dtype": "float32"},
            "lora": {"rank": RANK, "alpha": 4, "families": ["attention", "dense"], "seed": 1},
            "optimizer": {
                "name": "adam",
                "lr": 1e-4,
                "min_lr": 0,
                "beta1": 0.9,
                "beta2": 0.999,
                "eps": 1e-8,
                "weight_decay": r.weight_decay,
                "decoupled_weight_decay": True,
                "clip_grad": r.clip_grad,
                "schedule": "constant",
                "distributed_optimizer": False,
                "state_dtype": "float32",
            },
            "grpo": {
                "clip_low": 0.2,
                "clip_high": 0.3,
                "clip_dual": None,
                "kl_beta": r.kl_beta,
                "kl_estimator": "k3",
                "advantage_eps": 1e-6,
                "aggregation": r.aggregation,
                "norm_tokens": None,
                "old_source": r.old_source,
                "ref_source": "rollout",
            },
            "prefix": {"gradient": r.prefix_gradient, "chunk_tokens": 8, "decisions": "store", "route": "fetch"},
            "memory": {"head_tokens": 64, "query_tile": 64, "expert_tokens": 64, "rank_bytes": None},
            "timeouts_s": {"start": 60, "phase": 60, "cleanup": 60},
        }

    def _inputs(self) -> None:
        payload = {
            "schema": "mint2m.training-payload/v1",
            "tokenizer": "utf8-bytes",
            "prompt_text": self.recipe.prompt,
            "ground_truth": "4",
            "reward_rule": "answer-exact/v1",
        }
        self.payload = self.edit("payload", payload)
        self.write_json("inputs/payload.json", self.payload)
        random = np.random.default_rng(self.recipe.seed)
        self.policy = [(-random.uniform(0.1, 3, len(r))).astype(np.float32) for r in self.responses]
        self.old = [(p + random.normal(0, 0.3, len(p)).astype(np.float32)).clip(max=-0.01) for p in self.policy]
        self.reference = [(p + random.normal(0, 0.2, len(p)).astype(np.float32)).clip(max=-0.01) for p in self.policy]
        rollout = {
            "schema": "mint2m.rollout/v1",
            "prompt_tokens": list(self.recipe.prompt.encode()),
            "responses": self.responses,
            "rewards": [-1, 1],
            "old_logprobs": None
            if self.recipe.old_source == "recompute"
            else [[float(x) for x in row] for row in self.old],
            "ref_logprobs": [[float(x) for x in row] for row in self.reference] if self.recipe.kl_beta else None,
        }
        self.rollout = self.edit("rollout", rollout)
        self.write_json("inputs/rollout.json", self.rollout)
        model = self.ref("inputs/model-manifest.json")["sha256"]
        profile = self.ref("inputs/profile.json")["sha256"]
        fixture = {
            "schema": "mint2m.training-fixture/v1",
            "model": {"revision": "tiny-1", "manifest_sha256": model},
            "policy_sha256": None,
            "profile_sha256": profile,
            "distribution": {"declaration": "project-generated", "license": "Apache-2.0", "statement": "made up"},
            "payload": self.ref("inputs/payload.json", "payload.json"),
            "rollout": self.ref("inputs/rollout.json", "rollout.json"),
            "shape": {
                "vocab_size": 256,
                "prompt_tokens": len(self.recipe.prompt),
                "response_tokens": [len(r) for r in self.responses],
            },
        }
        self.write_json("inputs/fixture.json", self.edit("fixture", fixture))
        deployment = {
            "schema": "mint2m.deployment/v1",
            "kind": "training",
            "name": "local",
            "hardware_class": "reference-cpu",
            "ray_address": "local",
            "node_ips": ["127.0.0.1"],
            "accelerators_per_node": self.recipe.world_size,
            "image": None,
            "model": {"snapshot": "model", "revision": "tiny-1", "model_manifest_sha256": model},
            "adapter": None,
            "fixture": {"path": "fixture.json", "sha256": self.ref("inputs/fixture.json")["sha256"]},
            "profile": {"path": "profile.json", "sha256": profile},
            "runtime_identity": None,
            "sbom": None,
            "image_provenance": None,
            "authorization_grant": None,
            "output_root": ".",
            "signer": {"kind": "ephemeral"},
        }
        self.deployment = self.edit("deployment", deployment)
        self.write_json("inputs/deployment.json", self.deployment)
        identity = {
            "schema": "mint2m.runtime-identity/v1",
            "python": {"implementation": "CPython", "version": "3.11.7"},
            "platform": {"system": "Linux", "machine": "x86_64"},
            "packages": [{"name": "torch", "version": "2.13.0"}],
            "source_sha256": SOURCE,
            "image_digest": None,
        }
        self.write_json("inputs/runtime-identity.json", self.edit("identity", identity))

    def phases(self) -> list[str]:
        score_old = ["score-old"] if self.recipe.old_source == "recompute" else []
        reverse = ["prefix-backward"] if self.recipe.prefix_gradient == "exact" else []
        replay = [f"grpo-{g}" for g in range(len(RESPONSES))]
        start = ["bind", "initialize", "materialize", "capture-prefix"]
        return [*start, *score_old, *replay, *reverse, "finalize", "optimizer-step", "checkpoint"]

    @property
    def chunks(self) -> int:
        return math.ceil((len(self.recipe.prompt) - 1) / 8)

    def _plan(self) -> None:
        ranks = range(self.recipe.world_size)
        model = self.ref("inputs/model-manifest.json")
        names = {
            "deployment": "deployment",
            "profile": "profile",
            "fixture": "fixture",
            "payload": "payload",
            "rollout": "rollout",
            "model_manifest": "model-manifest",
            "runtime_identity": "runtime-identity",
        }
        marker = {"name": "node:127.0.0.1", "amount": 0.001}
        bundles = [
            {"index": i, "node_ip": "127.0.0.1", "cpus": 1, "accelerators": 0, "resources": [marker]} for i in ranks
        ]
        placed = [
            {"rank": i, "actor": f"run-rank-{i:04d}", "bundle": i, "node_ip": "127.0.0.1", "slot": i} for i in ranks
        ]
        plan = {
            "schema": "mint2m.plan/v1",
            "run_id": "run-1",
            "nonce_sha256": sha256(NONCE.encode()),
            "namespace": "mint2m-run-1",
            "source_sha256": SOURCE,
            "deployment": {
                "name": "local",
                "hardware_class": "reference-cpu",
                "ray_address": "local",
                "node_ips": ["127.0.0.1"],
                "accelerators_per_node": self.recipe.world_size,
                "image_digest": None,
                "image_resource": None,
            },
            "profile": self.profile,
            "model": {"revision": "tiny-1", "manifest_sha256": model["sha256"]},
            "inputs": {member: self.ref(f"inputs/{name}.json") for member, name in names.items()},
            "placement": {"group": "run-group", "coordinator": "run-driver", "bundles": bundles, "ranks": placed},
            "phases": self.phases(),
            "prefix_chunks": self.chunks,
            "memory": [{"category": "weights", "bytes": 1}],
            "timeouts_s": self.profile["timeouts_s"],
            "ownership": {"creator": "tests", "lifetime": "driver"},
            "claim_scope": "reference_cpu_execution",
        }
        plan = self.edit("plan", plan)
        # An edit that sets the address itself keeps it: a plan at a wrong address.
        plan.setdefault("plan_sha256", sha256(rfc8785.dumps(plan)))
        self.plan_sha256 = plan["plan_sha256"]
        self.write_json("plan.json", plan)
