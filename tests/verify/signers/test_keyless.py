"""Signing by identity: sigstore-python's own clients against services on the loopback interface."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mint2m_verify.finding import FindingError
from mint2m_verify.signers.choose import SignerOptions
from mint2m_verify.signers.private_log import LogVersion
from mint2m_verify.sigstore_bundle import Artifact, CertificateSigner, parse_root, read_bundle, verify_bundle

WHO = "https://example.org/train.yml@refs/heads/main"
ISSUER = "https://issuer.example.org"
STATEMENT = json.dumps(
    {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "a", "digest": {"sha256": "1" * 64}}],
        "predicateType": "https://example.org/predicate",
        "predicate": {},
    }
).encode()

Token = Callable[..., Path]


def options(services: Any, tmp_path: Path, token: Path | None, *, log: LogVersion = "v1") -> SignerOptions:
    return SignerOptions(sigstore=services.configuration(tmp_path / "config.json", log=log), identity_token=token)


def fault(call: Callable[[], object]) -> str:
    with pytest.raises(FindingError) as raised:
        call()
    return raised.value.finding.id


@pytest.mark.parametrize("log", ["v1", "v2"])
def test_a_file_and_a_statement_are_signed_and_verify_under_the_configurations_root(
    services: Any, tmp_path: Path, identity_token: Token, log: LogVersion
) -> None:
    signer = options(services, tmp_path, identity_token(WHO), log=log).choose()
    root = parse_root(services.root.trusted_root(), name="root")
    for raw, artifact in (
        (signer.sign_artifact(b"abc"), Artifact(name=None, sha256=hashlib.sha256(b"abc").hexdigest())),
        (signer.sign_statement(STATEMENT), None),
    ):
        result = verify_bundle(read_bundle(raw, file="b"), root=root, artifact=artifact)
        assert result.findings == () and result.verified is not None
        who = result.verified.signer
        assert isinstance(who, CertificateSigner)
        assert (who.san, who.issuer, result.verified.timestamped) == (WHO, ISSUER, True)
    entry = f"/api/{log}/log/entries"
    assert services.asked == ["/api/v2/signingCert", "/timestamp", entry] * 2


def test_the_statement_that_is_signed_is_the_statement_that_was_given(
    services: Any, tmp_path: Path, identity_token: Token
) -> None:
    raw = options(services, tmp_path, identity_token(WHO)).choose().sign_statement(STATEMENT)
    from sigstore.models import Bundle

    envelope = Bundle.from_json(raw)._dsse_envelope
    assert envelope is not None and envelope._inner.payload == STATEMENT


def test_a_service_that_is_not_there_is_unreachable(services: Any, tmp_path: Path, identity_token: Token) -> None:
    signer = options(services, tmp_path, identity_token(WHO)).choose()
    services.server.shutdown()
    services.server.server_close()
    assert fault(lambda: signer.sign_artifact(b"abc")) == "signer.unreachable"


@pytest.mark.parametrize("path", ["/api/v2/signingCert", "/api/v1/log/entries"])
def test_a_service_that_never_answers_is_unreachable(
    services: Any, tmp_path: Path, identity_token: Token, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    import threading

    signer, answer, over = options(services, tmp_path, identity_token(WHO)).choose(), services.answer, threading.Event()

    def silent(asked: str, *rest: Any) -> bytes:
        if asked == path:
            over.wait(30)
        return bytes(answer(asked, *rest))

    monkeypatch.setattr("mint2m_verify.signers.keyless.PATIENCE", 0.5)
    monkeypatch.setattr(services, "answer", silent)
    try:
        assert fault(lambda: signer.sign_artifact(b"abc")) == "signer.unreachable"
    finally:
        over.set()


@pytest.mark.parametrize("path", ["/api/v2/signingCert", "/api/v1/log/entries"])
def test_a_service_that_says_no_has_refused(services: Any, tmp_path: Path, identity_token: Token, path: str) -> None:
    services.faults[path] = 400
    signer = options(services, tmp_path, identity_token(WHO)).choose()
    assert fault(lambda: signer.sign_artifact(b"abc")) == "signer.refused"


def test_an_answer_of_another_shape_is_a_refusal(
    services: Any, tmp_path: Path, identity_token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = options(services, tmp_path, identity_token(WHO)).choose()
    for answer in (b"{}", b"[]", b"not json", b'{"signedCertificateEmbeddedSct": null}'):
        monkeypatch.setattr(services, "answer", lambda *_, answer=answer: answer)
        assert fault(lambda: signer.sign_artifact(b"abc")) == "signer.refused"


def test_without_a_timestamp_a_log_that_keeps_no_time_makes_nothing_that_verifies(
    services: Any, tmp_path: Path, identity_token: Token
) -> None:
    services.faults["/timestamp"] = 500
    signer = options(services, tmp_path, identity_token(WHO), log="v2").choose()
    assert fault(lambda: signer.sign_artifact(b"abc")) == "signer.refused"  # the library makes no bundle of it


def test_services_of_another_root_than_the_configurations_make_nothing_that_verifies(
    services: Any, tmp_path: Path, identity_token: Token
) -> None:
    from mint2m_verify.signers.private_root import PrivateRoot

    chosen = options(services, tmp_path, identity_token(WHO))
    assert chosen.sigstore is not None
    config = json.loads(chosen.sigstore.read_text())
    other = json.loads(PrivateRoot.create().trusted_root())
    for member, expected in (
        ("ctlogs", "signer.refused"),  # the library itself looks at the certificate's log note at once
        ("tlogs", "signer.result-invalid"),
        ("timestampAuthorities", "signer.result-invalid"),
    ):
        chosen.sigstore.write_text(
            json.dumps({**config, "trustedRoot": {**config["trustedRoot"], member: other[member]}})
        )
        assert fault(lambda: chosen.choose().sign_artifact(b"abc")) == expected


def test_an_expired_token_is_told_as_one(services: Any, tmp_path: Path, identity_token: Token) -> None:
    signer = options(services, tmp_path, identity_token(WHO, lifetime=-1)).choose()
    assert fault(lambda: signer.sign_artifact(b"abc")) == "signer.token-invalid"
    assert services.asked == []


def test_no_token_is_found_before_anything_is_asked(
    services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SIGSTORE_IDENTITY_TOKEN", "GITHUB_ACTIONS", "CIRCLECI", "GITLAB_CI", "BUILDKITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("id.detect_credential", lambda _: None)
    assert fault(lambda: options(services, tmp_path, None).choose()) == "signer.token-missing"
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert fault(lambda: options(services, tmp_path, empty).choose()) == "signer.token-missing"


def test_a_token_in_the_librarys_own_variable_is_taken(
    services: Any, tmp_path: Path, identity_token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGSTORE_IDENTITY_TOKEN", identity_token(WHO).read_text().strip())
    assert options(services, tmp_path, None).choose().sign_artifact(b"abc")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{}", "signer.configuration-invalid"),
        ("[]", "signer.configuration-invalid"),
        ("{", "json.malformed"),
        ('{"mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"}', "signer.configuration-invalid"),
    ],
)
def test_another_file_is_no_configuration(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    assert fault(lambda: SignerOptions(sigstore=path).choose()) == expected


def test_a_configuration_without_a_service_is_found_before_anything_is_asked(
    services: Any, tmp_path: Path, identity_token: Token
) -> None:
    chosen = options(services, tmp_path, identity_token(WHO))
    assert chosen.sigstore is not None
    config = json.loads(chosen.sigstore.read_text())
    for member in ("caUrls", "rekorTlogUrls"):
        without = {**config, "signingConfig": {**config["signingConfig"], member: []}}
        chosen.sigstore.write_text(json.dumps(without))
        assert fault(chosen.choose) == "signer.configuration-invalid"
