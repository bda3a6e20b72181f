"""RFC 3161 timestamps over a bundle's signature, by the timestamp authorities of the trusted root.

The rule: every timestamp that a bundle carries must verify. A token that no authority of the root signed is not passed
over for another that verifies: whoever put it there wanted it read by somebody. Windows are closed at both ends, where
sigstore-python leaves the last moment out. Imported only where there is a token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache

from cryptography import x509
from rfc3161_client import TimeStampResponse, VerifierBuilder, decode_timestamp_response
from rfc3161_client import VerificationError as TokenRefused

from mint2m_verify.finding import Finding, found
from mint2m_verify.sigstore_bundle.model import SignedTime
from mint2m_verify.sigstore_bundle.root import Authority, TrustRoot

#: Hash functions a token may use, by object identifier.
_HASHES: Mapping[str, str] = {
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}


def verified_times(
    tokens: tuple[bytes, ...], signature: bytes, root: TrustRoot, *, file: str
) -> Iterator[Finding | SignedTime]:
    """For each token the time that it proves, or why it proves none."""
    where = "/verificationMaterial/timestampVerificationData/rfc3161Timestamps"
    for n, token in enumerate(tokens):
        pointer = f"{where}/{n}/signedTimestamp"
        if token in tokens[:n]:
            yield found("sigstore.timestamp-repeated", file=file, pointer=pointer)
            continue
        yield _judge(token, signature, root, file=file, pointer=pointer)


def _judge(token: bytes, signature: bytes, root: TrustRoot, *, file: str, pointer: str) -> Finding | SignedTime:
    response = _decoded(token)
    if response is None:
        return found("sigstore.timestamp-malformed", file=file, pointer=pointer, expected="a TimeStampResp in DER")
    info = response.tst_info
    time = info.gen_time.replace(tzinfo=UTC) if info.gen_time.tzinfo is None else info.gen_time.astimezone(UTC)
    shown = time.isoformat().replace("+00:00", "Z")
    name = _HASHES.get(info.message_imprint.hash_algorithm.dotted_string)
    if name is None or info.message_imprint.message != hashlib.new(name, signature).digest():
        return found(
            "sigstore.timestamp-mismatch", file=file, pointer=pointer, expected="a timestamp over this signature"
        )
    if not root.timestamp_authorities:
        return found(
            "sigstore.timestamp-untrusted",
            file=file,
            pointer=pointer,
            expected="a timestamp authority in the trusted root",
            actual="none",
        )
    signing = [authority for authority in root.timestamp_authorities if _signed_by(response, authority, time)]
    if not signing:
        return _why_not(response, root, time, file=file, pointer=pointer)
    if not any(authority.window.holds(time) for authority in signing):
        windows = " or ".join(f"{authority.name} within {authority.window}" for authority in signing)
        return found("sigstore.timestamp-outside-window", file=file, pointer=pointer, expected=windows, actual=shown)
    return SignedTime(time=time, source="timestamp-authority")


def _why_not(response: TimeStampResponse, root: TrustRoot, time: datetime, *, file: str, pointer: str) -> Finding:
    """A token of an authority whose certificates had expired, or of nobody that the root names."""
    for authority in root.timestamp_authorities:
        chain = _chain(authority)
        named = _names(response, chain[0])
        expired = [c for c in chain if not c.not_valid_before_utc <= time <= c.not_valid_after_utc]
        if named and expired:
            return found(
                "sigstore.timestamp-certificate-expired",
                file=file,
                pointer=pointer,
                expected=f"not after {expired[0].not_valid_after_utc.isoformat().replace('+00:00', 'Z')}",
                actual=time.isoformat().replace("+00:00", "Z"),
            )
    return found(
        "sigstore.timestamp-untrusted",
        file=file,
        pointer=pointer,
        expected=" or ".join(authority.name for authority in root.timestamp_authorities),
        actual="another signer, or a changed token",
    )


def _decoded(token: bytes) -> TimeStampResponse | None:
    """The response in `token`, where it is one that was granted and holds a token."""
    try:
        response = decode_timestamp_response(token)
        whole = response.status == 0 and response.as_bytes() == token
        return response if whole and response.tst_info is not None else None
    except (ValueError, TypeError, OverflowError):
        return None


def _names(response: TimeStampResponse, certificate: x509.Certificate) -> bool:
    """Whether the token says that this certificate's key signed it."""
    infos = list(response.signed_data.signer_infos)
    return len(infos) == 1 and (infos[0].issuer, infos[0].serial_number) == (
        certificate.issuer,
        certificate.serial_number,
    )


def _signed_by(response: TimeStampResponse, authority: Authority, time: datetime) -> bool:
    chain = _chain(authority)
    if len(chain) < 2 or not _names(response, chain[0]):
        return False
    builder = VerifierBuilder(tsa_certificate=chain[0], intermediates=list(chain[1:-1]), roots=[chain[-1]])
    imprint = response.tst_info.message_imprint
    try:
        return builder.build().verify(response, imprint.message)
    except (TokenRefused, ValueError, TypeError):
        return False


@lru_cache(maxsize=64)
def _chain(authority: Authority) -> tuple[x509.Certificate, ...]:
    return tuple(x509.load_der_x509_certificate(raw) for raw in authority.chain)
