"""Release bundles under a trust policy: who may release, how many of them, which version, by which root.

Policies are written by hand, as `tests/vectors/maker/policies.py` writes them for the vectors.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mint2m.__main__ import run as command_line
from mint2m_verify.signers.key_signer import KeySigner, signer_of
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.signing import key_id, new_private_key, public_key_pem

AT = "2026-07-01T00:00:00Z"
SIGNED = datetime(2026, 6, 1, 12, tzinfo=UTC)
SAN, ISSUER = "https://example.com/acme/mint2m/.workflows/release.yml@refs/tags/v1.2.3", "https://issuer.example.com"
RELEASE = "urn:mint2m:predicate:release:v1"


def key_signer(name: str, signer: Any, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "identity": None,
        "key": {
            "sha256": key_id(signer.public_key),
            "pem": public_key_pem(signer.public_key).decode(),
            "mode": "managed-key",
            "not_before": None,
            "not_after": None,
            "revoked": None,
        },
        "roots": [],
        "needs": {"transparency": False, "timestamp": False},
    }
    for member, value in changes.items():
        (made if member in made else made["key"])[member] = value
    return made


def identity_signer(**changes: Any) -> dict[str, Any]:
    return {
        "name": "workflow",
        "identity": {"san": SAN, "issuer": ISSUER, "claims": []},
        "key": None,
        "roots": ["private"],
        "needs": {"transparency": True, "timestamp": False},
        **changes,
    }


def policy(*signers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A policy with one rule, for releases; `changes` are of the rule, or of the policy where it has such a member."""
    rule: dict[str, Any] = {
        "name": "releases",
        "predicate_type": RELEASE,
        "kind": "release",
        "stage": None,
        "signers": [signer["name"] for signer in signers],
        "threshold": 1,
        "requires": [],
        "hardware_classes": None,
        "claim_scopes": None,
        "authorization_required": False,
        "minimum_version": None,
        "maximum_age_days": None,
    }
    made: dict[str, Any] = {
        "schema": "mint2m.trust-policy/v1",
        "name": "tests",
        "not_before": None,
        "not_after": "2027-01-01T00:00:00Z",
        "roots": [],
        "signers": list(signers),
        "rules": [rule],
        "assertions": [],
        "revoked": [],
    }
    for member, value in changes.items():
        (made if member in made else rule)[member] = value
    return made


class Auditor:
    """A folder with an archive and a policy, and the command over both."""

    def __init__(self, kit: ModuleType, release: Any, folder: Path) -> None:
        self.kit, self.folder = kit, folder
        self.entries = kit.entries_of(release.archive)
        self.payload = base64.b64decode(json.loads(self.entries[1].content)["dsseEnvelope"]["payload"])
        self.archive = folder / kit.NAME
        self.archive.write_bytes(release.archive)

    def signed(self, *bundles: bytes) -> None:
        """The archive with these signatures in place of its own."""
        names = ["release.sigstore.json", *(f"release.{number}.sigstore.json" for number in range(2, 10))]
        heads = [self.kit.Entry(name=name, content=raw) for name, raw in zip(names, bundles, strict=False)]
        self.archive.write_bytes(self.kit.archive([self.entries[0], *heads, *self.entries[2:]]))

    def verify(self, document: dict[str, Any], *words: object, at: str = AT) -> dict[str, Any]:
        place = self.folder / "policy.json"
        place.write_text(json.dumps(document))
        line = ["verify", "bundle", self.archive, "--policy", place, "--at", at, *words, "--format", "json"]
        report: dict[str, Any] = json.loads(command_line([str(word) for word in line]).text)
        return report


@pytest.fixture
def auditor(kit: ModuleType, release: Any, tmp_path: Path) -> Auditor:
    return Auditor(kit, release, tmp_path)


def signer(source: str = "a test") -> KeySigner:
    return signer_of(new_private_key(), kind="managed", source=source)


def ids(report: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in report["findings"] if finding["cause"] is None]


def test_a_policy_that_names_the_key_accepts_it(auditor: Auditor, release: Any) -> None:
    report = auditor.verify(policy(key_signer("maintainers", release.signer)))
    assert (report["exit_code"], report["findings"]) == (0, [])
    assert (report["trust"]["mode"], report["trust"]["signers"]) == ("managed-key", ["maintainers"])
    assert report["evaluated_at"] == AT
    assert {digest["name"] for digest in report["trust"]["digests"]} == {"policy", "release"}


