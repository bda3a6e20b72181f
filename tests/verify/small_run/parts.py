"""What every part of a small run is made with: its recipe, its formats and digests written by hand, its files."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rfc8785
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


class Parts:
    """A run directory that is being made; a part may be edited where it is made."""

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
