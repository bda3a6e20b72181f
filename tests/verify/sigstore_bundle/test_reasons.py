"""Each finding about a bundle is provoked by one change to a bundle that verifies, and by nothing else in it.

Together with the conformance table this covers every `sigstore.*` id; one that no test here provokes fails the last
test. Expectations are hand-made: each case says which single thing it breaks.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from mint2m_verify import signing
from mint2m_verify.catalogue import entries
from mint2m_verify.finding import FindingError
from mint2m_verify.signers.private_authority import authority_certificate, der_of, timestamping_certificate
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.signers.private_time import TimestampAuthority
from mint2m_verify.sigstore_bundle import Artifact, read_bundles

ENTRY = ("verificationMaterial", "tlogEntries", 0)
PROOF = (*ENTRY, "inclusionProof")
CHECKPOINT = (*PROOF, "checkpoint", "envelope")
TOKENS = ("verificationMaterial", "timestampVerificationData", "rfc3161Timestamps")
OLD = "application/vnd.dev.sigstore.bundle+json;version=0.2"

#: What a case hands to `Kit.ids`: the bundle, and root, keys or artifact where they are not the usual ones.
Given = tuple[Any, dict[str, Any]]


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def at(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def alter(path: tuple[str | int, ...], value: Any, maker: str = "blob", log: str = "v1") -> Callable[[Any], Given]:
    """A bundle with one value replaced; a function gets the old value."""

    def make(kit: Any) -> Given:
        bundle = getattr(kit, maker)(log)
        new = value(at(bundle, path)) if callable(value) else value
        return kit.changed(bundle, *path, value=new), {}

    return make


def under(path: tuple[str | int, ...], value: Any, log: str = "v1") -> Callable[[Any], Given]:
    """A sound bundle under a root with one value replaced."""
    return lambda kit: (kit.blob(log), {"root": kit.changed(kit.root, *path, value=value)})


def flipped(text: str) -> str:
    raw = bytearray(base64.b64decode(text))
    raw[-1] ^= 1
    return b64(bytes(raw))


def other_key(kit: Any) -> str:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return b64(key.public_bytes(serialization.Encoding.DER, form))


def in_old_form(kit: Any, *further: bytes) -> Given:
    """The bundle as version 0.2 writes it, with certificates behind the signing one."""
    bundle = kit.changed(kit.blob(), "mediaType", value=OLD)
    material = bundle["verificationMaterial"]
    chain = [material.pop("certificate"), *({"rawBytes": b64(raw)} for raw in further)]
    material["x509CertificateChain"] = {"certificates": chain}
    return bundle, {}


def extensions(kit: Any, **changes: Any) -> list[tuple[x509.ExtensionType, bool]]:
    """What Sigstore's certificates have."""
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    oid = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
    usual: dict[str, Any] = {
        "usage": (usage, True),
        "purpose": (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False),
        "name": (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(kit.identity)]), True),
        "authority": (
            x509.AuthorityKeyIdentifier.from_issuer_public_key(kit.private.authority.key.public_key()),
            False,
        ),
        "issuer": (x509.UnrecognizedExtension(oid, kit.issuer.encode()), False),
    }
    return [extension for extension in {**usual, **changes}.values() if extension is not None]


def with_certificate(
    *, key: Any = None, noted: bool = True, body: Any = None, **changes: Any
) -> Callable[[Any], Given]:
    return lambda kit: (kit.by_certificate(extensions(kit, **changes), key=key, noted=noted, body=body), {})


def two_issuers(kit: Any) -> Given:
    issuer = b"https://other.example.invalid"
    second = x509.UnrecognizedExtension(
        x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8"), bytes([0x0C, len(issuer)]) + issuer
    )
    return kit.by_certificate(extensions(kit, second=(second, False))), {}


def twice(kit: Any, path: tuple[str | int, ...], log: str = "v2") -> Given:
    bundle = kit.blob(log)
    return kit.changed(bundle, *path, value=[*at(bundle, path), *at(bundle, path)]), {}


def stamped(kit: Any, after: timedelta) -> Given:
    bundle = kit.blob("v2")
    return kit.changed(bundle, *TOKENS, 0, "signedTimestamp", value=kit.stamp(bundle, kit.now + after)), {}


def with_stamp_of_another(kit: Any) -> Given:
    other = at(kit.blob("v2"), TOKENS)
    return kit.changed(kit.blob("v2"), *TOKENS, value=other), {}