@pytest.mark.parametrize(
    ("changes", "code", "id"),
    [
        ({"minimum_version": "1.2.3"}, 0, None),
        ({"minimum_version": "1.2.4"}, 3, "policy.version-too-old"),
        ({"minimum_version": "1.10.0"}, 3, "policy.version-too-old"),
        ({"minimum_version": "1.2.4rc1"}, 3, "policy.version-too-old"),
        ({"minimum_version": "1.2.3rc9"}, 0, None),
        ({"maximum_age_days": 30}, 3, "policy.time-unknown"),
        ({"kind": None, "predicate_type": "urn:mint2m:predicate:plan:v1"}, 4, "policy.no-rule"),
    ],
)
def test_what_the_rule_asks_for_is_asked(
    changes: dict[str, Any], code: int, id: str | None, auditor: Auditor, release: Any
) -> None:
    report = auditor.verify(policy(key_signer("maintainers", release.signer), **changes))
    assert report["exit_code"] == code, ids(report)
    assert ids(report)[:1] == ([] if id is None else [id])


def test_a_stranger_s_release_is_not_trusted(auditor: Auditor) -> None:
    report = auditor.verify(policy(key_signer("maintainers", signer())))
    assert (report["exit_code"], ids(report)) == (4, ["policy.signer-unknown"])
    assert report["trust"]["signers"] == []


def test_a_revoked_key_and_a_revoked_release_are_refused_whatever_the_time(auditor: Auditor, release: Any) -> None:
    document = policy(key_signer("maintainers", release.signer, revoked="lost"), key_signer("b", signer()))
    document["rules"][0]["signers"] = ["b"]  # a rule that still lists the revoked one contradicts itself
    report = auditor.verify(document)
    assert (report["exit_code"], "policy.revoked" in ids(report)) == (4, True), report["findings"]
    digest = hashlib.sha256(auditor.payload).hexdigest()
    for revoked in (digest, hashlib.sha256(auditor.entries[-1].content).hexdigest()):
        document = policy(
            key_signer("maintainers", release.signer), revoked=[{"sha256": revoked, "reason": "withdrawn"}]
        )
        report = auditor.verify(document)
        assert (report["exit_code"], "policy.revoked" in ids(report)) == (4, True)


def test_two_of_three_must_be_two(auditor: Auditor, tmp_path: Path) -> None:
    first, second, third = signer("first"), signer("second"), signer("third")
    document = policy(key_signer("a", first), key_signer("b", second), key_signer("c", third), threshold=2)
    auditor.signed(first.sign_statement(auditor.payload))
    report = auditor.verify(document)
    assert (report["exit_code"], ids(report)) == (4, ["policy.threshold-not-met"])
    auditor.signed(first.sign_statement(auditor.payload), first.sign_statement(auditor.payload))
    assert auditor.verify(document)["exit_code"] == 4
    auditor.signed(first.sign_statement(auditor.payload), third.sign_statement(auditor.payload))
    report = auditor.verify(document, "--verified-output", tmp_path / "out")
    assert (report["exit_code"], report["trust"]["signers"]) == (0, ["a", "c"])
    assert (tmp_path / "out/release.2.sigstore.json").is_file()


def test_a_stranger_s_signature_beside_a_good_one_is_set_aside_and_not_unpacked(
    auditor: Auditor, release: Any, tmp_path: Path
) -> None:
    auditor.signed(auditor.entries[1].content, signer().sign_statement(auditor.payload))
    document = policy(key_signer("maintainers", release.signer))
    report = auditor.verify(document, "--verified-output", tmp_path / "out")
    assert (report["exit_code"], report["trust"]["signers"]) == (0, ["maintainers"])
    assert any("release.2.sigstore.json" in note for note in report["not_checked"])
    assert not (tmp_path / "out/release.2.sigstore.json").exists()


def test_a_broken_signature_by_a_known_key_refuses_the_bundle_though_enough_others_hold(
    auditor: Auditor, release: Any
) -> None:
    second = signer()
    other = json.loads(second.sign_statement(auditor.payload))
    other["dsseEnvelope"]["signatures"] = json.loads(second.sign_statement(b"{}"))["dsseEnvelope"]["signatures"]
    auditor.signed(auditor.entries[1].content, json.dumps(other).encode())
    report = auditor.verify(policy(key_signer("a", release.signer), key_signer("b", second)))
    assert (report["exit_code"], ids(report)) == (1, ["signature.invalid"])


@pytest.mark.parametrize("log", ["v1", "v2"])
def test_an_identity_under_a_private_root_may_release(log: Any, auditor: Auditor, tmp_path: Path) -> None:
    root = PrivateRoot.create(start=datetime(2026, 1, 1, tzinfo=UTC))
    (tmp_path / "root.json").write_bytes(root.trusted_root())
    entry = {"name": "private", "mode": "private-root", "sha256": hashlib.sha256(root.trusted_root()).hexdigest()}
    auditor.signed(root.sign_dsse(auditor.payload, SAN, ISSUER, log=log, now=SIGNED))
    document = policy(identity_signer(), roots=[entry])
    report = auditor.verify(document, "--trusted-root", tmp_path / "root.json")
    assert (report["exit_code"], ids(report)) == (0, [])
    assert (report["trust"]["mode"], report["trust"]["signers"]) == ("private-root", ["workflow"])
    assert {digest["name"] for digest in report["trust"]["digests"]} == {"policy", "trusted-root", "release"}

    auditor.signed(root.sign_dsse(auditor.payload, SAN + "x", ISSUER, log=log, now=SIGNED))
    report = auditor.verify(document, "--trusted-root", tmp_path / "root.json")
    assert (report["exit_code"], ids(report)) == (4, ["policy.signer-unknown"])


