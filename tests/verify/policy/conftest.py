"""`bench`: a private root in memory, keys, and policies written by hand; what they sign is judged without a run.

The builders of policies are those of the vectors (`tests/vectors/maker/policies.py`), which know nothing of the
verifier.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric import ec

from mint2m_verify.finding import Finding, FindingError
from mint2m_verify.findings import drain
from mint2m_verify.policy import Accepted, PolicyAnchor, Role, judge_signatures, read_policy
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.sigstore_bundle import read_bundle

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
sys.path.insert(0, str(VECTORS))  # the maker is a script's package, not one of the project
from maker import forge, policies  # noqa: E402

SIGNED = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
AT = "2026-07-01T00:00:00Z"
SEAL_TYPE = "urn:mint2m:predicate:seal:v1"


@dataclass(frozen=True)
class Bench:
    """A root, any number of keys by name, and the folder in which policies are written."""

    folder: Path
    root: PrivateRoot
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)

    make: ModuleType = policies

    @property
    def root_path(self) -> Path:
        path = self.folder / "trusted_root.json"
        path.write_bytes(self.root.trusted_root())
        return path

    def key(self, name: str) -> ec.EllipticCurvePrivateKey:
        return self.keys.setdefault(name, ec.generate_private_key(ec.SECP256R1()))

    def key_signer(self, name: str, key: str | None = None, **changes: Any) -> dict[str, Any]:
        """A signer of the policy with a key of this bench."""
        from mint2m_verify.signing import public_key_pem

        held = self.key(key or name)
        made = policies.key_signer(name, **changes)
        made["key"] |= {"sha256": forge.key_digest(held).hex(), "pem": public_key_pem(held.public_key()).decode()}
        return made

    def root_entry(self, **changes: Any) -> dict[str, Any]:
        digest = hashlib.sha256(self.root.trusted_root()).hexdigest()
        return {"name": "private", "mode": "private-root", "sha256": digest, **changes}

    def payload(self, predicate_type: str = SEAL_TYPE, **predicate: Any) -> bytes:
        members = {"kind": "training", "stage": "run"} if predicate_type == SEAL_TYPE else {}
        return rfc8785.dumps(
            {
                "_type": "https://in-toto.io/Statement/v1",
                "subject": [{"name": "a", "digest": {"sha256": hashlib.sha256(b"a").hexdigest()}}],
                "predicateType": predicate_type,
                "predicate": {**members, **predicate},
            }
        )

    def by_key(self, name: str, payload: bytes | None = None) -> bytes:
        return rfc8785.dumps(forge.bundle(payload or self.payload(), self.key(name)))

    def by_identity(self, san: str = policies.SAN, payload: bytes | None = None, **options: Any) -> bytes:
        claims = {"source_repository_uri": policies.REPOSITORY}
        return self.root.sign_dsse(
            payload or self.payload(), san, policies.ISSUER, now=SIGNED, claims=claims, **options
        )

    def read(self, policy: dict[str, Any], *, at: str = AT) -> PolicyAnchor:
        path = self.folder / "policy.json"
        path.write_text(json.dumps(policy))
        return read_policy(path, trusted_root=self.root_path if policy.get("roots") else None, at=at)

    def refusal(self, policy: Any, *, at: str = AT) -> tuple[str, str | None]:
        """Id and pointer of why the policy is refused."""
        with pytest.raises(FindingError) as caught:
            self.read(policy, at=at)
        return caught.value.finding.id, caught.value.finding.pointer

    def judge(
        self,
        policy: dict[str, Any],
        bundles: Sequence[bytes],
        *,
        at: str = AT,
        role: Role | None = None,
    ) -> tuple[list[Finding], Accepted]:
        wanted = role or Role(predicate_type=SEAL_TYPE, kind="training", stage="run")
        parsed = [read_bundle(raw, file=f"bundle {number}") for number, raw in enumerate(bundles, start=1)]
        found, accepted = drain(judge_signatures(self.read(policy, at=at), parsed, wanted))
        return list(found), accepted


@pytest.fixture(scope="session")
def root() -> PrivateRoot:
    return PrivateRoot.create(start=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def bench(tmp_path: Path, root: PrivateRoot) -> Bench:
    return Bench(folder=tmp_path, root=root)
