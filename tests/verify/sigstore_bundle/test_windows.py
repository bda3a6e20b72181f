"""Windows of the trusted root: closed at both ends, for every part that vouches; and what a stripped bundle loses.

A window is `[start, end]` by the format ("closed and includes both the start and end times"). All times here are
`kit.now`, to the second, so a window that ends or starts there still holds and one a microsecond short does not.
"""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest

from mint2m_verify.sigstore_bundle import Artifact, parse_root, read_bundle, verify_bundle

PARTS = {
    "certificateAuthorities": (("certificateAuthorities", 0, "validFor"), "sigstore.authority-outside-window"),
    "ctlogs": (("ctlogs", 0, "publicKey", "validFor"), "sigstore.ct-log-outside-window"),
    "tlogs": (("tlogs", 0, "publicKey", "validFor"), "sigstore.log-outside-window"),
    "timestampAuthorities": (("timestampAuthorities", 0, "validFor"), "sigstore.timestamp-outside-window"),
}


def shown(time: Any) -> str:
    return str(time.isoformat().replace("+00:00", "Z"))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("log", ["v1", "v2"])
def test_a_window_holds_at_both_ends_and_not_a_moment_beyond(part: str, log: str, kit: Any) -> None:
    path, id = PARTS[part]
    bundle = kit.blob(log, timestamp=True)
    moment = timedelta(microseconds=1)
    for window, ids in (
        ({"start": shown(kit.now), "end": shown(kit.now)}, []),
        ({"start": shown(kit.now)}, []),
        ({"start": shown(kit.now), "end": None}, []),
        ({"start": shown(kit.now + moment)}, [id]),
        ({"start": shown(kit.now - timedelta(days=1)), "end": shown(kit.now - moment)}, [id]),
    ):
        root = kit.changed(kit.root, *path, value=window)
        assert kit.ids(bundle, root=root)[:1] == ids, window


def test_an_authority_that_is_out_of_its_window_is_no_issuer_beside_one_that_is_in(kit: Any) -> None:
    """Two authorities of one name, as the public root has: only the one in its window may have issued."""
    from mint2m_verify.signers.private_root import PrivateRoot

    other = json.loads(PrivateRoot.create(start=kit.now - timedelta(days=1)).trusted_root())
    mine = kit.root["certificateAuthorities"][0]
    ended = {**mine, "validFor": {**mine["validFor"], "end": shown(kit.now - timedelta(seconds=1))}}
    root = kit.changed(kit.root, "certificateAuthorities", value=[ended, other["certificateAuthorities"][0]])
    assert kit.ids(kit.blob(), root=root) == ["sigstore.authority-outside-window"]
    root = kit.changed(kit.root, "certificateAuthorities", value=[mine, other["certificateAuthorities"][0]])
    assert kit.ids(kit.blob(), root=root) == []


def test_each_of_several_times_must_lie_in_the_windows(kit: Any) -> None:
    """A log's promise within the window does not cover a timestamp outside it."""
    bundle = kit.blob("v1", timestamp=True)
    later = kit.now + timedelta(minutes=5)
    tokens = ("verificationMaterial", "timestampVerificationData", "rfc3161Timestamps", 0, "signedTimestamp")
    bundle = kit.changed(bundle, *tokens, value=kit.stamp(bundle, later))
    assert kit.ids(bundle) == []
    for path, id in (PARTS["certificateAuthorities"], PARTS["tlogs"], PARTS["timestampAuthorities"]):
        root = kit.changed(kit.root, *path, "end", value=shown(kit.now + timedelta(minutes=4)))
        assert kit.ids(bundle, root=root) == [id]


