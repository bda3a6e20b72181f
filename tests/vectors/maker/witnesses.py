"""The private root of the vectors, and the seals that it signed or witnessed; made once, since each making differs.

`python tests/vectors/make.py witnesses` makes them again after the bases changed; the example of
docs/trust.md then needs the new root's digest.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime

import rfc8785

from maker.forge import SEAL, Run, bundle, load_key
from maker.policies import ISSUER, REPOSITORY, ROOT, SAN, SIGNED, payload_of
from mint2m_verify.signers.private_root import PrivateRoot


def certificate_payload() -> bytes:
    """The statement of `run`, sealed by a certificate."""
    run = Run.of("run")
    run.redo_seal(lambda made: made["predicate"].update(signer="certificate"))
    return base64.b64decode(json.loads(run.files[SEAL])["dsseEnvelope"]["payload"])


def make_witnesses() -> None:
    """Write `test-only-keys/private-root/`; the root's secrets are not kept."""
    now = datetime.fromisoformat(SIGNED)
    root = PrivateRoot.create(start=datetime.fromisoformat("2026-01-01T00:00:00+00:00"))
    ROOT.mkdir(exist_ok=True)
    key = load_key("release-p256")
    plain = rfc8785.dumps(bundle(payload_of("run-one-rank"), key))
    claims = {"source_repository_uri": REPOSITORY}
    payload, managed = certificate_payload(), payload_of("run")
    made = {
        "logged": root.witness(plain, key.public_key(), log="v1", now=now, timestamp=False),
        "stamped": root.witness(plain, key.public_key(), log="v2", now=now, timestamp=True),
        "certificate-v1": root.sign_dsse(payload, SAN, ISSUER, log="v1", now=now, claims=claims),
        "certificate-v2": root.sign_dsse(payload, SAN, ISSUER, log="v2", now=now, claims=claims),
        "certificate-stranger": root.sign_dsse(payload, "eve@example.com", ISSUER, log="v1", now=now),
        "certificate-cosigns": root.sign_dsse(managed, SAN, ISSUER, log="v1", now=now, claims=claims),
    }
    (ROOT / "trusted_root.json").write_bytes(root.trusted_root())
    (ROOT / "other_root.json").write_bytes(PrivateRoot.create(start=now).trusted_root())
    for name, raw in made.items():
        (ROOT / f"{name}.sigstore.json").write_bytes(raw)
