"""Sigstore bundles, verified offline: certificates and keys, logs and timestamps, against a trusted root.

The rule: `read_bundle` gives claims, `verify_bundle` gives facts, and nothing else makes a `Verified`. Importing this
package loads neither sigstore nor X.509: they are needed only where there is a certificate or a timestamp.
"""

from __future__ import annotations

from mint2m_verify.sigstore_bundle.claims import CLAIM_NAMES
from mint2m_verify.sigstore_bundle.identity import check_identity
from mint2m_verify.sigstore_bundle.model import (
    Artifact,
    CertificateSigner,
    Claim,
    Envelope,
    KeySigner,
    MessageSignature,
    Result,
    SignedBundle,
    SignedTime,
    Statement,
    Verified,
)
from mint2m_verify.sigstore_bundle.reading import read_bundle, read_bundles
from mint2m_verify.sigstore_bundle.root import TrustRoot, load_root, packaged_root, parse_root
from mint2m_verify.sigstore_bundle.verify import verify_bundle

__all__ = [
    "CLAIM_NAMES",
    "Artifact",
    "CertificateSigner",
    "Claim",
    "Envelope",
    "KeySigner",
    "MessageSignature",
    "Result",
    "SignedBundle",
    "SignedTime",
    "Statement",
    "TrustRoot",
    "Verified",
    "check_identity",
    "load_root",
    "packaged_root",
    "parse_root",
    "read_bundle",
    "read_bundles",
    "verify_bundle",
]
