"""What a signing certificate says: the signer, the claims, the key, and when the certificate log took note of it.

The rule: a certificate that could be read two ways is refused. Two names, or two issuers that differ, would let a
policy match one while a person reads the other. Profile: Sigstore's certificate profile over RFC 5280. Imports
cryptography's X.509 and is itself imported only where there is a certificate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.certificate_transparency import SignedCertificateTimestamp
from cryptography.x509.oid import ExtendedKeyUsageOID

from mint2m_verify.canonical import sha256_hex
from mint2m_verify.finding import FindingError, found
from mint2m_verify.sigstore_bundle.claims import BARE_CLAIMS, DER_CLAIMS, FULCIO_ARC
from mint2m_verify.sigstore_bundle.entry import Witnessed
from mint2m_verify.sigstore_bundle.model import CertificateSigner, Claim, SignedBundle

_ISSUER_BARE = x509.ObjectIdentifier(f"{FULCIO_ARC}.1")
_ISSUER = x509.ObjectIdentifier(f"{FULCIO_ARC}.8")
_USER_NAME = x509.ObjectIdentifier(f"{FULCIO_ARC}.7")
_CLAIMS: Mapping[x509.ObjectIdentifier, str] = {
    x509.ObjectIdentifier(f"{FULCIO_ARC}.{arc}"): name for name, arc in {**BARE_CLAIMS, **DER_CLAIMS}.items()
}

#: How a key on each curve signs, by the format's name and hashlib's.
_DETAILS: Mapping[str, tuple[str, str]] = {
    "secp256r1": ("PKIX_ECDSA_P256_SHA_256", "sha256"),
    "secp384r1": ("PKIX_ECDSA_P384_SHA_384", "sha384"),
    "secp521r1": ("PKIX_ECDSA_P521_SHA_512", "sha512"),
}

#: A certificate's extensions; X.509 allows each once, and cryptography refuses a second.
_Extensions: TypeAlias = Mapping[x509.ObjectIdentifier, x509.ExtensionType]

#: What cryptography raises for bytes that are no certificate or no extension of it.
UNREADABLE = (
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read of a certificate, none of it verified.

    `lifetime` is its first and last moment; `noted` is when the certificate log `log_id` saw it.
    """

    signer: CertificateSigner
    key: ec.EllipticCurvePublicKey
    lifetime: tuple[datetime, datetime]
    witnessed: Witnessed
    noted: datetime
    log_id: bytes


def load(bundle: SignedBundle) -> x509.Certificate:
    """The signing certificate; raises `FindingError` (`sigstore.certificate-invalid`)."""
    try:
        return x509.load_der_x509_certificate(bundle.certificate or b"")
    except UNREADABLE as fault:
        raise _invalid(bundle, str(fault)) from fault


def read(certificate: x509.Certificate, bundle: SignedBundle) -> Facts:
    """Signer, key and log note of a certificate of Sigstore's profile.

    Raises:
        FindingError: `sigstore.certificate-invalid`, `-ambiguous` or `-unsupported`, `sigstore.sct-missing`.
    """
    try:
        return _facts(certificate, bundle)
    except UNREADABLE as fault:  # cryptography parses each part where it is asked for, so any of them can raise
        raise _invalid(bundle, str(fault)) from fault


def _facts(certificate: x509.Certificate, bundle: SignedBundle) -> Facts:
    extensions = {extension.oid: extension.value for extension in certificate.extensions}
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _DETAILS:
        raise FindingError(
            found(
                "sigstore.certificate-unsupported",
                file=bundle.file,
                expected="an ECDSA key on P-256, P-384 or P-521",
                actual=type(key).__name__,
            )
        )
    details, digest = _DETAILS[key.curve.name]
    _check_usage(extensions, bundle)
    sct = _sct(extensions, bundle)
    return Facts(
        signer=CertificateSigner(
            issuer=_issuer(extensions, bundle),
            san=_name(extensions, bundle),
            claims=_claims(extensions, bundle),
            certificate_sha256=sha256_hex(bundle.certificate or b""),
        ),
        key=key,
        lifetime=(certificate.not_valid_before_utc, certificate.not_valid_after_utc),
        witnessed=Witnessed(
            der=bundle.certificate or b"",
            is_certificate=True,
            details=details,
            digest=digest,
        ),
        noted=sct.timestamp.replace(tzinfo=UTC),
        log_id=sct.log_id,
    )


