"""Whether the signer that a certificate names is the one that was asked for.

The rule: an identity and the provider that vouches for it count only together, since each provider hands out its own
names. Both match exactly; an identity may end in one `*`, which stands for any rest. There are no regular expressions:
what people write as one often matches more than they meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from mint2m_verify.finding import Finding, found
from mint2m_verify.sigstore_bundle.model import CertificateSigner


def matches(pattern: str, value: str) -> bool:
    """Whether `value` is `pattern`, or begins with it up to a trailing `*`; a bare `*` matches nothing."""
    if pattern.endswith("*"):
        return len(pattern) > 1 and value.startswith(pattern[:-1])
    return pattern != "" and value == pattern


def check_identity(signer: CertificateSigner, *, identity: str, issuer: str, file: str) -> Iterator[Finding]:
    """Where the certificate's signer is another than `identity`, vouched for by `issuer`."""
    if not matches(identity, signer.san):
        yield found("sigstore.identity-mismatch", file=file, expected=identity, actual=signer.san)
    if issuer == "" or signer.issuer != issuer:
        yield found("sigstore.issuer-mismatch", file=file, expected=issuer, actual=signer.issuer)