def test_another_log_of_the_root_cannot_sign_for_the_one_that_is_named(kit: Any) -> None:
    """sigstore-python tries every key where an id is not a key's own digest; here the id names one key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    stranger = ec.generate_private_key(ec.SECP256R1()).public_key()
    raw = stranger.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)

    log = kit.root["tlogs"][0]
    named = {**log, "publicKey": {**log["publicKey"], "rawBytes": base64.b64encode(raw).decode()}}
    elsewhere = {**log, "logId": {"keyId": base64.b64encode(bytes(32)).decode()}}
    root = kit.changed(kit.root, "tlogs", value=[named, elsewhere])
    ids = kit.ids(kit.blob("v2"), root=root)
    assert ids == ["sigstore.checkpoint-signature-invalid"]


STAMPS = ("verificationMaterial", "timestampVerificationData")
ENTRIES = ("verificationMaterial", "tlogEntries")


def test_a_bundle_that_lost_its_timestamp_does_not_claim_one(kit: Any) -> None:
    whole = kit.blob("v1", timestamp=True)
    assert [time.source for time in kit.verify(whole).verified.times] == ["timestamp-authority", "transparency-log"]
    stripped = kit.verify(kit.changed(whole, *STAMPS, value=...)).verified
    assert (stripped.logged, stripped.timestamped) == (True, False)
    assert [time.source for time in stripped.times] == ["transparency-log"]


def test_an_entry_of_a_log_without_times_proves_no_time(kit: Any) -> None:
    verified = kit.verify(kit.blob("v2")).verified
    assert [time.source for time in verified.times] == ["timestamp-authority"]
    assert kit.ids(kit.changed(kit.blob("v2"), *STAMPS, value=...)) == ["sigstore.no-signed-time"]


def test_a_certificates_bundle_that_lost_its_entry_is_refused(kit: Any) -> None:
    assert kit.ids(kit.changed(kit.blob("v1", timestamp=True), *ENTRIES, value=[])) == ["sigstore.log-entry-missing"]


@pytest.mark.parametrize("log", ["v1", "v2"])
def test_a_keys_bundle_states_what_it_lost(log: str, kit: Any) -> None:
    keys = (kit.key.public_key(),)
    whole = kit.witnessed(kit.by_key(), log, timestamp=True)

    def facts(document: Any, **options: Any) -> tuple[bool, bool, int, bool]:
        verified = kit.verify(document, keys=keys, **options).verified
        return verified.logged, verified.timestamped, len(verified.times), verified.root_sha256 is not None

    assert facts(whole) == (True, True, 2 if log == "v1" else 1, True)
    assert facts(kit.changed(whole, *ENTRIES, value=[])) == (False, True, 1, True)
    assert facts(kit.changed(whole, *STAMPS, value=...))[:2] == (True, False)
    assert facts(kit.by_key()) == (False, False, 0, False)
    assert facts(whole, root=None) == (False, False, 0, False)  # no root, no witness, whatever the bundle claims


def test_the_claims_of_a_certificate_are_read_by_name(kit: Any) -> None:
    claims = {"source_repository_uri": "https://example.invalid/repo", "source_repository_digest": "a" * 40}
    signer = kit.verify(kit.blob(claims=claims)).verified.signer
    assert {claim.name: claim.value for claim in signer.claims} == claims
    assert signer.claim("source_repository_digest") == "a" * 40
    assert signer.claim("build_trigger") is None


def test_without_an_artifact_a_message_is_held_against_the_digest_it_states(kit: Any) -> None:
    raw = json.dumps(kit.blob()).encode()
    root = parse_root(kit.private.trusted_root(), name="root")
    assert verify_bundle(read_bundle(raw, file="b"), root=root).verified is not None
    other = Artifact.of(b"other")
    lying = json.loads(raw)

    lying["messageSignature"]["messageDigest"]["digest"] = base64.b64encode(bytes.fromhex(other.sha256)).decode()
    result = verify_bundle(read_bundle(json.dumps(lying).encode(), file="b"), root=root)
    assert [finding.id for finding in result.findings] == ["sigstore.signature-invalid", "sigstore.log-entry-mismatch"]
