"""Makes a small run directory that is right in every number, or wrong in exactly the one that a test chooses.

Nothing here comes from the verifier: documents are plain dictionaries written by `rfc8785`, digests are `hashlib`'s,
the optimizer step is `torch.optim.AdamW`'s, the seal is signed with `cryptography` by hand. An edit is applied where
its part is made, and everything downstream (hashes, chains, seal) is then made again over it, so that the one change
is consistent with all the rest, as a forger with the signing key would leave it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import rfc8785

sys.path.insert(0, str(Path(__file__).parent))
from small_run.parts import (
    NONCE,
    RESPONSES,
    TIME,
    TREES,
    Recipe,
    manifest,
    new_key,
    public_pem,
    sha256,
    sign_bundle,
)
from small_run.records import Records

__all__ = ["NONCE", "Recipe", "build_run", "manifest", "new_key", "public_pem", "reseal"]


def build_run(root: Path, recipe: Recipe | None = None, **changes: Any) -> Recipe:
    """Write the run directory `root` and beside it `root.pub`; gives back what it was made of."""
    made = recipe or Recipe(**changes)
    _Builder(root, made).build()
    root.with_name(f"{root.name}.pub").write_bytes(public_pem(made.key))
    return made


def reseal(root: Path, recipe: Recipe) -> None:
    """Sign what lies in `root` now, as it lies there: for changes made to the finished directory."""
    _Builder(root, recipe).seal()


class _Builder(Records):
    """All of it, in the order in which each part names the ones before."""

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
        blank = {"status": "passed", "pointer": None, "expected": None, "hint": None}
        examined = {"profile": "profile", "model": "model-manifest", "runtime-identity": "runtime-identity"}
        checks = [
            {**blank, "id": id, "actual": hashlib.sha256((self.root / f"inputs/{name}.json").read_bytes()).hexdigest()}
            for id, name in examined.items()
        ]
        doctor = {"schema": "mint2m.doctor/v1", "scope": "run", "tool_version": "0.1.0", "status": "passed"}
        self.write_json("doctor.json", self.edit("doctor", {**doctor, "checks": checks, "primary_failure": None}))
        self._receipt()
        for path, raw in self.edit("extra", {}).items():
            self.write(path, raw)
        self.seal()

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
