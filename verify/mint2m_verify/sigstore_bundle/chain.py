"""Certificates of a trusted root: readable, and each issued by the next.

The rule: a chain whose links do not hold is a damaged file, and is refused before anything is judged by it. That the
top of a chain signed itself proves nothing about it (the file's digest does), but a top that says so and did not is
damaged as well. Imports X.509, and is itself imported only where a root is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from mint2m_verify.sigstore_bundle.certificate import UNREADABLE


def chain_faults(chain: tuple[bytes, ...]) -> Iterator[tuple[int, str]]:
    """(position, what is wrong) for the first certificate that cannot be read or was not issued by the next."""
    certificates = []
    for n, raw in enumerate(chain):
        try:
            certificate = x509.load_der_x509_certificate(raw)
            # Parsed where they are asked for: here, so that no later step meets what cannot be read.
            _ = (certificate.subject, certificate.issuer, certificate.extensions, certificate.public_key())
            _ = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
        except UNREADABLE as fault:
            yield n, str(fault)
            return
        certificates.append(certificate)
    for n, certificate in enumerate(certificates):
        top = n == len(certificates) - 1
        if top and certificate.issuer != certificate.subject:
            return
        try:
            certificate.verify_directly_issued_by(certificate if top else certificates[n + 1])
        except (*UNREADABLE, InvalidSignature) as fault:
            yield n, str(fault) or "not signed by it"
            return
