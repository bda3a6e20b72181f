"""`kit`: a private root, bundles made under it, and the one way in which these tests verify them.

The private root is the maker, never the judge: that unmodified sigstore-python accepts its bundles is shown in
tests/verify/signers, and what is expected here comes from the formats and from the conformance suite.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from mint2m_verify import signing
from mint2m_verify.finding import FindingError
from mint2m_verify.signers import bundle_form
from mint2m_verify.signers.private_authority import der_of, pem_of
from mint2m_verify.signers.private_log import SignedBy, message_body
from mint2m_verify.signers.private_root import PrivateRoot
from mint2m_verify.sigstore_bundle import Artifact, Result, parse_root, read_bundle, verify_bundle

NOW = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
IDENTITY = "https://example.invalid/release.yml@refs/tags/v1"
ISSUER = "https://issuer.example.invalid"
CONTENT = b"what was signed\n"
NAME = "model-1.0.tar.gz"

Json = dict[str, Any]


def statement(**changes: Any) -> bytes:
    """An in-toto statement about the artifact."""
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": f"dist/{NAME}", "digest": {"sha256": hashlib.sha256(CONTENT).hexdigest()}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {},
    }
    return json.dumps({**document, **changes}).encode()


def changed(document: Json, *path: str | int, value: Any) -> Json:
    """A copy with the value at `path` replaced; `...` removes it."""
    copied = copy.deepcopy(document)
    place: Any = copied
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copied


@dataclass(kw_only=True)
class Kit:
    """Makers and a judge; every maker returns a fresh document that the test may change."""

    private: PrivateRoot = field(default_factory=lambda: PrivateRoot.create(start=NOW - timedelta(days=1)))
    key: signing.PrivateKey = field(default_factory=signing.new_private_key)

    now = NOW
    identity = IDENTITY
    issuer = ISSUER
    content = CONTENT
    name = NAME
    changed = staticmethod(changed)
    statement = staticmethod(statement)

    @property
    def root(self) -> Json:
        document: Json = json.loads(self.private.trusted_root())
        return document

    def blob(self, log: str = "v1", **options: Any) -> Json:
        digest = hashlib.sha256(CONTENT).digest()
        options.setdefault("now", NOW)
        return self._read(self.private.sign_blob(digest, IDENTITY, ISSUER, log=log, **options))  # type: ignore[arg-type]

    def dsse(self, log: str = "v1", payload: bytes | None = None, **options: Any) -> Json:
        payload = statement() if payload is None else payload
        options.setdefault("now", NOW)
        return self._read(self.private.sign_dsse(payload, IDENTITY, ISSUER, log=log, **options))  # type: ignore[arg-type]

    def by_key(self, *, payload: bytes | None = None, key: signing.PrivateKey | None = None) -> Json:
        """A key's bundle over the artifact, or over a payload."""
        key = key or self.key
        material = bundle_form.key_material(bytes.fromhex(signing.key_id(key.public_key())))
        if payload is not None:
            signed = bundle_form.signed_bytes(payload, bundle_form.STATEMENT_PAYLOAD)
            envelope = bundle_form.envelope(payload, bundle_form.STATEMENT_PAYLOAD, signing.sign_bytes(signed, key))
            return self._read(bundle_form.envelope_bundle(material, envelope))
        digest = hashlib.sha256(CONTENT).digest()
        message = bundle_form.message_signature(digest, signing.sign_bytes(CONTENT, key))
        return self._read(bundle_form.message_bundle(material, message))

    def witnessed(self, bundle: Json, log: str = "v1", **options: Any) -> Json:
        options.setdefault("now", NOW)
        raw = json.dumps(bundle).encode()
        return self._read(self.private.witness(raw, self.key.public_key(), log=log, **options))  # type: ignore[arg-type]

    def by_certificate(
        self,
        extensions: Sequence[tuple[x509.ExtensionType, bool]],
        *,
        key: Any = None,
        noted: bool = True,
        body: Mapping[str, Any] | None = None,
    ) -> Json:
        """A bundle under a certificate of exactly these extensions, in a v2 entry with a timestamp.

        Args:
            noted: whether the certificate log's note is added.
            body: members to add to the entry's body.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        authority = self.private.authority
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(authority.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW)
            .not_valid_after(NOW + timedelta(minutes=10))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        if noted:
            unlogged = builder.sign(authority.key, hashes.SHA256()).tbs_certificate_bytes
            oid = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
            note = x509.UnrecognizedExtension(oid, authority._sct_list(unlogged, NOW))
            builder = builder.add_extension(note, critical=False)
        certificate = builder.sign(authority.key, hashes.SHA256())
        digest = hashlib.sha256(CONTENT).digest()
        if isinstance(key, ec.EllipticCurvePrivateKey):
            signature = key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))
        else:
            signature = b"of another kind of key"
        signer = SignedBy(der=der_of(certificate), pem=pem_of(certificate), kind="certificate")
        material = self.private._witness(
            bundle_form.certificate_material(signer.der),
            {**message_body(digest, signature, signer, "v2"), **(body or {})},
            signature,
            log="v2",
            time=NOW,
            timestamp=True,
        )
        return self._read(bundle_form.message_bundle(material, bundle_form.message_signature(digest, signature)))

    def stamp(self, bundle: Json, when: datetime) -> str:
        """A timestamp over a bundle's signature, in base64."""
        content = bundle.get("messageSignature") or bundle["dsseEnvelope"]["signatures"][0]
        signature = base64.b64decode(content.get("signature") or content["sig"])
        token = self.private.timestamps.stamp(hashlib.sha256(signature).digest(), now=when)
        return base64.b64encode(token).decode()

    def verify(
        self,
        bundle: Json | bytes,
        *,
        root: Json | None = ...,  # type: ignore[assignment]  # the private root's own
        keys: Sequence[Any] = (),
        artifact: Artifact | None = ...,  # type: ignore[assignment]  # the file and its name
    ) -> Result:
        """The result for a bundle; what cannot be read is a result with one finding."""
        raw = bundle if isinstance(bundle, bytes) else json.dumps(bundle).encode()
        trusted = self.root if root is ... else root
        about = Artifact.of(CONTENT, name=NAME) if artifact is ... else artifact
        try:
            parsed = None if trusted is None else parse_root(json.dumps(trusted).encode(), name="root")
            return verify_bundle(read_bundle(raw, file="bundle"), root=parsed, keys=keys, artifact=about)
        except FindingError as fault:
            return Result(verified=None, findings=(fault.finding,))

    def ids(self, bundle: Json | bytes, **options: Any) -> list[str]:
        """Ids of the findings that follow from no other."""
        return [finding.id for finding in self.verify(bundle, **options).findings if finding.cause is None]

    @staticmethod
    def _read(raw: bytes) -> Json:
        document: Json = json.loads(raw)
        return document


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()
