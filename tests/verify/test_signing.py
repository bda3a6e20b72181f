"""Keys and seals against `openssl` and against `cryptography` used by hand."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from mint2m_verify import signing, statement
from mint2m_verify.finding import FindingError, Verdict
from mint2m_verify.signers.key_signer import signer_of
from mint2m_verify.statement import Subject

PAE = b"DSSEv1 28 application/vnd.in-toto+json "


def openssl(*arguments: object) -> bytes:
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True).stdout


def fault_of(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(FindingError) as caught:
        call(*arguments, **named)
    return caught.value.finding.id


def seal(**changes: Any) -> statement.SealStatement:
    members: dict[str, Any] = {
        "subjects": [Subject(name="b", sha256="2" * 64), Subject(name="a", sha256="1" * 64)],
        "execution_id": "3" * 64,
        "plan_sha256": "4" * 64,
        "claim_scope": "reference_cpu_execution",
        "hardware_class": "reference-cpu",
        "signer": "managed",
    }
    return statement.seal_statement(**{**members, **changes})


def sealed(key: signing.PrivateKey) -> bytes:
    return signer_of(key, kind="managed", source="test").sign_statement(seal().payload)


def test_a_new_pair_is_a_p256_pair_that_openssl_reads(tmp_path: Path) -> None:
    private, public = signing.new_key_pair(str(tmp_path / "release"))
    assert openssl("pkey", "-in", private, "-pubout") == public.read_bytes()
    assert b"prime256v1" in openssl("pkey", "-in", private, "-noout", "-text")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_the_key_id_is_the_sha256_of_the_public_key_in_der(tmp_path: Path) -> None:
    _, public = signing.new_key_pair(str(tmp_path / "k"))
    der = openssl("pkey", "-pubin", "-in", public, "-outform", "DER")
    assert signing.key_id(signing.load_public_key(public)) == hashlib.sha256(der).hexdigest()


def test_a_pair_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "k.pub").write_bytes(b"mine")
    assert fault_of(signing.new_key_pair, str(tmp_path / "k")) == "file.exists"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.pub"]
    assert (tmp_path / "k.pub").read_bytes() == b"mine"


def _pem(key: Any, password: bytes | None = None) -> bytes:
    protection = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection))


@pytest.mark.parametrize(
    ("pem", "expected"),
    [
        (_pem(rsa.generate_private_key(65537, 2048)), "key.unsupported"),
        (_pem(ec.generate_private_key(ec.SECP384R1())), "key.unsupported"),
        (_pem(ec.generate_private_key(ec.SECP256K1())), "key.unsupported"),
        (_pem(ed25519.Ed25519PrivateKey.generate(), b"secret"), "key.encrypted"),
        (b"not a key", "key.malformed"),
    ],
)
def test_other_keys_are_the_callers_fault(tmp_path: Path, pem: bytes, expected: str) -> None:
    (tmp_path / "k.key").write_bytes(pem)
    with pytest.raises(FindingError) as caught:
        signing.load_private_key(tmp_path / "k.key")
    assert (caught.value.finding.id, caught.value.finding.verdict) == (expected, Verdict.BLOCKED)


def test_a_private_key_is_no_public_key(tmp_path: Path) -> None:
    private, _ = signing.new_key_pair(str(tmp_path / "k"))
    assert fault_of(signing.load_public_key, private) == "key.malformed"
    assert fault_of(signing.load_public_key, tmp_path / "none") == "input.missing"


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
def test_a_seal_is_verified_by_the_bare_library_over_the_dsse_encoding(kind: str) -> None:
    key = signing.new_private_key() if kind == "p256" else ed25519.Ed25519PrivateKey.generate()
    bundle = json.loads(sealed(key))
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    signature = base64.b64decode(bundle["dsseEnvelope"]["signatures"][0]["sig"])
    message = PAE + str(len(payload)).encode() + b" " + payload
    public = key.public_key()
    if isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    else:
        public.verify(signature, message)
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    hint = bundle["verificationMaterial"]["publicKey"]["hint"]
    assert base64.b64decode(hint) == hashlib.sha256(der).digest()


def test_a_seal_is_verified_by_openssl(tmp_path: Path) -> None:
    private, public = signing.new_key_pair(str(tmp_path / "k"))
    envelope = json.loads(sealed(signing.load_private_key(private)))["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    (tmp_path / "message").write_bytes(PAE + str(len(payload)).encode() + b" " + payload)
    (tmp_path / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    words = openssl("dgst", "-sha256", "-verify", public, "-signature", tmp_path / "signature", tmp_path / "message")
    assert words.strip() == b"Verified OK"


def test_the_payload_is_the_statement_that_the_design_names() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert json.loads(seal().payload) == {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "urn:mint2m:predicate:seal:v1",
        "subject": [{"name": "a", "digest": {"sha256": "1" * 64}}, {"name": "b", "digest": {"sha256": "2" * 64}}],
        "predicate": {
            "kind": "training",
            "stage": "run",
            "execution_id": "3" * 64,
            "plan_sha256": "4" * 64,
            "parent": None,
            "claim_scope": "reference_cpu_execution",
            "hardware_class": "reference-cpu",
            "signer": "managed",
            "log": {"size": 0, "root": empty},
        },
    }


@pytest.mark.parametrize(
    "subjects",
    [
        [],
        [Subject(name="a", sha256="1" * 64), Subject(name="a", sha256="1" * 64)],
        [Subject(name="../a", sha256="1" * 64)],
        [Subject(name="/a", sha256="1" * 64)],
        [Subject(name="a\nb", sha256="1" * 64)],
        [Subject(name="a", sha256="0" * 64)],
        [Subject(name="a", sha256="A" * 64)],
    ],
)
def test_no_statement_is_made_that_no_reader_would_accept(subjects: list[Subject]) -> None:
    assert fault_of(seal, subjects=subjects) == "seal.invalid"


def _bundle() -> dict[str, Any]:
    bundle: dict[str, Any] = json.loads(sealed(signing.new_private_key()))
    return bundle


def _with(*path: str | int, value: Any) -> bytes:
    bundle = _bundle()
    place: Any = bundle
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return rfc8785.dumps(bundle)


@pytest.mark.parametrize(
    "raw",
    [
        _with("mediaType", value="application/vnd.dev.sigstore.bundle+json;version=0.2"),
        _with("verificationMaterial", "publicKey", "hint", value="AAAA"),
        _with("verificationMaterial", "tlogEntries", value=[{}]),
        _with("verificationMaterial", "x", value=1),
        _with("dsseEnvelope", "signatures", value=[]),
        _with("dsseEnvelope", "signatures", 0, "keyid", value="k"),
        _with("dsseEnvelope", "signatures", 0, "sig", value="####"),
        _with("dsseEnvelope", "payload", value=base64.urlsafe_b64encode(b"\xff\xfe\xfd").decode()),
        _with("dsseEnvelope", "payload", value="eyI="[:-1]),
        _with("dsseEnvelope", "payload", value="eyJ="),  # stray bits in the last character
        _with("dsseEnvelope", "payload", value=""),
        _with("dsseEnvelope", "payload", value=7),
        b"[]",
    ],
)
def test_a_bundle_that_two_tools_could_read_differently_is_refused(raw: bytes) -> None:
    assert fault_of(statement.parse_bundle, raw, file="seal") == "seal.bundle-invalid"


def test_a_key_bundle_of_another_tool_is_read_up_to_what_it_signs(shared: Any) -> None:
    """The conformance suite's managed-key bundle signs an artifact and holds no statement: refused, and not crashed."""
    bundle = shared("conformance") / "bundle-verify/managed-key-happy-path/bundle.sigstore.json"
    assert fault_of(statement.parse_bundle, bundle.read_bytes(), file="seal") == "seal.bundle-invalid"
    public = bundle.with_name("key.pub")
    content = json.loads(bundle.read_bytes())["messageSignature"]
    digest = base64.b64decode(content["messageDigest"]["digest"])
    artifact = (bundle.parents[1] / "a.txt").read_bytes()
    assert hashlib.sha256(artifact).digest() == digest
    key = signing.load_public_key(public)
    assert signing.verify_bytes(artifact, base64.b64decode(content["signature"]), key)
    assert not signing.verify_bytes(artifact + b"x", base64.b64decode(content["signature"]), key)
