"""Model signatures that are not quite right: each is signed by the key that the auditor trusts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mint2m_verify.anchor import ConsistencyOnly, NoAnchor, VerifyOptions, read_key
from mint2m_verify.finding import FindingError, Report, Verdict
from mint2m_verify.model_signing import sign_and_verify, verify_model
from mint2m_verify.signers.key_signer import signer_of

KIND = b"application/vnd.in-toto+json"
FILES = {"a": b"first", "b": b"second", "d/c": b"third"}
Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forger:
    """Signs what nobody's tool would write, with a genuine key."""

    root: Path
    key: ec.EllipticCurvePrivateKey

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def public(self) -> Path:
        path = self.root / "key.pub"
        path.write_bytes(self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return path

    def statement(self) -> dict[str, Any]:
        digests = {name: hashlib.sha256(raw).hexdigest() for name, raw in sorted(FILES.items())}
        whole = hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in digests.values())).hexdigest()
        return {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "model", "digest": {"sha256": whole}}],
            "predicateType": "https://model_signing/signature/v1.0",
            "predicate": {
                "serialization": {
                    "method": "files",
                    "hash_type": "sha256",
                    "allow_symlinks": False,
                    "ignore_paths": [".git"],
                },
                "resources": [
                    {"name": name, "algorithm": "sha256", "digest": digest} for name, digest in digests.items()
                ],
            },
        }

    def sign(self, payload: bytes, *, kind: bytes = KIND) -> dict[str, Any]:
        signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        signature = self.key.sign(signed, ec.ECDSA(hashes.SHA256()))
        hint = hashlib.sha256(self.public.read_bytes()).hexdigest()
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": kind.decode(),
                "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
            },
        }

    def verify(self, bundle: dict[str, Any] | bytes, **options: Any) -> Report:
        raw = bundle if isinstance(bundle, bytes) else json.dumps(bundle).encode()
        (self.root / "model.sig").write_bytes(raw)
        return verify_model(self.model, self.root / "model.sig", read_key(self.public), VerifyOptions(), **options)

    def changed(self, change: Change) -> Report:
        """Of a statement with one change, signed after it."""
        statement = self.statement()
        change(statement)
        return self.verify(self.sign(json.dumps(statement).encode()))


@pytest.fixture
def forger(tmp_path: Path) -> Forger:
    for name, raw in FILES.items():
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / name).write_bytes(raw)
    return Forger(root=tmp_path, key=ec.generate_private_key(ec.SECP256R1()))


def roots(report: Report) -> list[str]:
    return [fault.id for fault in report.roots]


def test_the_unchanged_statement_is_accepted(forger: Forger) -> None:
    report = forger.changed(lambda _: None)
    assert (roots(report), report.verdict, report.trust.mode) == ([], Verdict.ACCEPTED, "managed-key")


def _resource(index: int, **members: Any) -> Change:
    return lambda statement: statement["predicate"]["resources"][index].update(members)


def _serialization(**members: Any) -> Change:
    return lambda statement: statement["predicate"]["serialization"].update(members)


def _swap(statement: dict[str, Any]) -> None:
    resources = statement["predicate"]["resources"]
    resources[0]["name"], resources[1]["name"] = resources[1]["name"], resources[0]["name"]
    resources[0], resources[1] = resources[1], resources[0]


def _names_exchanged(statement: dict[str, Any]) -> None:
    resources = statement["predicate"]["resources"]
    resources[0]["digest"], resources[1]["digest"] = resources[1]["digest"], resources[0]["digest"]
    _subject_again(statement)


def _subject_again(statement: dict[str, Any]) -> None:
    whole = b"".join(bytes.fromhex(item["digest"]) for item in statement["predicate"]["resources"])
    statement["subject"][0]["digest"]["sha256"] = hashlib.sha256(whole).hexdigest()


def _twice(statement: dict[str, Any]) -> None:
    resources = statement["predicate"]["resources"]
    resources.insert(1, dict(resources[0]))
    _subject_again(statement)


def _unsorted(statement: dict[str, Any]) -> None:
    statement["predicate"]["resources"].reverse()
    _subject_again(statement)


def _nothing(statement: dict[str, Any]) -> None:
    statement["predicate"]["resources"] = []
    _subject_again(statement)


