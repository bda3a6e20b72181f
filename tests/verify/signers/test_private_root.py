"""A private root's bundles, judged by unmodified sigstore-python."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.finding import FindingError
from mint2m_verify.signers.private_log import LogVersion
from mint2m_verify.signers.private_root import DOMAIN, PrivateRoot

IDENTITY = "https://example.org/train.yml@refs/heads/main"
ISSUER = "https://issuer.example.org"
BLOB = b"bytes that somebody signs"
PAYLOAD = json.dumps(
    {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "blob", "digest": {"sha256": hashlib.sha256(BLOB).hexdigest()}}],
        "predicateType": "https://example.org/predicate",
        "predicate": {},
    }
).encode()
VERSIONS: tuple[LogVersion, ...] = ("v1", "v2")


@pytest.fixture(scope="module", params=["p256", "ed25519"])
def root(request: pytest.FixtureRequest) -> PrivateRoot:
    return PrivateRoot.create(log_key=request.param)


def verifier(root: PrivateRoot, tmp_path: Path) -> Any:
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    path = tmp_path / "trusted_root.json"
    path.write_bytes(root.trusted_root())
    return Verifier(trusted_root=TrustedRoot.from_file(str(path)))


def identity(name: str = IDENTITY) -> Any:
    from sigstore.verify import policy

    return policy.Identity(identity=name, issuer=ISSUER)


@pytest.mark.parametrize("log", VERSIONS)
@pytest.mark.parametrize("timestamp", [None, True])
def test_sigstore_python_accepts_a_message_signature(
    root: PrivateRoot, tmp_path: Path, log: LogVersion, timestamp: bool | None
) -> None:
    from sigstore.errors import VerificationError
    from sigstore.models import Bundle

    digest = hashlib.sha256(BLOB).digest()
    bundle = Bundle.from_json(root.sign_blob(digest, IDENTITY, ISSUER, log=log, timestamp=timestamp))
    verifier(root, tmp_path).verify_artifact(BLOB, bundle, identity())
    with pytest.raises(VerificationError):
        verifier(root, tmp_path).verify_artifact(BLOB + b".", bundle, identity())
    with pytest.raises(VerificationError):
        verifier(root, tmp_path).verify_artifact(BLOB, bundle, identity("https://example.org/other"))


@pytest.mark.parametrize("log", VERSIONS)
def test_sigstore_python_accepts_a_statement(root: PrivateRoot, tmp_path: Path, log: LogVersion) -> None:
    from sigstore.models import Bundle

    bundle = Bundle.from_json(root.sign_dsse(PAYLOAD, IDENTITY, ISSUER, log=log))
    kind, payload = verifier(root, tmp_path).verify_dsse(bundle, identity())
    assert (kind, payload) == ("application/vnd.in-toto+json", PAYLOAD)


@pytest.mark.parametrize("log", VERSIONS)
def test_the_command_line_of_sigstore_accepts_a_file(tmp_path: Path, log: LogVersion) -> None:
    root = PrivateRoot.create()
    (tmp_path / "blob").write_bytes(BLOB)
    (tmp_path / "blob.json").write_bytes(root.sign_blob(hashlib.sha256(BLOB).digest(), IDENTITY, ISSUER, log=log))
    (tmp_path / "config.json").write_text(json.dumps(client_configuration(root)))
    for name, code in ((IDENTITY, 0), ("https://example.org/other", 1)):
        command = [sys.executable, "-m", "sigstore", "--trust-config", tmp_path / "config.json", "verify", "identity"]
        options = ["--bundle", tmp_path / "blob.json", "--cert-identity", name, "--cert-oidc-issuer", ISSUER]
        done = subprocess.run([*command, *options, tmp_path / "blob"], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr


def client_configuration(root: PrivateRoot) -> Any:
    """A client trust configuration whose services nobody asks."""

    def nowhere() -> Any:
        since = {"start": "2020-01-01T00:00:00Z"}
        return [{"url": "https://nowhere.invalid", "majorApiVersion": 1, "validFor": since, "operator": "nobody"}]

    return {
        "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
        "trustedRoot": json.loads(root.trusted_root()),
        "signingConfig": {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": nowhere(),
            "oidcUrls": [],
            "rekorTlogUrls": nowhere(),
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaUrls": [],
            "tsaConfig": {"selector": "ANY"},
        },
    }


def test_a_signature_without_any_time_is_no_bundle(root: PrivateRoot) -> None:
    from sigstore.models import Bundle, InvalidBundle

    with pytest.raises(InvalidBundle, match="timestamp"):
        Bundle.from_json(root.sign_dsse(PAYLOAD, IDENTITY, ISSUER, log="v2", timestamp=False))


def test_a_signature_of_one_root_is_nothing_under_another(root: PrivateRoot, tmp_path: Path) -> None:
    from sigstore.errors import VerificationError
    from sigstore.models import Bundle

    bundle = Bundle.from_json(PrivateRoot.create().sign_dsse(PAYLOAD, IDENTITY, ISSUER))
    with pytest.raises(VerificationError):
        verifier(root, tmp_path).verify_dsse(bundle, identity())


def test_the_time_of_signing_may_lie_in_the_past(tmp_path: Path) -> None:
    from sigstore.models import Bundle

    past = datetime(2024, 2, 29, 12, tzinfo=UTC)
    root = PrivateRoot.create(start=past - timedelta(days=1))
    for log in VERSIONS:
        bundle = Bundle.from_json(root.sign_dsse(PAYLOAD, IDENTITY, ISSUER, log=log, now=past))
        verifier(root, tmp_path).verify_dsse(bundle, identity())


def test_claims_reach_the_certificate_as_fulcio_writes_them(root: PrivateRoot, tmp_path: Path) -> None:
    from sigstore.errors import VerificationError
    from sigstore.models import Bundle
    from sigstore.verify import policy

    claims = {"source_repository_uri": "https://example.org/source", "source_repository_digest": "ab" * 20}
    bundle = Bundle.from_json(root.sign_dsse(PAYLOAD, IDENTITY, ISSUER, claims=claims))
    wanted = [policy.OIDCSourceRepositoryURI("https://example.org/source"), identity()]
    verifier(root, tmp_path).verify_dsse(bundle, policy.AllOf([*wanted, policy.OIDCSourceRepositoryDigest("ab" * 20)]))
    with pytest.raises(VerificationError):
        verifier(root, tmp_path).verify_dsse(
            bundle, policy.AllOf([*wanted, policy.OIDCSourceRepositoryDigest("cd" * 20)])
        )


def test_entries_of_a_growing_log_each_prove_their_place(tmp_path: Path) -> None:
    from sigstore.models import Bundle

    root = PrivateRoot.create()
    raws = [root.sign_dsse(PAYLOAD, IDENTITY, ISSUER, log=VERSIONS[n % 2]) for n in range(9)]
    for index, raw in enumerate(raws):
        entry = json.loads(raw)["verificationMaterial"]["tlogEntries"][0]
        assert (entry["logIndex"], entry["inclusionProof"]["treeSize"]) == (str(index), str(index + 1))
        verifier(root, tmp_path).verify_dsse(Bundle.from_json(raw), identity())


def test_every_name_says_that_the_root_is_not_public(root: PrivateRoot) -> None:
    document = json.loads(root.trusted_root())
    assert DOMAIN.endswith(".invalid")
    names = [item["baseUrl"] for item in document["tlogs"] + document["ctlogs"]]
    names += [item["uri"] for item in document["certificateAuthorities"] + document["timestampAuthorities"]]
    assert all(name.endswith(DOMAIN) for name in names)
    for item in document["certificateAuthorities"] + document["timestampAuthorities"]:
        for certificate in item["certChain"]["certificates"]:
            assert b"not public" in base64.b64decode(certificate["rawBytes"])


@pytest.mark.parametrize("name", ["", "nobody", "mailto", "\u00fcml\u00e4ut@example.org"])
def test_an_identity_that_no_certificate_holds_is_refused(root: PrivateRoot, name: str) -> None:
    with pytest.raises(FindingError) as raised:
        root.sign_blob(bytes(32), name, ISSUER)
    assert raised.value.finding.id == "signer.identity-invalid"
