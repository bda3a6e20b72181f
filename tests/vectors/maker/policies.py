"""Policies that the vectors bring, and the private root under which some of them count.

The rule: a policy here is a dictionary written by hand in the published form; nothing of the verifier makes it. The
root and what it signed are made once (`make.py witnesses`) and committed, since certificates and logs differ at each
making.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import rfc8785
from cryptography.hazmat.primitives import serialization

from maker.forge import KEYS, SEAL, Run, bundle, key_digest, load_key, read_base

#: When the vectors are judged; the policy below is valid then, and what the root signed was signed a month before.
AT = "2026-07-01T00:00:00Z"
SIGNED = "2026-06-01T00:00:00Z"
ROOT = KEYS / "private-root"

VERIFY = ("verify", "run", "{run}", "--policy", "{outside}/policy.json", "--at", AT)
WITH_ROOT = (*VERIFY, "--trusted-root", "{keys}/private-root/trusted_root.json")

#: Who signs under the private root.
SAN = "https://example.com/acme/runs/.workflows/run.yml@refs/heads/main"
ISSUER = "https://issuer.example.com"
REPOSITORY = "https://example.com/acme/runs"

GRANT = "attestations/grant.sigstore.json"
GRANT_TYPE = "urn:mint2m:predicate:grant:v1"

#: What a grant is for, by kind: where it lies in the evidence, and what the statement calls it.
GRANTED = {
    "training": ("inputs/deployment.json", "deployment.json"),
    "validation": ("validation-plan.json", "validation-plan.json"),
}

Policy = dict[str, Any]


def pem(name: str) -> str:
    public = load_key(name).public_key()
    kinds = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return public.public_bytes(*kinds).decode()


def key_signer(name: str = "operator", key: str = "release", **changes: Any) -> Policy:
    """A signer with a key; `changes` are of the key, or of the signer where it has such a member."""
    signer: Policy = {
        "name": name,
        "identity": None,
        "key": {
            "sha256": key_digest(load_key(key)).hex(),
            "pem": pem(key),
            "mode": "managed-key",
            "not_before": None,
            "not_after": None,
            "revoked": None,
        },
        "roots": [],
        "needs": {"transparency": False, "timestamp": False},
    }
    for member, value in changes.items():
        (signer if member in signer else signer["key"])[member] = value
    return signer


def identity_signer(name: str = "workflow", san: str = SAN, **changes: Any) -> Policy:
    signer: Policy = {
        "name": name,
        "identity": {"san": san, "issuer": ISSUER, "claims": []},
        "key": None,
        "roots": ["private"],
        "needs": {"transparency": True, "timestamp": False},
    }
    for member, value in changes.items():
        (signer if member in signer else signer["identity"])[member] = value
    return signer


def root_entry(**changes: Any) -> Policy:
    digest = hashlib.sha256((ROOT / "trusted_root.json").read_bytes()).hexdigest()
    return {"name": "private", "mode": "private-root", "sha256": digest, **changes}


def run_rule(*signers: str, **changes: Any) -> Policy:
    return {
        "name": "run",
        "predicate_type": "urn:mint2m:predicate:seal:v1",
        "kind": "training",
        "stage": "run",
        "signers": list(signers),
        "threshold": 1,
        "requires": [],
        "hardware_classes": None,
        "claim_scopes": None,
        "authorization_required": False,
        "minimum_version": None,
        "maximum_age_days": None,
        **changes,
    }


def release_rule(*signers: str, **changes: Any) -> Policy:
    about = {"name": "release", "predicate_type": "urn:mint2m:predicate:release:v1", "kind": "release", "stage": None}
    return run_rule(*signers, **{**about, **changes})


def grant_rule(*signers: str, kind: str = "training", **changes: Any) -> Policy:
    about = {"name": "grant", "predicate_type": GRANT_TYPE, "kind": kind, "stage": None}
    return run_rule(*signers, **{**about, **changes})


def granted(run: Run, key: str, change: Any = None, *, kind: str = "training") -> None:
    """Lay a grant into the evidence: for the file that it is about, for the year in which the vectors are judged."""
    path, name = GRANTED[kind]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256(run.files[path]).hexdigest()}}],
        "predicateType": GRANT_TYPE,
        "predicate": {
            "schema": "mint2m.grant/v1",
            "kind": kind,
            "reason": "a review",
            "not_before": "2026-01-01T00:00:00Z",
            "not_after": "2026-12-31T00:00:00Z",
        },
    }
    if change is not None:
        change(statement)
    run.files[GRANT] = rfc8785.dumps(bundle(rfc8785.dumps(statement), load_key(key)))


def may_assert(*signers: str, **changes: Any) -> Policy:
    return {
        "signers": list(signers),
        "hardware_classes": ["reference-cpu"],
        "claim_scopes": ["reference_cpu_execution"],
        "authorization_grant": False,
        **changes,
    }


def policy(*signers: Policy, **changes: Any) -> Policy:
    """A sound policy by which any of `signers` may sign a run; without any, the operator with the key `release`."""
    known = list(signers) or [key_signer()]
    names = [signer["name"] for signer in known]
    return {
        "schema": "mint2m.trust-policy/v1",
        "name": "vectors",
        "not_before": None,
        "not_after": "2027-01-01T00:00:00Z",
        "roots": [],
        "signers": known,
        "rules": [run_rule(*names)],
        "assertions": [may_assert(*names)],
        "revoked": [],
        **changes,
    }


def bring(run: Run, made: Policy, place: str = "policy.json") -> None:
    """Lay the policy beside the run, as a person would write it."""
    run.outside[place] = (json.dumps(made, indent=2) + "\n").encode()


def payload_of(base: str) -> bytes:
    return base64.b64decode(json.loads(read_base(base)[SEAL])["dsseEnvelope"]["payload"])


def witnessed(name: str) -> bytes:
    """A bundle that the private root made or witnessed."""
    return (ROOT / f"{name}.sigstore.json").read_bytes()