def _one_less(statement: dict[str, Any]) -> None:
    statement["predicate"]["resources"].pop()
    _subject_again(statement)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"), "model-signature.type-mismatch"),
        (lambda s: s.update(predicateType="https://model_signing/Digests/v0.1"), "model-signature.type-mismatch"),
        (lambda s: s.pop("predicateType"), "model-signature.type-mismatch"),
        (lambda s: s.pop("predicate"), "model-signature.statement-invalid"),
        (lambda s: s.update(predicate=[]), "model-signature.statement-invalid"),
        (lambda s: s.update(subject=[]), "model-signature.statement-invalid"),
        (lambda s: s.update(subject=s["subject"] * 2), "model-signature.statement-invalid"),
        (lambda s: s["subject"][0].update(name=7), "model-signature.statement-invalid"),
        (lambda s: s["subject"][0].update(digest={"sha256": "1" * 64}), "model-signature.subject-mismatch"),
        (lambda s: s["subject"][0]["digest"].update(sha512="1"), "model-signature.subject-mismatch"),
        (_resource(0, digest="1" * 64), "model-signature.subject-mismatch"),
        (_resource(0, digest="1" * 63), "model-signature.list-invalid"),
        (_resource(0, digest=None), "model-signature.statement-invalid"),
        (_resource(0, name="/a"), "model-signature.list-invalid"),
        (_resource(0, name="../a"), "model-signature.list-invalid"),
        (_resource(0, name=""), "model-signature.list-invalid"),
        (_resource(0, algorithm="blake2b"), "model-signature.method-unsupported"),
        (_serialization(method="shards", shard_size=10), "model-signature.method-unsupported"),
        (_serialization(hash_type="blake3"), "model-signature.method-unsupported"),
        (_serialization(allow_symlinks="yes"), "model-signature.statement-invalid"),
        (_serialization(ignore_paths="a"), "model-signature.statement-invalid"),
        (_serialization(ignore_paths=["."]), "model-signature.ignores-more"),
        (_serialization(ignore_paths=[""]), "model-signature.ignores-more"),
        (_serialization(ignore_paths=[".git/../d"]), "model-signature.ignores-more"),
        (_serialization(ignore_paths=["elsewhere"]), "model-signature.ignores-more"),
        (_swap, "model-signature.subject-mismatch"),
        (_twice, "model-signature.list-invalid"),
        (_unsorted, "model-signature.list-invalid"),
        (_nothing, "model-signature.list-invalid"),
        (_names_exchanged, "tree.file-changed"),
        (_one_less, "tree.file-unlisted"),
    ],
)
def test_a_signed_statement_that_is_not_quite_one_is_refused(forger: Forger, change: Change, expected: str) -> None:
    report = forger.changed(change)
    assert roots(report)[0] == expected
    assert report.verdict in (Verdict.FAILED, Verdict.INCOMPLETE)


def test_members_that_later_versions_may_add_are_passed_over(forger: Forger) -> None:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"]["model_card"] = {"x": 1}
        statement["predicate"]["resources"][0]["note"] = "x"

    assert roots(forger.changed(change)) == []


def test_links_allowed_by_the_signer_are_no_fault_where_there_are_none(forger: Forger) -> None:
    assert roots(forger.changed(_serialization(allow_symlinks=True))) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda root: (root / "a").write_bytes(b"First"), ["tree.file-changed"]),
        (lambda root: (root / "a").unlink(), ["tree.file-missing"]),
        (lambda root: (root / "a").rename(root / "z"), ["tree.file-renamed"]),
        (lambda root: (root / "z").write_bytes(b"more"), ["tree.file-unlisted"]),
        (lambda root: (root / "z").symlink_to(root / "a"), ["tree.symlink"]),
        (lambda root: (root / ".gitmodules").write_bytes(b"more"), ["tree.file-unlisted"]),
        (lambda root: (root / "d" / ".git").write_bytes(b"more"), ["tree.file-unlisted"]),
        (lambda root: (root / ".git").write_bytes(b"more"), []),
        (lambda root: (root / "a").chmod(0o755), []),
    ],
)
def test_the_files_are_compared_with_the_list(
    forger: Forger, change: Callable[[Path], object], expected: list[str]
) -> None:
    change(forger.model)
    assert roots(forger.changed(lambda _: None)) == expected


def test_a_pipe_among_the_files_is_refused_without_waiting(forger: Forger) -> None:
    import os

    os.mkfifo(forger.model / "pipe")
    assert roots(forger.changed(lambda _: None)) == ["tree.special-file"]


