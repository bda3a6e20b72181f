"""Bundles that are made here, judged by the npm packages @sigstore/bundle and @sigstore/verify, unmodified.

Needs Node and npm, and npm's registry. The packages ask for Node 22; they were seen to work on 18.20 and 20.20. In each
test the same bundle is also shown with one change, and must be refused: a verifier that accepts everything would pass
otherwise.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.sealing import seal_run
from mint2m_verify.signers.key_signer import KeySigner, signer_of
from mint2m_verify.signers.private_log import LogVersion
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.signing import KeyKind, new_private_key, public_key_pem

HERE = Path(__file__).parent
WHO, ISSUER = "https://example.org/train.yml@refs/heads/main", "https://issuer.example.org"
BLOB = b"bytes that somebody signs"
STATEMENT = json.dumps(
    {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "blob", "digest": {"sha256": hashlib.sha256(BLOB).hexdigest()}}],
        "predicateType": "https://example.org/predicate",
        "predicate": {},
    }
).encode()

#: What npm says where there is no way to its registry: no fault of ours.
OFFLINE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH")


@dataclass(frozen=True, slots=True)
class Verifier:
    """A running Node process that answers one job a line."""

    process: subprocess.Popen[str]

    def ask(self, raw: bytes | dict[str, Any], **job: Any) -> str:
        """`accepted`, or the code of the refusal."""
        bundle = raw if isinstance(raw, dict) else json.loads(raw)
        artifact = job.pop("artifact", None)
        if artifact is not None:
            job["artifact"] = base64.b64encode(artifact).decode()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"bundle": bundle, **job}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return "accepted" if answer["accepted"] else str(answer["code"])


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifier]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node is not installed: apt-get install nodejs npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < 18:
        pytest.skip(f"@sigstore/verify needs Node 18 at the least, and this is {version}")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "verify.mjs"):
        shutil.copy(HERE / name, folder / name)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0 and any(word in done.stderr for word in OFFLINE):
        pytest.skip("npm's registry cannot be reached")
    assert done.returncode == 0, done.stderr
    with subprocess.Popen(
        [node, "verify.mjs"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Verifier(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module", params=["p256", "ed25519"])
def root(request: pytest.FixtureRequest) -> PrivateRoot:
    return PrivateRoot.create(log_key=request.param)


def of_root(root: PrivateRoot, **changes: Any) -> dict[str, Any]:
    return {"root": json.loads(root.trusted_root()), "identity": WHO, "issuer": ISSUER, **changes}


def key_signer(kind: KeyKind = "p256") -> KeySigner:
    return signer_of(new_private_key(kind), kind="managed", source="key")


def pem(signer: KeySigner) -> str:
    return public_key_pem(signer.public_key).decode()


@pytest.mark.parametrize("log", ["v1", "v2"])
def test_certificate_bundles_over_a_file_are_accepted_under_their_root(
    verifier: Verifier, root: PrivateRoot, log: LogVersion
) -> None:
    raw = root.sign_blob(hashlib.sha256(BLOB).digest(), WHO, ISSUER, log=log)
    assert verifier.ask(raw, artifact=BLOB, **of_root(root)) == "accepted"
    assert verifier.ask(raw, artifact=BLOB + b".", **of_root(root)) != "accepted"
    assert verifier.ask(raw, artifact=BLOB, **of_root(root, identity="https://example.org/other")) != "accepted"
    assert verifier.ask(raw, artifact=BLOB, **of_root(root, issuer="https://other.example.org")) != "accepted"
    assert verifier.ask(raw, artifact=BLOB, **of_root(PrivateRoot.create())) != "accepted"


@pytest.mark.parametrize("log", ["v1", "v2"])
def test_certificate_bundles_over_a_statement_are_accepted_under_their_root(
    verifier: Verifier, root: PrivateRoot, log: LogVersion
) -> None:
    for timestamp in (None, True):
        raw = root.sign_dsse(STATEMENT, WHO, ISSUER, log=log, timestamp=timestamp)
        assert verifier.ask(raw, **of_root(root)) == "accepted"
    changed = json.loads(raw)
    changed["dsseEnvelope"]["payload"] = base64.b64encode(STATEMENT + b" ").decode()
    assert verifier.ask(changed, **of_root(root)) != "accepted"


def _with_one_change(text: str) -> str:
    """Base64 with one bit changed; of a checkpoint, another size of the tree."""
    if text.startswith("log."):
        origin, size, rest = text.split("\n", 2)
        return "\n".join((origin, str(int(size) + 1), rest))
    value = bytearray(base64.b64decode(text))
    value[len(value) // 2] ^= 1
    return base64.b64encode(value).decode()


@pytest.mark.parametrize("log", ["v1", "v2"])
@pytest.mark.parametrize(
    "path",
    [
        ("verificationMaterial", "tlogEntries", 0, "inclusionProof", "checkpoint", "envelope"),
        ("verificationMaterial", "tlogEntries", 0, "canonicalizedBody"),
        ("verificationMaterial", "tlogEntries", 0, "logId", "keyId"),
        ("verificationMaterial", "certificate", "rawBytes"),
        ("dsseEnvelope", "signatures", 0, "sig"),
    ],
)
def test_a_certificate_bundle_with_one_bit_changed_is_refused(
    verifier: Verifier, root: PrivateRoot, log: LogVersion, path: tuple[str | int, ...]
) -> None:
    bundle = json.loads(root.sign_dsse(STATEMENT, WHO, ISSUER, log=log))
    place: Any = bundle
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = _with_one_change(place[path[-1]])
    assert verifier.ask(bundle, **of_root(root)) != "accepted"


def test_entries_of_a_growing_log_are_accepted(verifier: Verifier) -> None:
    root = PrivateRoot.create()
    for raw in [root.sign_dsse(STATEMENT, WHO, ISSUER) for _ in range(6)]:
        assert verifier.ask(raw, **of_root(root)) == "accepted"


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
def test_key_bundles_over_a_statement_are_accepted_with_their_key(verifier: Verifier, kind: KeyKind) -> None:
    signer = key_signer(kind)
    raw = signer.sign_statement(STATEMENT)
    assert verifier.ask(raw, key=pem(signer)) == "accepted"
    assert verifier.ask(raw, key=pem(key_signer(kind))) != "accepted"
    changed = json.loads(raw)
    changed["dsseEnvelope"]["payload"] = base64.b64encode(STATEMENT + b" ").decode()
    assert verifier.ask(changed, key=pem(signer)) != "accepted"


def test_a_p256_bundle_over_a_file_is_accepted_with_its_key(verifier: Verifier) -> None:
    signer = key_signer()
    for raw in (signer.sign_artifact(BLOB), signer.sign_digest(hashlib.sha256(BLOB).digest())):
        assert verifier.ask(raw, key=pem(signer), artifact=BLOB) == "accepted"
        assert verifier.ask(raw, key=pem(signer), artifact=BLOB + b".") != "accepted"
        assert verifier.ask(raw, key=pem(key_signer()), artifact=BLOB) != "accepted"


def test_an_ed25519_bundle_over_a_file_is_not_read_by_this_verifier(verifier: Verifier) -> None:
    """docs/signing.md says so: it hashes first, which Ed25519 does not. Where this changes, the page must."""
    signer = key_signer("ed25519")
    assert verifier.ask(signer.sign_artifact(BLOB), key=pem(signer), artifact=BLOB) != "accepted"


@pytest.mark.parametrize("log", ["v1", "v2"])
def test_a_key_bundle_that_a_log_witnessed_is_accepted(verifier: Verifier, log: LogVersion) -> None:
    root, signer = PrivateRoot.create(), key_signer()
    for raw, artifact in ((signer.sign_artifact(BLOB), BLOB), (signer.sign_statement(STATEMENT), None)):
        witnessed = root.witness(raw, signer.public_key, log=log)
        job = {"root": json.loads(root.trusted_root()), "key": pem(signer), "artifact": artifact}
        assert verifier.ask(witnessed, **job) == "accepted"
        assert verifier.ask(raw, **job) != "accepted"  # under a root this verifier wants the log entry


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
def test_a_runs_seal_is_accepted_with_its_key(verifier: Verifier, tmp_path: Path, kind: KeyKind) -> None:
    run = tmp_path / "run"
    shutil.copytree(HERE.parent / "vectors" / "bases" / "run", run)
    (run / "attestations" / "seal.sigstore.json").unlink()
    signer = key_signer(kind)
    seal_run(run, signer)
    raw = (run / "attestations" / "seal.sigstore.json").read_bytes()
    assert verifier.ask(raw, key=pem(signer)) == "accepted"
    assert verifier.ask(raw, key=pem(key_signer(kind))) != "accepted"


def test_a_runs_seal_by_a_certificate_is_accepted_under_its_root(verifier: Verifier, tmp_path: Path) -> None:
    run, root = tmp_path / "run", PrivateRoot.create()
    shutil.copytree(HERE.parent / "vectors" / "bases" / "run", run)
    (run / "attestations" / "seal.sigstore.json").unlink()
    seal_run(run, root.signer(WHO, ISSUER))
    assert verifier.ask((run / "attestations" / "seal.sigstore.json").read_bytes(), **of_root(root)) == "accepted"


def test_a_model_signature_is_accepted_with_its_key(verifier: Verifier, tmp_path: Path) -> None:
    from mint2m_verify.model_signing import sign_model

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"w")
    signer = key_signer()
    raw = sign_model(tmp_path / "model", signer, output=tmp_path / "model.sig")
    assert verifier.ask(raw, key=pem(signer)) == "accepted"
    assert verifier.ask(raw, key=pem(key_signer())) != "accepted"
