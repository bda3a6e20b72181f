"""Makes a small run directory that is right in every number, or wrong in exactly the one that a test chooses.

Nothing here comes from the verifier: documents are plain dictionaries written by `rfc8785`, digests are `hashlib`'s,
the optimizer step is `torch.optim.AdamW`'s, the seal is signed with `cryptography` by hand. An edit is applied where
its part is made, and everything downstream (hashes, chains, seal) is then made again over it, so that the one change
is consistent with all the rest, as a forger with the signing key would leave it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rfc8785
import torch
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

Json = dict[str, Any]
Edit = Callable[[Any], Any]

MODULES = ("model.layers.0.self_attn.q_a_proj", "model.layers.0.mlp.gate_proj")
RANK, WIDTH = 2, 5
TIME = "2026-01-31T12:00:00Z"
EXECUTION = hashlib.sha256(b"an execution").hexdigest()
SOURCE = hashlib.sha256(b"a source tree").hexdigest()
NONCE = "nonce-1"
PROMPT = "1 and 3 are filed. Their sum? "
RESPONSES = ("Answer: 2", "Answer: 4")
CHUNK_BYTES = 64 << 20

TREES = (
    ("checkpoint", "artifacts/checkpoint-manifest.json", "checkpoint-manifest"),
    ("adapter", "artifacts/adapter-manifest.json", "file-manifest"),
    ("artifacts/adapter-before", "artifacts/adapter-before-manifest.json", "file-manifest"),
    ("inputs/model", "inputs/model-manifest.json", "model-manifest"),
)


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(key: Any) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@dataclass
class Recipe:
    """What a run is made of. `edits` maps a part's name to a function that changes it in place or returns another.

    Parts, in the order in which they are made: profile, model (files by name), payload, rollout, fixture, deployment,
    identity, plan, before, gradient, step (after and moments), scores, checkpoint (files), sessions (unchained, a list
    of rank records), chained (the whole rank-sessions document), journal (events), doctor, receipt, extra (files to
    be sealed), subjects, statement, bundle.
    """

    world_size: int = 2
    prompt: str = PROMPT
    seed: int = 7
    clip_grad: float = 1.0
    weight_decay: float = 0.01
    kl_beta: float = 0.0
    aggregation: str = "token_mean"
    prefix_gradient: str = "exact"
    old_source: str = "rollout"
    gradient_scale: float = 1.0
    signer: str = "managed"
    key: Any = field(default_factory=new_key)
    execution_id: str = EXECUTION
    edits: Mapping[str, Edit] = field(default_factory=dict)
    #: Leave out inputs/model, as for a snapshot outside the run directory.
    model_outside: bool = False


def build_run(root: Path, recipe: Recipe | None = None, **changes: Any) -> Recipe:
    """Write the run directory `root` and beside it `root.pub`; gives back what it was made of."""
    made = recipe or Recipe(**changes)
    _Builder(root, made).build()
    root.with_name(f"{root.name}.pub").write_bytes(public_pem(made.key))
    return made


def manifest(kind: str, folder: Path) -> Json:
    """The manifest of the files below `folder`, by the rule in the schema's description."""
    entries = []
    for path in sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.relative_to(folder).as_posix()):
        raw = path.read_bytes()
        chunks = [sha256(raw[i : i + CHUNK_BYTES]) for i in range(0, len(raw), CHUNK_BYTES)]
        executable = bool(path.stat().st_mode & 0o111)
        name = path.relative_to(folder).as_posix()
        entries.append(
            {"path": name, "size": len(raw), "executable": executable, "sha256": sha256(raw), "chunks": chunks}
        )
    return {
        "schema": f"mint2m.{kind}/v1",
        "tree": folder.name,
        "chunk_bytes": CHUNK_BYTES,
        "file_count": len(entries),
        "total_bytes": sum(entry["size"] for entry in entries),
        "files": entries,
        "root_sha256": sha256(b"mint2m.tree/v1\n" + rfc8785.dumps(entries)),
    }


def safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The safetensors format, written by hand after its specification."""
    header: Json = {}
    body = b""
    for name in sorted(tensors):
        raw = np.ascontiguousarray(tensors[name]).tobytes()
        kind = {"float32": "F32", "float64": "F64"}[tensors[name].dtype.name]
        header[name] = {
            "dtype": kind,
            "shape": list(tensors[name].shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def adapter_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """`adapter_sha256`: for each tensor by name a canonical line, then its bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(rfc8785.dumps({"name": name, "dtype": "F32", "shape": list(tensors[name].shape)}) + b"\n")
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def sign_bundle(payload: bytes, key: Any) -> Json:
    """A DSSE envelope in a Sigstore bundle v0.3 with a managed key."""
    kind = b"application/vnd.in-toto+json"
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    ed = isinstance(key, ed25519.Ed25519PrivateKey)
    signature = key.sign(message) if ed else key.sign(message, ec.ECDSA(hashes.SHA256()))
    der = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {
            "publicKey": {"hint": base64.b64encode(hashlib.sha256(der).digest()).decode()},
            "tlogEntries": [],
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": kind.decode(),
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }


def reseal(root: Path, recipe: Recipe) -> None:
    """Sign what lies in `root` now, as it lies there: for changes made to the finished directory."""
    _Builder(root, recipe).seal()