def test_a_certificate_signed_release_is_not_judged_by_a_key(auditor: Auditor, release: Any) -> None:
    root = PrivateRoot.create()
    auditor.signed(root.sign_dsse(auditor.payload, SAN, ISSUER))
    words = ["verify", "bundle", auditor.archive, "--key", release.public, "--format", "json"]
    report = json.loads(command_line([str(word) for word in words]).text)
    assert (report["exit_code"], ids(report)) == (4, ["signature.not-by-key"])


def test_a_policy_that_lies_in_the_archive_is_no_anchor(kit: ModuleType, release: Any, tmp_path: Path) -> None:
    """The sender put the auditor's very policy into the source and signed it along."""
    import io

    from mint2m_verify.release.archive import assemble, part_of, write_archive

    document = policy(key_signer("maintainers", release.signer))
    parts = [part_of(entry.name, entry.content) for entry in kit.entries_of(release.archive)[2:]]
    parts.append(part_of("source/trust/policy.json", json.dumps(document).encode()))
    bundle = assemble(kit.VERSION, parts, commit="1" * 40, committed_at="2026-01-31T12:00:00Z")
    made = io.BytesIO()
    write_archive(bundle, (release.signer.sign_statement(bundle.statement.payload),), made.write)
    auditor = Auditor(kit, release, tmp_path)
    auditor.archive.write_bytes(made.getvalue())
    report = auditor.verify(document)
    assert (report["exit_code"], ids(report)) == (4, ["trust.policy-inside-evidence"])


# Co-signing


def cosign(archive: Path, output: Path, key: Path, *words: object) -> dict[str, Any]:
    line = ["release", "cosign", archive, "--output", output, "--key", key, *words, "--format", "json"]
    report: dict[str, Any] = json.loads(command_line([str(word) for word in line]).text)
    return report


def private_pem(folder: Path, name: str) -> tuple[Path, KeySigner]:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = new_private_key()
    place = folder / f"{name}.key"
    place.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return place, signer_of(key, kind="managed", source=name)


def test_a_co_signer_adds_one_signature_and_changes_nothing_else(
    auditor: Auditor, release: Any, kit: ModuleType, tmp_path: Path
) -> None:
    key, second = private_pem(tmp_path, "second")
    (tmp_path / "out").mkdir()
    digest = hashlib.sha256(auditor.payload).hexdigest()
    report = cosign(auditor.archive, tmp_path / "out", key, "--digest", digest)
    assert report["exit_code"] == 0, ids(report)
    made = (tmp_path / "out" / kit.NAME).read_bytes()
    entries = kit.entries_of(made)
    assert entries[2].name == "release.2.sigstore.json"
    assert [*entries[:2], *entries[3:]] == auditor.entries
    assert auditor.archive.read_bytes() == release.archive
    auditor.archive.write_bytes(made)
    both = policy(key_signer("a", release.signer), key_signer("b", second), threshold=2)
    assert auditor.verify(both)["exit_code"] == 0


def test_a_co_signer_signs_nothing_that_differs_from_what_was_meant(auditor: Auditor, tmp_path: Path) -> None:
    key, _ = private_pem(tmp_path, "second")
    (tmp_path / "out").mkdir()
    report = cosign(auditor.archive, tmp_path / "out", key, "--digest", "1" * 64)
    assert (report["exit_code"], ids(report)) == (4, ["trust.digest-mismatch"])
    raw = bytearray(auditor.archive.read_bytes())
    raw[-100] ^= 1
    auditor.archive.write_bytes(raw)
    assert cosign(auditor.archive, tmp_path / "out", key)["exit_code"] == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_a_co_signed_bundle_is_never_written_over_another(auditor: Auditor, release: Any, tmp_path: Path) -> None:
    key, _ = private_pem(tmp_path, "second")
    report = cosign(auditor.archive, tmp_path, key)
    assert (report["exit_code"], ids(report)) == (2, ["file.exists"])
    assert auditor.archive.read_bytes() == release.archive


def test_a_tenth_signature_has_no_place(auditor: Auditor, tmp_path: Path) -> None:
    key, _ = private_pem(tmp_path, "tenth")
    auditor.signed(*(signer().sign_statement(auditor.payload) for _ in range(9)))
    (tmp_path / "out").mkdir()
    report = cosign(auditor.archive, tmp_path / "out", key)
    assert (report["exit_code"], ids(report)) == (2, ["usage.invalid"])
    assert list((tmp_path / "out").iterdir()) == []