def stamped_after_the_authority_expired(kit: Any) -> Given:
    """The root still counts the authority, whose certificates ended an hour before it stamped."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    start, end = kit.now - timedelta(days=1), kit.now - timedelta(hours=1)
    top = authority_certificate(keys[0], organization="o", name="r", start=start, end=end)
    leaf = timestamping_certificate(
        keys[1].public_key(), organization="o", name="t", authority=top, authority_key=keys[0]
    )
    bundle = kit.blob("v2")
    signature = base64.b64decode(bundle["messageSignature"]["signature"])
    token = TimestampAuthority(key=keys[1], chain=(leaf, top)).stamp(hashlib.sha256(signature).digest(), now=kit.now)
    chain = [{"rawBytes": b64(der_of(certificate))} for certificate in (leaf, top)]
    root = kit.changed(kit.root, "timestampAuthorities", 0, "certChain", "certificates", value=chain)
    return kit.changed(bundle, *TOKENS, 0, "signedTimestamp", value=b64(token)), {"root": root}


def under_another_root(part: str) -> Callable[[Any], Given]:
    def make(kit: Any) -> Given:
        other = json.loads(PrivateRoot.create(start=kit.now - timedelta(days=1)).trusted_root())
        return kit.blob("v2"), {"root": kit.changed(kit.root, part, value=other[part])}

    return make


def entry_of_another(kit: Any) -> Given:
    """Same log, same artifact, same identity; another signature."""
    return kit.changed(kit.blob(), *ENTRY, value=at(kit.blob(), ENTRY)), {}


def key_bundle(**options: Any) -> Callable[[Any], Given]:
    return lambda kit: (kit.by_key(), {"root": None, **options})


def ed25519_by_digest(kit: Any) -> Given:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    artifact = Artifact(name=None, sha256=hashlib.sha256(kit.content).hexdigest())
    return kit.by_key(key=key), {"keys": (key.public_key(),), "artifact": artifact}


def signed_statement(**changes: Any) -> Callable[[Any], Given]:
    return lambda kit: (kit.dsse("v2", kit.statement(**changes)), {})


def signed_subject(name: str, digest: str) -> Callable[[Any], Given]:
    return signed_statement(subject=[{"name": name, "digest": {"sha256": digest}}])


ZEROS = "0" * 64

#: (id, what is broken, maker). The id is the first finding; each bundle is sound but for the one thing.
CASES: tuple[tuple[str, str, Callable[[Any], Given]], ...] = (
    ("sigstore.bundle-invalid", "a member nobody knows", alter(("extra",), 1, "blob")),
    ("sigstore.bundle-invalid", "a null", alter((*ENTRY, "logId"), None)),
    ("sigstore.bundle-invalid", "a snake-case member, which sigstore-python takes", alter((*ENTRY, "log_index"), "1")),
    ("sigstore.bundle-invalid", "a certificate in an old bundle", alter(("mediaType",), OLD)),
    ("sigstore.version-unknown", "version 0.4", alter(("mediaType",), OLD.replace("0.2", "0.4"))),
    ("sigstore.base64-invalid", "stray bits", alter(("messageSignature", "messageDigest", "digest"), "AB==")),
    ("sigstore.base64-invalid", "no padding", alter(("messageSignature", "signature"), "AAA")),
    ("sigstore.base64-invalid", "a line break of its own", alter((*PROOF, "rootHash"), lambda v: v[:9] + "\n" + v[9:])),
    ("sigstore.number-invalid", "a sign", alter((*ENTRY, "logIndex"), "-1")),
    ("sigstore.number-invalid", "a leading zero", alter((*ENTRY, "logIndex"), lambda v: f"0{v}")),
    ("sigstore.number-invalid", "a number, not a string", alter((*ENTRY, "logIndex"), 1)),
    ("sigstore.number-invalid", "a time that no calendar has", alter((*ENTRY, "integratedTime"), str(2**62))),
    ("sigstore.material-count", "certificate and key", alter(("verificationMaterial", "publicKey"), {"hint": "x"})),
    ("sigstore.material-count", "neither", alter(("verificationMaterial", "certificate"), ...)),
    ("sigstore.content-count", "neither content", alter(("messageSignature",), ...)),
    (
        "sigstore.content-count",
        "both contents",
        lambda kit: (kit.changed(kit.blob(), "dsseEnvelope", value=kit.dsse()["dsseEnvelope"]), {}),
    ),
    ("sigstore.signature-count", "no signature", alter(("dsseEnvelope", "signatures"), [], "dsse")),
    ("sigstore.signature-count", "two signatures", alter(("dsseEnvelope", "signatures"), lambda v: v * 2, "dsse")),
    (
        "sigstore.digest-unsupported",
        "SHA-512",
        alter(("messageSignature", "messageDigest"), {"algorithm": "SHA2_512", "digest": b64(bytes(64))}),
    ),
    ("sigstore.bare-envelope", "the envelope alone", lambda kit: (kit.dsse()["dsseEnvelope"], {})),
    ("sigstore.root-needed", "no root", lambda kit: (kit.blob(), {"root": None})),
    ("sigstore.root-invalid", "a window without start", under(("tlogs", 0, "publicKey", "validFor"), {})),
    ("sigstore.root-invalid", "no log", under(("tlogs",), [])),
    ("sigstore.root-invalid", "no authority", under(("certificateAuthorities",), [])),
    ("sigstore.root-invalid", "a key that is none", under(("ctlogs", 0, "publicKey", "rawBytes"), "AAAA")),
    (
        "sigstore.root-invalid",
        "a certificate that is none",
        under(("certificateAuthorities", 0, "certChain", "certificates", 0, "rawBytes"), "AAAA"),
    ),
    (
        "sigstore.root-invalid",
        "an end before the start",
        under(("tlogs", 0, "publicKey", "validFor", "end"), "2020-01-01T00:00:00Z"),
    ),
    (
        "sigstore.root-invalid",
        "a kind of key that the library does not know",
        under(("tlogs", 0, "publicKey", "keyDetails"), "PKIX_NEW"),
    ),
    (
        "sigstore.certificate-missing",
        "an empty chain",
        lambda kit: (
            kit.changed(in_old_form(kit)[0], "verificationMaterial", "x509CertificateChain", "certificates", value=[]),
            {},
        ),
    ),
    (
        "sigstore.certificate-invalid",
        "no certificate",
        alter(("verificationMaterial", "certificate", "rawBytes"), "AAAA"),
    ),
    (
        "sigstore.certificate-invalid",
        "not for signing code",
        with_certificate(purpose=(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)),
    ),
    ("sigstore.certificate-invalid", "no identity provider", with_certificate(issuer=None)),
    (
        "sigstore.certificate-invalid",
        "an authority's own",
        with_certificate(basic=(x509.BasicConstraints(True, None), True)),
    ),
    (
        "sigstore.certificate-ambiguous",
        "two names",
        with_certificate(
            name=(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"https://{n}.invalid") for n in "ab"]),
                True,
            )
        ),
    ),
    ("sigstore.certificate-ambiguous", "two issuers", two_issuers),
    ("sigstore.certificate-unsupported", "an RSA key", with_certificate(key=rsa.generate_private_key(65537, 2048))),
    (
        "sigstore.chain-not-allowed",
        "the root behind the leaf",
        lambda kit: in_old_form(kit, der_of(kit.private.authority.certificate)),
    ),
    ("sigstore.key-needed", "no key", key_bundle()),
    (
        "sigstore.no-signed-time",
        "no timestamp",
        alter(("verificationMaterial", "timestampVerificationData"), ..., log="v2"),
    ),
    (
        "sigstore.timestamp-malformed",
        "cut",
        alter((*TOKENS, 0, "signedTimestamp"), lambda v: b64(base64.b64decode(v)[:-3]), log="v2"),
    ),
    (
        "sigstore.timestamp-malformed",
        "extended",
        alter((*TOKENS, 0, "signedTimestamp"), lambda v: b64(base64.b64decode(v) + b"\0"), log="v2"),
    ),
    ("sigstore.timestamp-mismatch", "over another signature", with_stamp_of_another),
    ("sigstore.timestamp-repeated", "twice", lambda kit: twice(kit, TOKENS)),
    ("sigstore.timestamp-untrusted", "no authority in the root", under(("timestampAuthorities",), [], "v2")),
    ("sigstore.timestamp-untrusted", "another authority", under_another_root("timestampAuthorities")),
    ("sigstore.timestamp-certificate-expired", "an expired authority", stamped_after_the_authority_expired),
    (
        "sigstore.timestamp-outside-window",
        "after its window",
        under(("timestampAuthorities", 0, "validFor", "end"), "2026-06-01T11:59:59Z", "v2"),
    ),
    (
        "sigstore.certificate-expired",
        "stamped a second too late",
        lambda kit: stamped(kit, timedelta(minutes=10, seconds=1)),
    ),
    ("sigstore.certificate-expired", "stamped a second too early", lambda kit: stamped(kit, timedelta(seconds=-1))),
    ("sigstore.chain-untrusted", "another authority", under_another_root("certificateAuthorities")),
    (
        "sigstore.authority-outside-window",
        "before its window",
        under(("certificateAuthorities", 0, "validFor", "start"), "2026-06-01T12:00:01Z"),
    ),
    ("sigstore.sct-missing", "no note", with_certificate(noted=False)),
    (
        "sigstore.sct-invalid",
        "a note by another key",
        lambda kit: (
            kit.blob(),
            {"root": kit.changed(kit.root, "ctlogs", 0, "publicKey", "rawBytes", value=other_key(kit))},
        ),
    ),
    ("sigstore.ct-log-unknown", "no certificate log", under(("ctlogs",), [])),
    (
        "sigstore.ct-log-outside-window",
        "before its window",
        under(("ctlogs", 0, "publicKey", "validFor", "start"), "2026-06-01T12:00:01Z"),
    ),
    ("sigstore.log-entry-missing", "no entry", alter(("verificationMaterial", "tlogEntries"), [], log="v2")),
    ("sigstore.log-entry-count", "two entries", lambda kit: twice(kit, ENTRY[:2])),
    (
        "sigstore.log-entry-unsupported",
        "a statement's entry for a file",
        alter((*ENTRY, "kindVersion", "kind"), "dsse"),
    ),
    ("sigstore.log-entry-unsupported", "version 0.0.3", alter((*ENTRY, "kindVersion", "version"), "0.0.3", log="v2")),
    ("sigstore.log-entry-mismatch", "another signature's entry", entry_of_another),
    ("sigstore.log-unknown", "an id that is one bit off", alter((*ENTRY, "logId", "keyId"), flipped)),
    (
        "sigstore.log-outside-window",
        "after its window",
        under(("tlogs", 0, "publicKey", "validFor", "end"), "2026-06-01T11:59:59Z"),
    ),
    (
        "sigstore.log-outside-window",
        "of a log without times",
        under(("tlogs", 0, "publicKey", "validFor", "end"), "2026-06-01T11:59:59Z", "v2"),
    ),
    ("sigstore.log-index-mismatch", "an outer index that nobody signs", alter((*ENTRY, "logIndex"), "777", log="v2")),
    ("sigstore.inclusion-proof-missing", "no proof", alter(PROOF, ...)),
    (
        "sigstore.inclusion-proof-invalid",
        "a sibling too many",
        alter((*PROOF, "hashes"), lambda v: [*v, b64(bytes(32))]),
    ),
    ("sigstore.inclusion-proof-invalid", "an index past the tree", alter((*PROOF, "logIndex"), "99999")),
    ("sigstore.checkpoint-missing", "no checkpoint", alter((*PROOF, "checkpoint"), ...)),
    ("sigstore.checkpoint-malformed", "a line that is no signature", alter(CHECKPOINT, lambda v: v + "hello\n")),
    ("sigstore.checkpoint-malformed", "two blank lines", alter(CHECKPOINT, lambda v: v + "\n")),
    (
        "sigstore.checkpoint-unsigned",
        "nobody's signature",
        alter(CHECKPOINT, lambda v: v.rsplit(" ", 1)[0] + " AAAAAAAAAAAA\n"),
    ),
    (
        "sigstore.checkpoint-name-mismatch",
        "in another's name",
        alter(CHECKPOINT, lambda v: v.replace("\u2014 log", "\u2014 lag")),
    ),
    (
        "sigstore.checkpoint-signature-invalid",
        "another origin",
        alter(CHECKPOINT, lambda v: v.replace("log.private", "lag.private")),
    ),
    (
        "sigstore.checkpoint-mismatch",
        "another size",
        alter(CHECKPOINT, lambda v: "\n".join([v.split("\n")[0], "999", *v.split("\n")[2:]])),
    ),
    ("sigstore.promise-incomplete", "no promise", alter((*ENTRY, "inclusionPromise"), ...)),
    (
        "sigstore.promise-incomplete",
        "a time for a log that has none",
        alter((*ENTRY, "integratedTime"), "1780315200", log="v2"),
    ),
    ("sigstore.promise-invalid", "a second later", alter((*ENTRY, "integratedTime"), lambda v: str(int(v) + 1))),
    ("sigstore.promise-invalid", "another place in the log", alter((*ENTRY, "logIndex"), lambda v: str(int(v) + 1))),
    (
        "sigstore.signature-invalid",
        "another payload",
        alter(
            ("dsseEnvelope", "payload"), lambda v: b64(base64.b64decode(v).replace(b"slsa.dev", b"slsa.bad")), "dsse"
        ),
    ),
    (
        "sigstore.artifact-mismatch",
        "another file",
        lambda kit: (kit.blob(), {"artifact": Artifact.of(b"other", name=kit.name)}),
    ),
    ("sigstore.artifact-needed", "Ed25519, and only a digest", ed25519_by_digest),
    (
        "sigstore.artifact-needed",
        "no digest anywhere",
        lambda kit: (kit.changed(kit.blob(), "messageSignature", "messageDigest", value=...), {"artifact": None}),
    ),
    (
        "sigstore.payload-type",
        "a signed payload of another type",
        lambda kit: (kit.dsse("v2", payload_type="text/plain"), {}),
    ),
    ("sigstore.statement-type", "an older statement", signed_statement(_type="https://in-toto.io/Statement/v0.1")),
    ("sigstore.statement-invalid", "no subject", signed_statement(subject=[])),
    ("sigstore.statement-invalid", "a subject without digest", signed_statement(subject=[{"name": "a", "digest": {}}])),
    ("sigstore.statement-invalid", "a digest in capitals", signed_subject("a", "A" * 64)),
    ("sigstore.subject-digest-mismatch", "another file's digest", signed_subject("dist/model-1.0.tar.gz", ZEROS)),
    (
        "sigstore.subject-name-mismatch",
        "another file's name",
        lambda kit: signed_subject("dist/other.tar.gz", hashlib.sha256(kit.content).hexdigest())(kit),
    ),
    ("sigstore.refused", "an entry that says more than it should", with_certificate(body={"more": 1})),
)

#: Ids of a whole command, and the reader of several bundles; each has its test elsewhere.
ELSEWHERE = {
    "sigstore.no-bundle": "test_a_file_of_no_bundle_is_refused",
    "sigstore.not-by-certificate": "test_verify_signature.py",
    "sigstore.identity-mismatch": "test_verify_signature.py",
    "sigstore.issuer-mismatch": "test_verify_signature.py",
    "sigstore.predicate-type-mismatch": "test_verify_signature.py",
}


@pytest.mark.parametrize(("id", "broken", "make"), CASES, ids=[f"{id[9:]}: {broken}" for id, broken, _ in CASES])
def test_one_change_gives_its_own_finding(id: str, broken: str, make: Callable[[Any], Given], kit: Any) -> None:
    bundle, options = make(kit)
    result = kit.verify(bundle, **options)
    assert result.verified is None
    assert result.findings[0].id == id, [finding.id for finding in result.findings]


@pytest.mark.parametrize("maker", ["blob", "dsse"])
@pytest.mark.parametrize("log", ["v1", "v2"])
def test_without_the_change_there_is_no_finding(maker: str, log: str, kit: Any) -> None:
    result = kit.verify(getattr(kit, maker)(log))
    assert result.findings == ()
    verified = result.verified
    assert (verified.logged, verified.timestamped) == (True, log == "v2")
    assert (verified.signer.san, verified.signer.issuer) == (kit.identity, kit.issuer)
    assert [time.time for time in verified.times] == [kit.now]
    assert verified.root_sha256 == hashlib.sha256(json.dumps(kit.root).encode()).hexdigest()


def test_a_certificate_made_by_hand_verifies_where_nothing_is_wrong_with_it(kit: Any) -> None:
    assert kit.ids(kit.by_certificate(extensions(kit))) == []


def test_a_chain_without_more_certificates_verifies_in_the_old_form(kit: Any) -> None:
    assert kit.ids(in_old_form(kit)[0]) == []


@pytest.mark.parametrize("raw", [b"", b"\n \r\n"])
def test_a_file_of_no_bundle_is_refused(raw: bytes) -> None:
    with pytest.raises(FindingError) as caught:
        read_bundles(raw, file="f")
    assert caught.value.finding.id == "sigstore.no-bundle"


def test_every_finding_about_bundles_is_provoked() -> None:
    known = {id for id in entries() if id.startswith("sigstore.")}
    assert sorted(known - {id for id, _, _ in CASES} - ELSEWHERE.keys()) == []
    assert sorted(({id for id, _, _ in CASES} | ELSEWHERE.keys()) - known) == []


def test_a_key_of_another_kind_is_not_the_bundles(kit: Any) -> None:
    stranger = signing.new_private_key().public_key()
    assert kit.ids(kit.by_key(), keys=(stranger,)) == ["signature.key-mismatch"]
