"""A private Sigstore-compatible root: one's own certificate authority, logs and timestamp authority, offline.

The rule: it is worth exactly as much as whoever holds its private half, and it says so in every name it bears. Whoever
holds it can issue any identity at any time; a verdict that rests on it therefore carries the mode `private-root`, by
the auditor's word about this root's digest. It serves CI and sites without a network, in the formats and with the
checks of the public one: unmodified sigstore-python and @sigstore/verify accept what it signs.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from mint2m_verify.canonical import JsonValue, canonical
from mint2m_verify.finding import FindingError, found
from mint2m_verify.signers import bundle_form
from mint2m_verify.signers.bundle_form import STATEMENT_PAYLOAD, encode
from mint2m_verify.signers.private_authority import (
    CertificateAuthority,
    authority_certificate,
    check_identity,
    der_of,
    pem_of,
    timestamping_certificate,
)
from mint2m_verify.signers.private_log import (
    LeavesInMemory,
    LogVersion,
    SignedBy,
    TransparencyLog,
    envelope_body,
    key_details,
    message_body,
)
from mint2m_verify.signers.private_time import TimestampAuthority
from mint2m_verify.signers.signer import SignerKind
from mint2m_verify.signing import PrivateKey, PublicKey, public_key_der, public_key_pem
from mint2m_verify.sigstore_bundle import Artifact, parse_root, read_bundle, verify_bundle

TRUSTED_ROOT_TYPE = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"

#: Reserved by RFC 2606: no host of these names can ever exist, so nothing of such a root is mistaken for a service.
DOMAIN = "private-root.mint2m.invalid"

ORGANIZATION = "mint2m private root (not public)"

_LIFETIME = timedelta(days=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateRoot:
    """All secrets of one root. `start` is when its keys begin to be valid; its certificates end ten years later."""

    start: datetime
    authority: CertificateAuthority
    log: TransparencyLog
    timestamps: TimestampAuthority

    @classmethod
    def create(
        cls, *, start: datetime | None = None, log_key: Literal["p256", "ed25519"] = "p256", domain: str = DOMAIN
    ) -> PrivateRoot:
        """A fresh root in memory; without a `start` it is valid from an hour ago, which forgives clocks."""
        begun = (start or datetime.now(UTC) - timedelta(hours=1)).astimezone(UTC).replace(microsecond=0)
        ca_key, ct_key, tsa_root_key, tsa_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
        organization = ORGANIZATION
        tsa_root = authority_certificate(
            tsa_root_key, organization=organization, name=f"tsa-root.{domain}", start=begun, end=begun + _LIFETIME
        )
        tsa = timestamping_certificate(
            tsa_key.public_key(),
            organization=organization,
            name=f"tsa.{domain}",
            authority=tsa_root,
            authority_key=tsa_root_key,
        )
        return cls(
            start=begun,
            authority=CertificateAuthority(
                key=ca_key,
                certificate=authority_certificate(
                    ca_key, organization=organization, name=f"ca.{domain}", start=begun, end=begun + _LIFETIME
                ),
                ct_key=ct_key,
            ),
            log=TransparencyLog(
                origin=f"log.{domain}",
                key=ed25519.Ed25519PrivateKey.generate()
                if log_key == "ed25519"
                else ec.generate_private_key(ec.SECP256R1()),
                leaves=LeavesInMemory(),
            ),
            timestamps=TimestampAuthority(key=tsa_key, chain=(tsa, tsa_root)),
        )

    def trusted_root(self) -> bytes:
        """The public half, `trusted_root.json`: what whoever verifies needs, and names by its SHA-256."""
        domain = self.log.origin.removeprefix("log.")
        ct_key = self.authority.ct_key
        return canonical(
            {
                "mediaType": TRUSTED_ROOT_TYPE,
                "tlogs": [self._log(f"https://{self.log.origin}", self.log.key)],
                "certificateAuthorities": [self._chain(f"ca.{domain}", self.authority.certificate)],
                "ctlogs": [self._log(f"https://ct.{domain}", ct_key)],
                "timestampAuthorities": [self._chain(f"tsa.{domain}", *self.timestamps.chain)],
            }
        )

    def sign_blob(
        self,
        digest: bytes,
        identity: str,
        issuer: str,
        *,
        log: LogVersion = "v1",
        now: datetime | None = None,
        claims: Mapping[str, str] | None = None,
        timestamp: bool | None = None,
        lifetime: timedelta = timedelta(minutes=10),
    ) -> bytes:
        """A message-signature bundle over a SHA-256, by a certificate made for this one signature.

        Args:
            identity: who signs, a mail address or a URI; `issuer`: who would vouch for that, a URI.
            log: how the log entry is written; a v2 entry has no time of its own.
            now: the time of everything; the clock's where None.
            claims: Fulcio's claims by name, `source_repository_uri` and so on.
            timestamp: whether to add an RFC 3161 timestamp; None adds it where `log` needs it.
            lifetime: of the certificate.
        """
        time = _time(now)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.authority.issue(
            key.public_key(), identity=identity, issuer=issuer, now=time, claims=claims, lifetime=lifetime
        )
        signature = key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))
        signer = SignedBy(der=der_of(certificate), pem=pem_of(certificate), kind="certificate")
        material = self._witness(
            bundle_form.certificate_material(signer.der),
            message_body(digest, signature, signer, log),
            signature,
            log=log,
            time=time,
            timestamp=timestamp,
        )
        return bundle_form.message_bundle(material, bundle_form.message_signature(digest, signature))

    def sign_dsse(
        self,
        payload: bytes,
        identity: str,
        issuer: str,
        *,
        log: LogVersion = "v1",
        now: datetime | None = None,
        claims: Mapping[str, str] | None = None,
        timestamp: bool | None = None,
        lifetime: timedelta = timedelta(minutes=10),
        payload_type: str = STATEMENT_PAYLOAD,
    ) -> bytes:
        """A DSSE bundle over `payload`; arguments as of `sign_blob`."""
        time = _time(now)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.authority.issue(
            key.public_key(), identity=identity, issuer=issuer, now=time, claims=claims, lifetime=lifetime
        )
        signed = bundle_form.signed_bytes(payload, payload_type)
        signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
        envelope = bundle_form.envelope(payload, payload_type, signature)
        signer = SignedBy(der=der_of(certificate), pem=pem_of(certificate), kind="certificate")
        body = envelope_body(envelope, payload=payload, signed=signed, signature=signature, signer=signer, version=log)
        material = self._witness(
            bundle_form.certificate_material(signer.der), body, signature, log=log, time=time, timestamp=timestamp
        )
        return bundle_form.envelope_bundle(material, envelope)

    def witness(
        self,
        bundle: bytes,
        public_key: PublicKey,
        *,
        log: LogVersion = "v1",
        now: datetime | None = None,
        timestamp: bool | None = None,
    ) -> bytes:
        """A bundle that a managed P-256 key signed, of our own making, with a log entry (and a timestamp) added."""
        document = json.loads(bundle)
        material = {"publicKey": document["verificationMaterial"]["publicKey"]}
        raw = public_key_der(public_key)
        signer = SignedBy(der=raw, pem=public_key_pem(public_key), kind="public-key")
        decode = base64.b64decode
        if "messageSignature" in document:
            message = document["messageSignature"]
            signature = decode(message["signature"])
            body = message_body(decode(message["messageDigest"]["digest"]), signature, signer, log)
        else:
            envelope = document["dsseEnvelope"]
            payload, signature = decode(envelope["payload"]), decode(envelope["signatures"][0]["sig"])
            body = envelope_body(
                envelope,
                payload=payload,
                signed=bundle_form.signed_bytes(payload, envelope["payloadType"]),
                signature=signature,
                signer=signer,
                version=log,
            )
        document["verificationMaterial"] = self._witness(
            material, body, signature, log=log, time=_time(now), timestamp=timestamp
        )
        return canonical(document)

    def signer(self, identity: str, issuer: str, *, log: LogVersion = "v1") -> IdentitySigner:
        """Whoever holds this root, as a signer in the name of `identity`; raises `signer.identity-invalid`."""
        check_identity(identity, issuer)
        return IdentitySigner(root=self, identity=identity, issuer=issuer, log=log)

    def _witness(
        self,
        material: Mapping[str, JsonValue],
        body: dict[str, JsonValue],
        signature: bytes,
        *,
        log: LogVersion,
        time: datetime,
        timestamp: bool | None,
    ) -> dict[str, JsonValue]:
        """`material` with its log entry, and with a timestamp over the signature where one is wanted."""
        entry = self.log.append(body, integrated=time if log == "v1" else None)
        wanted = log == "v2" if timestamp is None else timestamp
        digest = hashlib.sha256(signature).digest()
        stamps = (self.timestamps.stamp(digest, now=time),) if wanted else ()
        return bundle_form.witnessed(material, entries=(entry,), timestamps=stamps)

    def _log(self, url: str, key: PrivateKey) -> JsonValue:
        raw = public_key_der(key.public_key())
        return {
            "baseUrl": url,
            "hashAlgorithm": "SHA2_256",
            "logId": {"keyId": encode(hashlib.sha256(raw).digest())},
            "publicKey": {"rawBytes": encode(raw), "keyDetails": key_details(key), "validFor": self._window()},
        }

    def _chain(self, host: str, *certificates: x509.Certificate) -> JsonValue:
        return {
            "subject": {"organization": ORGANIZATION, "commonName": host},
            "uri": f"https://{host}",
            "certChain": {"certificates": [{"rawBytes": encode(der_of(item))} for item in certificates]},
            "validFor": self._window(),
        }

    def _window(self) -> JsonValue:
        return {"start": self.start.strftime("%Y-%m-%dT%H:%M:%SZ")}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySigner:
    """Signs in the name of one identity, each time with a key and certificate of its own, and with a timestamp."""

    root: PrivateRoot
    identity: str
    issuer: str
    log: LogVersion
    kind: SignerKind = "certificate"
    public_key: PublicKey | None = None

    def describe(self) -> str:
        return f"{self.identity} (private root {self.root.log.origin.removeprefix('log.')})"

    def sign_statement(self, payload: bytes) -> bytes:
        raw = self.root.sign_dsse(payload, self.identity, self.issuer, log=self.log, timestamp=True)
        return self._verified(raw, artifact=None)

    def sign_digest(self, sha256: bytes) -> bytes:
        raw = self.root.sign_blob(sha256, self.identity, self.issuer, log=self.log, timestamp=True)
        return self._verified(raw, artifact=Artifact(name=None, sha256=sha256.hex()))

    def sign_artifact(self, raw: bytes) -> bytes:
        return self.sign_digest(hashlib.sha256(raw).digest())

    def _verified(self, raw: bytes, *, artifact: Artifact | None) -> bytes:
        """`raw` itself, once it verifies under the public half: a root that has expired signs nothing of use."""
        name = self.root.log.origin
        result = verify_bundle(
            read_bundle(raw, file=name), root=parse_root(self.root.trusted_root(), name=name), artifact=artifact
        )
        for fault in result.findings:
            raise FindingError(found("signer.result-invalid", file=name, actual=f"{fault.id}: {fault.message}"))
        return raw


def _time(now: datetime | None) -> datetime:
    return (now or datetime.now(UTC)).astimezone(UTC)