class _Builder:
    def __init__(self, root: Path, recipe: Recipe) -> None:
        self.root, self.recipe = root, recipe
        self.responses = [list(text.encode()) for text in RESPONSES]

    def edit(self, part: str, value: Any) -> Any:
        change = self.recipe.edits.get(part)
        if change is None:
            return value
        changed = change(value)
        return value if changed is None else changed

    def write(self, path: str, raw: bytes) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(raw)

    def write_json(self, path: str, value: Json) -> None:
        self.write(path, rfc8785.dumps(value))

    def ref(self, path: str, name: str | None = None) -> Json:
        raw = (self.root / path).read_bytes()
        return {"path": name or path, "sha256": sha256(raw), "size": len(raw)}

    def build(self) -> None:
        self.profile = self.edit("profile", self._profile())
        self.write_json("inputs/profile.json", self.profile)
        model = self.edit(
            "model", {"config.json": b'{"vocab_size":256}', "model-00001-of-00001.safetensors": b"weights" * 9}
        )
        for name, raw in model.items():
            self.write(f"inputs/model/{name}", raw)
        self.write_json("inputs/model-manifest.json", manifest("model-manifest", self.root / "inputs/model"))
        if self.recipe.model_outside:
            for name in model:
                (self.root / "inputs/model" / name).unlink()
            (self.root / "inputs/model").rmdir()
        self._inputs()
        self._plan()
        self._update()
        self._checkpoint()
        self._sessions()
        self._journal()
        check = {"id": "packages", "status": "passed", "pointer": None, "expected": None, "actual": None, "hint": None}
        doctor = {"schema": "mint2m.doctor/v1", "scope": "run", "tool_version": "0.1.0", "status": "passed"}
        self.write_json("doctor.json", self.edit("doctor", {**doctor, "checks": [check], "primary_failure": None}))
        self._receipt()
        for path, raw in self.edit("extra", {}).items():
            self.write(path, raw)
        self.seal()

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

    def _evidence(self, phase: str, rank: int) -> Json:
        world = self.recipe.world_size
        weights = sha256(b"weights of rank %d" % rank)
        common = {
            "collectives": 3,
            "ledger_sha256": sha256(f"ledger after {phase}".encode()),
            "peak_memory_bytes": 10**8 + rank,
        }
        if phase.startswith("grpo-"):
            g = int(phase[5:])
            seen = {
                "response": g,
                "response_tokens": len(self.responses[g]),
                "scored_tokens": len(self.responses[g]),
                "loss": self.shares[g],
                "clipped_low": self.scores["responses"][g]["clipped_low"],
                "clipped_high": self.scores["responses"][g]["clipped_high"],
                "max_ratio_deviation": self.deviations[g],
                "backward_calls": 1,
            }
            if self.recipe.kl_beta:
                seen["kl"] = sum(self.kls[g]) / len(self.kls[g])
            return {**seen, **common}
        rows = len(self.recipe.prompt) - 1
        # Each chunk's rows are dealt to within one, the first ranks take one more; the model has one layer.
        shares = [(min(rows - start, 8) + world - 1 - rank) // world for start in range(0, rows, 8)]
        identity = self.ref("inputs/runtime-identity.json")["sha256"]
        table: dict[str, Json] = {
            "bind": {"runtime_identity_sha256": identity, "source_sha256": SOURCE, "world_size": world},
            "initialize": {
                "backend": "gloo",
                "world_size": world,
                "context_parallel": world,
                "expert_parallel": world,
            },
            "materialize": {
                "weights_sha256": weights,
                "adapter_sha256": adapter_digest(self.before),
                "tensors": 9,
                "parameters": 900,
                "trainable_parameters": 40,
            },
            "capture-prefix": {
                "prompt_tokens": rows,
                "chunks": self.chunks,
                "page_rows": sum(shares),
                "page_bytes": sum(shares) * 64,
                "pages_sha256": sha256(b"pages"),
                "weights_sha256": weights,
                "forward_nonce": "ab" * 16,
            },
            "score-old": {"scored_tokens": sum(len(r) for r in self.responses), "weights_sha256": weights},
            "prefix-backward": {
                "chunks": self.chunks,
                "backward_calls": self.chunks,
                "rows_compared": sum(shares),
                "row_difference": 0,
                "gradient_pages_released": sum(share > 0 for share in shares),
            },
            "finalize": {
                "finalize_calls": 1,
                "gradient_norm": self.norm,
                "clip_coefficient": self.coefficient,
                "weights_sha256": weights,
            },
            "optimizer-step": {
                "optimizer_contract": self.profile["optimizer"],
                "optimizer_steps": 1,
                "gradients_zeroed": True,
                "adapter_sha256": adapter_digest(self.after),
            },
            "checkpoint": {"adapter_sha256": adapter_digest(self.after), "weights_sha256": weights, "tensors": 12},
        }
        return {**table[phase], **common}

    def _written(self, phase: str, rank: int) -> list[Json]:
        """Files that a rank wrote in a phase: rank 0 the artifacts, every rank its part of the checkpoint."""
        own = {
            "materialize": ["artifacts/adapter-before/adapter_model.safetensors"],
            "finalize": ["artifacts/gradient.safetensors", "artifacts/scores.json"],
            "checkpoint": ["adapter/adapter_model.safetensors", "artifacts/optimizer-after.safetensors"],
        }
        paths = own.get(phase, []) if rank == 0 else []
        part = f"checkpoint/__{rank}_0.distcp"
        if phase == "checkpoint" and (self.root / part).exists():
            paths = [*paths, part]
        return [self.ref(path) for path in paths]

    def _sessions(self) -> None:
        ranks = []
        for rank in range(self.recipe.world_size):
            records = [
                {
                    "sequence": number,
                    "phase": phase,
                    "started_at": TIME,
                    "ended_at": TIME,
                    "files": self._written(phase, rank),
                    "evidence": self._evidence(phase, rank),
                }
                for number, phase in enumerate(self.phases())
            ]
            place = {"node_ip": "127.0.0.1", "slot": rank}
            ranks.append(
                {
                    "rank": rank,
                    "world_size": self.recipe.world_size,
                    "actor": f"run-rank-{rank:04d}",
                    "actor_id": f"{rank + 1:032x}",
                    "pid": 100 + rank,
                    "placement": {
                        **{f"planned_{k}": v for k, v in place.items()},
                        **{f"observed_{k}": v for k, v in place.items()},
                        "observed_accelerator": "cpu",
                    },
                    "phases": records,
                    "cleanup": {"session_closed": True, "groups_destroyed": True, "actor_absent": True},
                }
            )
        ranks = self.edit("sessions", ranks)
        for entry in ranks:
            start = {
                "execution_id": self.recipe.execution_id,
                "plan_sha256": self.plan_sha256,
                "rank": entry["rank"],
            }
            previous = sha256(rfc8785.dumps(start))
            for record in entry["phases"]:
                record["previous_sha256"] = previous
                previous = sha256(rfc8785.dumps(record))
        document = {
            "schema": "mint2m.rank-sessions/v1",
            "plan_sha256": self.plan_sha256,
            "execution_id": self.recipe.execution_id,
            "ranks": ranks,
        }
        self.write_json("artifacts/rank-sessions.json", self.edit("chained", document))

    def _journal(self) -> None:
        ids = {f"run-rank-{rank:04d}": f"{rank + 1:032x}" for rank in range(self.recipe.world_size)}

        def owned(kind: str, name: str) -> Json:
            known = {"id": ids.get(name), "pid": None, "start_ticks": None, "node_ip": None}
            return {"kind": kind, "name": name, **known}

        names = [("ray", "local"), ("actor", "run-driver"), ("placement-group", "run-group")]
        names += [("actor", f"run-rank-{rank:04d}") for rank in range(self.recipe.world_size)]
        events: list[Json] = [{"event": "opened", "resource": None}]
        for kind, name in names:
            events += [{"event": event, "resource": owned(kind, name)} for event in ("intent", "created")]
        for kind, name in reversed(names):
            events += [{"event": event, "resource": owned(kind, name)} for event in ("released", "absent")]
        events.append({"event": "closed", "resource": None})
        events = self.edit("journal", events)
        previous, lines = None, []
        for number, event in enumerate(events):
            line = rfc8785.dumps(
                {
                    "schema": "mint2m.ownership-event/v1",
                    "sequence": number,
                    "previous_sha256": previous,
                    "time": TIME,
                    "plan_sha256": self.plan_sha256,
                    "execution_id": self.recipe.execution_id,
                    "detail": None,
                    **event,
                }
            )
            previous = sha256(line)
            lines.append(line + b"\n")
        self.write("ownership.jsonl", b"".join(lines))

    def _receipt(self) -> None:
        for folder, path, kind in TREES[:3]:
            self.write_json(path, self.edit(path, manifest(kind, self.root / folder)))
        exact = self.recipe.prefix_gradient == "exact"
        names = {
            "doctor": "doctor.json",
            "plan": "plan.json",
            "ownership": "ownership.jsonl",
            "rank_sessions": "artifacts/rank-sessions.json",
            "scores": "artifacts/scores.json",
            "gradient": "artifacts/gradient.safetensors",
            "optimizer_after": "artifacts/optimizer-after.safetensors",
            "checkpoint_manifest": "artifacts/checkpoint-manifest.json",
            "adapter_before_manifest": "artifacts/adapter-before-manifest.json",
            "adapter_manifest": "artifacts/adapter-manifest.json",
        }
        receipt = {
            "schema": "mint2m.training-receipt/v1",
            "run_id": "run-1",
            "plan_sha256": self.plan_sha256,
            "execution_id": self.recipe.execution_id,
            "claim_scope": "reference_cpu_execution",
            "hardware_class": "reference-cpu",
            "started_at": TIME,
            "ended_at": TIME,
            "world_size": self.recipe.world_size,
            "group_size": len(RESPONSES),
            "prompt_tokens": len(self.recipe.prompt),
            "chunk_tokens": 8,
            "prefix_gradient": self.recipe.prefix_gradient,
            "response_backwards": len(RESPONSES),
            "prefix_backwards": self.chunks if exact else 0,
            "finalize_calls": 1,
            "optimizer_steps": 1,
            "signal": "signal" if any(self.advantages) else "no-signal",
            "max_row_difference": 0 if exact else None,
            "loss": self.scores["loss"],
            "gradient_norm": self.scores["gradient_norm"],
            "clip_coefficient": self.scores["clip_coefficient"],
            "files": {member: self.ref(path) for member, path in names.items()},
            "cleanup": {"coordinator_absent": True, "placement_group_absent": True, "actors_absent": True},
        }
        self.write_json("receipt.json", self.edit("receipt", receipt))

    def seal(self) -> None:
        plan = json.loads((self.root / "plan.json").read_bytes())
        subjects = []
        for path in sorted(p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file()):
            if path.startswith("attestations/") or any(path.startswith(f"{folder}/") for folder, *_ in TREES):
                continue
            subjects.append({"name": path, "digest": {"sha256": sha256((self.root / path).read_bytes())}})
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": self.edit("subjects", subjects),
            "predicateType": "urn:mint2m:predicate:seal:v1",
            "predicate": {
                "kind": "training",
                "stage": "run",
                "execution_id": self.recipe.execution_id,
                "plan_sha256": plan["plan_sha256"],
                "parent": None,
                "claim_scope": "reference_cpu_execution",
                "hardware_class": "reference-cpu",
                "signer": self.recipe.signer,
                "log": {"size": 0, "root": sha256(b"")},
            },
        }
        payload = rfc8785.dumps(self.edit("statement", statement))
        self.write_json("attestations/seal.sigstore.json", self.edit("bundle", sign_bundle(payload, self.recipe.key)))