def _check_usage(extensions: _Extensions, bundle: SignedBundle) -> None:
    usage, purposes = extensions.get(x509.KeyUsage.oid), extensions.get(x509.ExtendedKeyUsage.oid)
    signs = isinstance(usage, x509.KeyUsage) and usage.digital_signature
    if not signs or not isinstance(purposes, x509.ExtendedKeyUsage) or ExtendedKeyUsageOID.CODE_SIGNING not in purposes:
        raise _invalid(bundle, "not a certificate for signing code")
    basic = extensions.get(x509.BasicConstraints.oid)
    if isinstance(basic, x509.BasicConstraints) and basic.ca:
        raise _invalid(bundle, "a certificate authority's own certificate")


def _sct(extensions: _Extensions, bundle: SignedBundle) -> SignedCertificateTimestamp:
    listed = extensions.get(x509.PrecertificateSignedCertificateTimestamps.oid)
    notes = list(listed) if isinstance(listed, x509.PrecertificateSignedCertificateTimestamps) else []
    if len(notes) != 1:
        raise FindingError(
            found(
                "sigstore.sct-missing",
                file=bundle.file,
                expected="one signed certificate timestamp",
                actual=str(len(notes)),
            )
        )
    note: SignedCertificateTimestamp = notes[0]
    return note


def _name(extensions: _Extensions, bundle: SignedBundle) -> str:
    """The one subject alternative name: a mail address, a URI, or Fulcio's user name."""
    listed = extensions.get(x509.SubjectAlternativeName.oid)
    names = list(listed) if isinstance(listed, x509.SubjectAlternativeName) else []
    if len(names) > 1:
        raise FindingError(
            found(
                "sigstore.certificate-ambiguous",
                file=bundle.file,
                expected="one subject alternative name",
                actual=str(len(names)),
            )
        )
    name = names[0] if names else None
    if isinstance(name, x509.OtherName) and name.type_id == _USER_NAME:
        return _utf8_string(name.value, bundle)
    if isinstance(name, x509.RFC822Name | x509.UniformResourceIdentifier) and name.value:
        return name.value
    raise _invalid(bundle, "no subject alternative name that is an identity")


def _issuer(extensions: _Extensions, bundle: SignedBundle) -> str:
    """The identity provider; where both of its extensions are there they must agree."""
    texts = []
    for oid, read in ((_ISSUER, _utf8_string), (_ISSUER_BARE, _bare_text)):
        value = extensions.get(oid)
        if isinstance(value, x509.UnrecognizedExtension):
            texts.append(read(value.value, bundle))
    if not texts:
        raise _invalid(bundle, "no identity provider")
    if len(set(texts)) != 1:
        raise FindingError(
            found("sigstore.certificate-ambiguous", file=bundle.file, expected="one issuer", actual=" and ".join(texts))
        )
    return texts[0]


def _claims(extensions: _Extensions, bundle: SignedBundle) -> tuple[Claim, ...]:
    claims = []
    for oid, value in extensions.items():
        name = _CLAIMS.get(oid)
        if name is not None and isinstance(value, x509.UnrecognizedExtension):
            text = _bare_text(value.value, bundle) if name in BARE_CLAIMS else _utf8_string(value.value, bundle)
            claims.append(Claim(name=name, value=text))
    return tuple(sorted(claims, key=lambda claim: claim.name))


def _utf8_string(raw: bytes, bundle: SignedBundle) -> str:
    """A DER UTF8String, whole and in its shortest length form."""
    length, start = (raw[1], 2) if len(raw) >= 2 else (0, 0)
    if length == 0x81 and len(raw) > 3:
        length, start = raw[2], 3
        if length < 0x80:
            raise _invalid(bundle, "an extension whose length is not in DER")
    elif length == 0x82 and len(raw) > 4:
        length, start = int.from_bytes(raw[2:4]), 4
        if length < 0x100:
            raise _invalid(bundle, "an extension whose length is not in DER")
    if raw[:1] != b"\x0c" or start + length != len(raw):
        raise _invalid(bundle, "an extension that is no UTF8String")
    return _bare_text(raw[start:], bundle)


def _bare_text(raw: bytes, bundle: SignedBundle) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise _invalid(bundle, "an extension that is not UTF-8") from fault


def _invalid(bundle: SignedBundle, words: str) -> FindingError:
    return FindingError(found("sigstore.certificate-invalid", file=bundle.file, actual=words[:200]))
