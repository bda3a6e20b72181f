"""RFC 3161 timestamps over a bundle's signature, by the timestamp authorities of the trusted root.

The rule: every timestamp that a bundle carries must verify. A token that no authority of the root signed is not passed
over for another that verifies: whoever put it there wanted it read by somebody. Windows are closed at both ends, where
sigstore-python leaves the last moment out. What a token carries outside its signed attributes (the name of its
signature algorithm, certificates, unsigned attributes) is nobody's word, and nothing is read from it. Imported only
where there is a token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from cryptography import x509
from rfc3161_client import TimeStampResponse, VerifierBuilder, decode_timestamp_response

from mint2m_verify.finding import Finding, found
from mint2m_verify.sigstore_bundle.boundary import Refusal, guarded
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
    read = _read(token)
    if read is None:
        return found("sigstore.timestamp-malformed", file=file, pointer=pointer, expected="a TimeStampResp in DER")
    if read.imprint != hashlib.new(read.algorithm, signature).digest():
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
    signing = [authority for authority in root.timestamp_authorities if _signed_by(read, authority)]
    if not signing:
        return _why_not(read, root, file=file, pointer=pointer)
    if not any(authority.window.holds(read.time) for authority in signing):
        windows = " or ".join(f"{authority.name} within {authority.window}" for authority in signing)
        return found(
            "sigstore.timestamp-outside-window", file=file, pointer=pointer, expected=windows, actual=_shown(read.time)
        )
    return SignedTime(time=read.time, source="timestamp-authority")


def _why_not(read: _Token, root: TrustRoot, *, file: str, pointer: str) -> Finding:
    """A token of an authority whose certificates had expired, or of nobody that the root names."""
    for authority in root.timestamp_authorities:
        chain = _chain(authority)
        expired = [c for c in chain if not c.not_valid_before_utc <= read.time <= c.not_valid_after_utc]
        if read.signer == (chain[0].issuer, chain[0].serial_number) and expired:
            return found(
                "sigstore.timestamp-certificate-expired",
                file=file,
                pointer=pointer,
                expected=f"not after {_shown(expired[0].not_valid_after_utc)}",
                actual=_shown(read.time),
            )
    return found(
        "sigstore.timestamp-untrusted",
        file=file,
        pointer=pointer,
        expected=" or ".join(authority.name for authority in root.timestamp_authorities),
        actual="another signer, or a changed token",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """What a granted response says. `imprint` is the digest that it is over, `signer` the certificate that it names."""

    response: TimeStampResponse
    time: datetime
    algorithm: str
    imprint: bytes
    signer: tuple[x509.Name, int]


def _read(token: bytes) -> _Token | None:
    """The response in `token`, where it was granted and everything in it can be read; None otherwise."""
    read = guarded(lambda: _parts(token))
    return None if isinstance(read, Refusal) else read


def _parts(token: bytes) -> _Token | None:
    response = decode_timestamp_response(token)
    info, data = response.tst_info, response.signed_data
    signers = list(data.signer_infos)
    if response.status != 0 or response.as_bytes() != token or len(signers) != 1:
        return None
    # Nobody signs the version numbers, so they are held to the ones that tokens with certificates' names have.
    if (data.version, signers[0].version) != (3, 1):
        return None
    time = info.gen_time
    return _Token(
        response=response,
        time=time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC),
        algorithm=_HASHES[info.message_imprint.hash_algorithm.dotted_string],
        imprint=info.message_imprint.message,
        signer=(signers[0].issuer, signers[0].serial_number),
    )


def _signed_by(read: _Token, authority: Authority) -> bool:
    chain = _chain(authority)
    if len(chain) < 2 or read.signer != (chain[0].issuer, chain[0].serial_number):
        return False
    builder = VerifierBuilder(tsa_certificate=chain[0], intermediates=list(chain[1:-1]), roots=[chain[-1]])
    return guarded(lambda: builder.build().verify(read.response, read.imprint)) is True


def _shown(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


@lru_cache(maxsize=64)
def _chain(authority: Authority) -> tuple[x509.Certificate, ...]:
    return tuple(x509.load_der_x509_certificate(raw) for raw in authority.chain)
