"""The certificate authority of a private root: short-lived certificates as Fulcio issues them, with their SCT.

The rule: a certificate says who signed in the subject alternative name and in the extensions below, and is valid for
minutes; when it was used is proven by the log or the timestamp authority, never by the certificate. Sources: RFC 5280,
RFC 6962 (section 3.2: an SCT is over the certificate without its SCT list), Fulcio's `docs/oid-info.md`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mint2m_verify.finding import FindingError, found
from mint2m_verify.signers import der
from mint2m_verify.signing import PublicKey, public_key_der

_FULCIO = "1.3.6.1.4.1.57264.1"
_SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")

#: Fulcio's claims that are UTF8String extensions, by the last arc of their object identifier.
CLAIMS: Mapping[str, int] = {
    "build_signer_uri": 9,
    "build_signer_digest": 10,
    "runner_environment": 11,
    "source_repository_uri": 12,
    "source_repository_digest": 13,
    "source_repository_ref": 14,
    "source_repository_identifier": 15,
    "source_repository_owner_uri": 16,
    "source_repository_owner_identifier": 17,
    "build_config_uri": 18,
    "build_config_digest": 19,
    "build_trigger": 20,
    "run_invocation_uri": 21,
    "source_repository_visibility": 22,
}

_ISSUER_RAW, _ISSUER = 1, 8  # the first holds bare text (deprecated, still read), the second a UTF8String

_SHA256 = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateAuthority:
    """An authority's key and certificate, and the key of the certificate log that notes what it issues."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    ct_key: ec.EllipticCurvePrivateKey

    def issue(
        self,
        public_key: PublicKey,
        *,
        identity: str,
        issuer: str,
        now: datetime,
        claims: Mapping[str, str] | None = None,
        lifetime: timedelta = timedelta(minutes=10),
    ) -> x509.Certificate:
        """A certificate for `public_key`, valid from `now`.

        Args:
            identity: who signs: a mail address, or a URI.
            issuer: the identity provider that would vouch for that, a URI.
            claims: further claims by their names in `CLAIMS`.

        Raises:
            FindingError: `signer.identity-invalid` for an identity or a claim that a certificate cannot carry.
        """
        now = now.replace(microsecond=0)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + lifetime)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName([_name(identity)]), critical=True)
            .add_extension(_claim(_ISSUER_RAW, issuer.encode()), critical=False)
            .add_extension(_claim(_ISSUER, der.utf8(issuer)), critical=False)
        )
        for name, value in (claims or {}).items():
            if name not in CLAIMS:
                raise FindingError(found("signer.identity-invalid", expected=", ".join(CLAIMS), actual=name))
            builder = builder.add_extension(_claim(CLAIMS[name], der.utf8(value)), critical=False)
        unlogged = builder.sign(self.key, hashes.SHA256()).tbs_certificate_bytes
        scts = x509.UnrecognizedExtension(_SCT_LIST, self._sct_list(unlogged, now))
        return builder.add_extension(scts, critical=False).sign(self.key, hashes.SHA256())

    def _sct_list(self, unlogged: bytes, now: datetime) -> bytes:
        """The extension's value: a list of one signed certificate timestamp, over the certificate without it."""
        milliseconds = int(now.timestamp() * 1000)
        entry = struct.pack("!BBQH", 0, 0, milliseconds, 1)  # v1, certificate_timestamp, precert_entry
        entry += hashlib.sha256(public_key_der(self.key.public_key())).digest()
        entry += len(unlogged).to_bytes(3, "big") + unlogged + b"\x00\x00"  # no extensions
        signature = self.ct_key.sign(entry, _SHA256)
        log_id = hashlib.sha256(public_key_der(self.ct_key.public_key())).digest()
        sct = struct.pack("!B32sQH", 0, log_id, milliseconds, 0)
        sct += b"\x04\x03" + struct.pack("!H", len(signature)) + signature  # sha256, ecdsa
        listed = struct.pack("!H", len(sct)) + sct
        return der.octets(struct.pack("!H", len(listed)) + listed)


def authority_certificate(
    key: ec.EllipticCurvePrivateKey, *, organization: str, name: str, start: datetime, end: datetime
) -> x509.Certificate:
    """A self-signed certificate that may issue others."""
    subject = _subject(organization, name)
    return (
        _certificate(key.public_key(), subject, issuer=subject, start=start, end=end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def timestamping_certificate(
    public_key: ec.EllipticCurvePublicKey,
    *,
    organization: str,
    name: str,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """A certificate that may sign timestamps and nothing else, valid as long as its authority."""
    return (
        _certificate(
            public_key,
            _subject(organization, name),
            issuer=authority.subject,
            start=authority.not_valid_before_utc,
            end=authority.not_valid_after_utc,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), critical=True)
        .sign(authority_key, hashes.SHA256())
    )


def check_identity(identity: str, issuer: str) -> None:
    """Whether a certificate can carry these two; raises `FindingError` (`signer.identity-invalid`) where not."""
    _name(identity)
    if "://" not in issuer or not issuer.isascii() or not issuer.isprintable():
        raise FindingError(found("signer.identity-invalid", expected="an issuer like https://…", actual=issuer))


def der_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _certificate(
    public_key: ec.EllipticCurvePublicKey, subject: x509.Name, *, issuer: x509.Name, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _subject(organization: str, name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _name(identity: str) -> x509.GeneralName:
    try:
        if "@" in identity and "://" not in identity:
            return x509.RFC822Name(identity)
        if "://" in identity:
            return x509.UniformResourceIdentifier(identity)
    except ValueError as fault:  # not ASCII, or no mail address
        raise FindingError(found("signer.identity-invalid", actual=identity)) from fault
    raise FindingError(found("signer.identity-invalid", actual=identity))


def _claim(arc: int, value: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier(f"{_FULCIO}.{arc}"), value)


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )
