"""A run in memory that one change is made to, and then everything that binds the change made right again.

The rule: nothing of the verifier is used. Digests are `hashlib`'s, canonical JSON is `rfc8785`'s, the seal is signed
with `cryptography` by hand, as a forger would who holds the signing key and has read the formats. Where a digest,
chain or seal is made again, it is right; so what a vector shows is its one change and nothing else. An untouched run
comes out of `follow` byte for byte (`make.py` refuses to go on where it does not).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rfc8785
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from safetensors.numpy import load, save

HERE = Path(__file__).resolve().parents[1]
BASES = HERE / "bases"
KEYS = HERE / "test-only-keys"

SEAL = "attestations/seal.sigstore.json"
SCORES = "artifacts/scores.json"
SESSIONS = "artifacts/rank-sessions.json"
GRADIENT = "artifacts/gradient.safetensors"
MOMENTS = "artifacts/optimizer-after.safetensors"
BEFORE = "artifacts/adapter-before/adapter_model.safetensors"
AFTER = "adapter/adapter_model.safetensors"
DEPLOYMENT = "inputs/deployment.json"

#: Of all bases; only its digest is in them.
NONCE = "a nonce that the auditor knows"

KEY_OF_BASE = {"run": "release", "run-one-rank": "release-p256"}

TREES = {
    "checkpoint/": "artifacts/checkpoint-manifest.json",
    "adapter/": "artifacts/adapter-manifest.json",
    "artifacts/adapter-before/": "artifacts/adapter-before-manifest.json",
    "inputs/model/": "inputs/model-manifest.json",
}
INPUTS = {
    "deployment": DEPLOYMENT,
    "profile": "inputs/profile.json",
    "fixture": "inputs/fixture.json",
    "payload": "inputs/payload.json",
    "rollout": "inputs/rollout.json",
    "model_manifest": "inputs/model-manifest.json",
    "runtime_identity": "inputs/runtime-identity.json",
}
CHUNK = 64 << 20

Tensors = dict[str, np.ndarray]


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def read_base(name: str) -> dict[str, bytes]:
    """The files of a base by path; `run-again` holds only those in which it differs from `run`."""
    root = BASES / name
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def load_key(name: str) -> Any:
    return serialization.load_pem_private_key((KEYS / f"{name}.key").read_bytes(), password=None)


def key_digest(key: Any) -> bytes:
    """SHA-256 of the public half's SubjectPublicKeyInfo, DER: what a bundle's hint holds."""
    der = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).digest()


def sign(payload: bytes, key: Any, *, kind: str = "application/vnd.in-toto+json") -> bytes:
    """DSSE v1 over `payload`. ECDSA is signed as in RFC 6979, so that making vectors again gives the same bytes."""
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(message)
    return key.sign(message, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))


def bundle(payload: bytes, key: Any) -> dict[str, Any]:
    """A Sigstore bundle v0.3 with a managed key."""
    return {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": text64(key_digest(key))}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": text64(payload),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"keyid": "", "sig": text64(sign(payload, key))}],
        },
    }


def text64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


#: Checks of the doctor that name an input by its digest.
EXAMINED = {
    "profile": "inputs/profile.json",
    "model": "inputs/model-manifest.json",
    "runtime-identity": "inputs/runtime-identity.json",
}


@dataclass
class Run:
    """One run directory in memory. `steps` are what bytes cannot say (links, modes, names), as `case.json` has them."""

    base: str
    files: dict[str, bytes]
    steps: dict[str, Any] = field(default_factory=dict)
    outside: dict[str, bytes] = field(default_factory=dict)  # what the auditor brings, beside the run

    @classmethod
    def of(cls, base: str) -> Run:
        return cls(base=base, files=read_base(base))

    # Reading and changing

    def json(self, path: str) -> Any:
        return json.loads(self.files[path])

    def put(self, path: str, value: Any) -> None:
        """Write a document in the form its file has: RFC 8785, or indented for the deployment, which people write."""
        if path == DEPLOYMENT:
            self.files[path] = (json.dumps(value, indent=2) + "\n").encode()
        else:
            self.files[path] = rfc8785.dumps(value)

    def edit(self, path: str, change: Callable[[Any], Any]) -> None:
        """Apply `change` to a document in place; a value that it returns takes the document's place."""
        value = self.json(path)
        changed = change(value)
        self.put(path, value if changed is None else changed)

    def set(self, path: str, pointer: str, value: Any) -> None:
        """Set one member, named by a JSON pointer."""

        def change(document: Any) -> None:
            *way, last = [int(part) if part.isdigit() else part for part in pointer.strip("/").split("/")]
            for part in way:
                document = document[part]
            document[last] = value

        self.edit(path, change)

    def flip(self, path: str, offset: int) -> None:
        """One bit of one byte, told in words since the file may be large."""
        self.steps.setdefault("flip", {})[path] = offset

    def tensors(self, path: str) -> Tensors:
        return {name: tensor.copy() for name, tensor in load(self.files[path]).items()}

    def put_tensors(self, path: str, tensors: Tensors) -> None:
        self.files[path] = save(tensors)

    def journal(self) -> list[Any]:
        return [json.loads(line) for line in self.files["ownership.jsonl"].splitlines()]

    def put_journal(self, events: list[Any], *, chain: bool = True) -> None:
        """The journal's lines; with `chain` numbered and chained again."""
        previous, lines = None, []
        for number, event in enumerate(events):
            if chain:
                event = {**event, "sequence": number, "previous_sha256": previous}
            line = rfc8785.dumps(event)
            previous = sha256(line)
            lines.append(line + b"\n")
        self.files["ownership.jsonl"] = b"".join(lines)

    def edit_evidence(self, phase: str, change: Callable[[dict[str, Any]], None], *, rank: int | None = None) -> None:
        """Change the evidence of `phase`, on one rank or on all."""

        def apply(document: Any) -> None:
            touched = 0
            for session in document["ranks"]:
                for record in session["phases"]:
                    if record["phase"] == phase and rank in (None, session["rank"]):
                        change(record["evidence"])
                        touched += 1
            if not touched:
                raise SystemExit(f"no phase {phase} in {self.base}")

        self.edit(SESSIONS, apply)

    # Making right again what binds a change, from the inputs up

    def follow(self, *, after: str = "") -> None:
        """Redo every binding downstream; `after` leaves the stages up to and including that one as they are."""
        stages = ("inputs", "plan", "execution", "manifests", "records", "receipt", "seal")
        for stage in stages[stages.index(after) + 1 if after else 0 :]:
            getattr(self, f"redo_{stage}")()

    def ref(self, path: str, name: str | None = None) -> dict[str, Any]:
        raw = self.files[path]
        return {"path": name or path, "sha256": sha256(raw), "size": len(raw)}

    def redo_inputs(self) -> None:
        """The model manifest's root, the fixture's and the deployment's digests."""
        if any(path.startswith("inputs/model/") for path in self.files):
            self._manifest("inputs/model/")
        fixture = self.json("inputs/fixture.json")
        fixture["payload"] = self.ref("inputs/payload.json", "payload.json")
        fixture["rollout"] = self.ref("inputs/rollout.json", "rollout.json")
        fixture["profile_sha256"] = sha256(self.files["inputs/profile.json"])
        fixture["model"]["manifest_sha256"] = sha256(self.files["inputs/model-manifest.json"])
        policy = self.entries("inputs/adapter-initial/")
        fixture["policy_sha256"] = tree_root(policy) if policy else None
        self.put("inputs/fixture.json", fixture)
        self.redo_deployment()

    def redo_deployment(self) -> None:
        deployment = self.json(DEPLOYMENT)
        deployment["fixture"]["sha256"] = sha256(self.files["inputs/fixture.json"])
        deployment["model"]["model_manifest_sha256"] = sha256(self.files["inputs/model-manifest.json"])
        if deployment["profile"] is not None:
            deployment["profile"]["sha256"] = sha256(self.files["inputs/profile.json"])
        self.put(DEPLOYMENT, deployment)

    def redo_plan(self) -> None:
        """The doctor's record of the inputs; the plan's inputs, its copy of the profile, its address."""
        self.redo_doctor()
        plan = self.json("plan.json")
        plan["profile"] = self.json("inputs/profile.json")
        plan["inputs"] = {member: self.ref(path) for member, path in INPUTS.items()}
        plan["model"]["manifest_sha256"] = sha256(self.files["inputs/model-manifest.json"])
        self.put("plan.json", plan)
        self.redo_address()

    def redo_doctor(self) -> None:
        """The digests of the inputs that the doctor says it looked at."""

        def change(doctor: Any) -> None:
            for check in doctor["checks"]:
                path = EXAMINED.get(check["id"])
                if path is not None:
                    check["actual"] = re.sub("[0-9a-f]{64}", sha256(self.files[path]), check["actual"], count=1)

        self.edit("doctor.json", change)

    def redo_address(self) -> None:
        plan = self.json("plan.json")
        del plan["plan_sha256"]
        plan["plan_sha256"] = sha256(rfc8785.dumps(plan))
        self.put("plan.json", plan)

    def redo_execution(self) -> None:
        """The plan's address and the execution id, wherever they are repeated."""
        plan_sha256 = self.json("plan.json")["plan_sha256"]
        execution = self.json("receipt.json")["execution_id"]
        for path in (SCORES, SESSIONS, "receipt.json"):
            value = self.json(path)
            value["plan_sha256"], value["execution_id"] = plan_sha256, execution
            self.put(path, value)
        events = self.journal()
        for event in events:
            event["plan_sha256"], event["execution_id"] = plan_sha256, execution
        self.put_journal(events)

    def redo_manifests(self) -> None:
        for prefix in ("checkpoint/", "adapter/", "artifacts/adapter-before/"):
            if TREES[prefix] in self.files:  # a run that takes no step has no tree of one
                self._manifest(prefix)

    def redo_records(self) -> None:
        """Files that the ranks name, and the chain of each rank."""
        document = self.json(SESSIONS)
        for session in document["ranks"]:
            for record in session["phases"]:
                record["files"] = [self.ref(f["path"]) if f["path"] in self.files else f for f in record["files"]]
        self.put(SESSIONS, document)
        self.redo_chain()

    def redo_chain(self) -> None:
        document = self.json(SESSIONS)
        for session in document["ranks"]:
            start = {m: document[m] for m in ("execution_id", "plan_sha256")} | {"rank": session["rank"]}
            previous = sha256(rfc8785.dumps(start))
            for record in session["phases"]:
                record["previous_sha256"] = previous
                previous = sha256(rfc8785.dumps(record))
        self.put(SESSIONS, document)

    def redo_receipt(self) -> None:
        receipt = self.json("receipt.json")
        receipt["files"] = {
            member: self.ref(ref["path"]) if ref["path"] in self.files else ref
            for member, ref in receipt["files"].items()
        }
        self.put("receipt.json", receipt)

    def redo_seal(
        self,
        change: Callable[[dict[str, Any]], None] | None = None,
        *,
        key: str | None = None,
        bundled: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Sign what is there now.

        Args:
            change: made to the statement before it is signed.
            key: instead of the base's own.
            bundled: made to the bundle after it was signed.
        """
        receipt = self.json("receipt.json")
        signer = json.loads(base64.b64decode(json.loads(read_base(self.base)[SEAL])["dsseEnvelope"]["payload"]))
        outside = [p for p in self.files if not p.startswith(("attestations/", *TREES))]
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": p, "digest": {"sha256": sha256(self.files[p])}} for p in sorted(outside)],
            "predicateType": "urn:mint2m:predicate:seal:v1",
            "predicate": {
                **signer["predicate"],
                "execution_id": receipt["execution_id"],
                "plan_sha256": self.json("plan.json")["plan_sha256"],
            },
        }
        if change is not None:
            change(statement)
        made = bundle(rfc8785.dumps(statement), load_key(key or KEY_OF_BASE.get(self.base, "release")))
        if bundled is not None:
            bundled(made)
        self.put(SEAL, made)

    def entries(self, prefix: str) -> list[dict[str, Any]]:
        """What a manifest says of the files below a directory."""
        return [
            {
                "path": path.removeprefix(prefix),
                "size": len(raw),
                "executable": False,
                "sha256": sha256(raw),
                "chunks": [sha256(raw[i : i + CHUNK]) for i in range(0, len(raw), CHUNK)],
            }
            for path, raw in sorted(self.files.items())
            if path.startswith(prefix)
        ]

    def _manifest(self, prefix: str) -> None:
        old, entries = self.json(TREES[prefix]), self.entries(prefix)
        self.put(
            TREES[prefix],
            {
                **old,
                "files": entries,
                "file_count": len(entries),
                "total_bytes": sum(entry["size"] for entry in entries),
                "root_sha256": tree_root(entries),
            },
        )


def tree_root(entries: list[dict[str, Any]]) -> str:
    return sha256(b"mint2m.tree/v1\n" + rfc8785.dumps(entries))