def test_another_key_another_payload_type_and_another_signature_are_told_apart(forger: Forger) -> None:
    payload = json.dumps(forger.statement()).encode()
    stranger = Forger(root=forger.root / "model" / "..", key=ec.generate_private_key(ec.SECP256R1()))
    bundle = stranger.sign(payload)
    assert roots(forger.verify(bundle)) == ["signature.key-mismatch"]
    mine = forger.sign(payload)
    assert roots(forger.verify({**mine, "dsseEnvelope": bundle["dsseEnvelope"]})) == ["signature.invalid"]
    assert roots(forger.verify({**bundle, "dsseEnvelope": mine["dsseEnvelope"]})) == ["signature.hint-mismatch"]
    assert roots(forger.verify(forger.sign(payload, kind=b"text/plain"))) == ["model-signature.type-mismatch"]
    for wrong in (bundle, {**mine, "dsseEnvelope": bundle["dsseEnvelope"]}):
        assert (forger.verify(wrong).trust.mode, forger.verify(wrong).trust.signers) == ("none", ())


def test_a_signature_over_one_file_is_none_over_a_directory(forger: Forger) -> None:
    signer = signer_of(forger.key, kind="managed", source="key")
    report = forger.verify(signer.sign_artifact(b"first"))
    assert (roots(report), report.trust.mode) == (["model-signature.type-mismatch"], "none")


def test_every_byte_of_the_bundle_matters_or_is_no_part_of_what_is_signed(forger: Forger) -> None:
    raw = json.dumps(forger.sign(json.dumps(forger.statement()).encode())).encode()
    for index in range(0, len(raw), 17):
        changed = bytearray(raw)
        changed[index] ^= 1
        assert forger.verify(bytes(changed)).verdict is not Verdict.ACCEPTED, (index, raw[index - 20 : index + 20])


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"null", b"\xff", b'{"mediaType": 1}'])
def test_what_is_no_bundle_is_refused(forger: Forger, raw: bytes) -> None:
    report = forger.verify(raw)
    assert (report.verdict, report.trust.mode, report.trust.signers) == (Verdict.FAILED, "none", ())


def test_without_an_anchor_nothing_is_accepted_and_consistency_says_no_more(forger: Forger) -> None:
    forger.changed(lambda _: None)
    signature = forger.root / "model.sig"
    nobody = verify_model(forger.model, signature, NoAnchor(), VerifyOptions())
    assert (roots(nobody), nobody.verdict) == (["trust.no-anchor"], Verdict.UNTRUSTED)
    consistent = verify_model(forger.model, signature, ConsistencyOnly(), VerifyOptions())
    assert (consistent.verdict, consistent.trust.mode) == (Verdict.ACCEPTED, "consistent, origin unknown")


def test_no_key_among_the_files_vouches_for_them(forger: Forger) -> None:
    (forger.root / "model.sig").write_bytes(json.dumps(forger.sign(json.dumps(forger.statement()).encode())).encode())
    inside = forger.model / "key.pub"
    inside.write_bytes(forger.public.read_bytes())
    report = verify_model(forger.model, forger.root / "model.sig", read_key(inside), VerifyOptions())
    assert "trust.key-inside-evidence" in roots(report)


def test_the_signers_own_key_among_the_files_is_not_signed(forger: Forger) -> None:
    secret = forger.model / "release.key"
    secret.write_bytes(b"the private key")
    signer = signer_of(forger.key, kind="managed", source="release.key")
    with pytest.raises(FindingError) as raised:
        sign_and_verify(forger.model, signer, forger.root / "out.sig", key_file=secret)
    assert raised.value.finding.id == "trust.key-inside-evidence"
    assert not (forger.root / "out.sig").exists()


def test_an_empty_directory_is_not_signed(forger: Forger, tmp_path: Path) -> None:
    (tmp_path / "empty" / ".git").mkdir(parents=True)
    (tmp_path / "empty" / ".git" / "config").write_bytes(b"x")
    signer = signer_of(forger.key, kind="managed", source="key")
    with pytest.raises(FindingError) as raised:
        sign_and_verify(tmp_path / "empty", signer, tmp_path / "out.sig")
    assert raised.value.finding.id == "tree.empty"
    assert not (tmp_path / "out.sig").exists()


def test_an_existing_signature_is_not_replaced(forger: Forger) -> None:
    (forger.root / "out.sig").write_bytes(b"mine")
    signer = signer_of(forger.key, kind="managed", source="key")
    with pytest.raises(FindingError) as raised:
        sign_and_verify(forger.model, signer, forger.root / "out.sig")
    assert raised.value.finding.id == "file.exists"
    assert (forger.root / "out.sig").read_bytes() == b"mine"


@pytest.mark.parametrize("option", ["manifest", "seal"])
def test_nothing_that_was_named_is_passed_over(forger: Forger, option: str) -> None:
    with pytest.raises(FindingError) as raised:
        forger.verify(forger.sign(b"{}"), **{option: forger.public})
    assert raised.value.finding.id == "usage.invalid"
