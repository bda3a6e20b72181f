"""Bundles signed with a key that the auditor holds: no certificate, and nothing of sigstore-python.

The rule: the key is the auditor's, never the bundle's; the hint only says which of two things went wrong. A hint that
names none of the auditor's keys is a foreign signature, one that names a key whose signature fails is a forged one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from mint2m_verify.finding import Finding, found, merge_findings
from mint2m_verify.signing import PublicKey, key_id, public_key_der, public_key_pem, verify_bytes
from mint2m_verify.sigstore_bundle import log
from mint2m_verify.sigstore_bundle.content import Signed
from mint2m_verify.sigstore_bundle.entry import Witnessed, check_body, check_count
from mint2m_verify.sigstore_bundle.model import (
    Artifact,
    Envelope,
    KeySigner,
    Result,
    SignedBundle,
    SignedTime,
    Verified,
)
from mint2m_verify.sigstore_bundle.root import TrustRoot
from mint2m_verify.sigstore_bundle.signed_time import signed_times


def verify_key_bundle(
    bundle: SignedBundle,
    root: TrustRoot | None,
    keys: Sequence[PublicKey],
    artifact: Artifact | None,
    signed: Signed,
) -> Result:
    """Everything about a key's bundle."""
    named = [key for key in keys if bundle.hint in hints(key)]
    tried = list(keys) if bundle.hint in (None, "") else named
    key = next((key for key in tried if _holds(bundle, key, artifact, signed)), None)
    if key is None:
        fault = _no_key(bundle, keys, tried, artifact)
        first = signed.findings[:1] if signed.sha256 is not None else ()
        told = [fault.following(cause) for cause in first] or [fault]
        return Result(verified=None, findings=merge_findings([signed.findings, told]))
    findings = [*signed.findings]
    times: tuple[SignedTime, ...] = ()
    if root is not None and (bundle.entries or bundle.tokens):
        times, faults = _witnesses(bundle, root, key, signed)
        findings += faults
    if findings:
        return Result(verified=None, findings=merge_findings([findings]))
    return Result(
        verified=Verified(
            bundle=bundle,
            signer=KeySigner(spki_sha256=key_id(key)),
            times=times,
            logged=root is not None and bool(bundle.entries),
            timestamped=any(time.source == "timestamp-authority" for time in times),
            root_sha256=None if root is None or not (bundle.entries or bundle.tokens) else root.sha256,
            statement=signed.statement,
        ),
        findings=(),
    )


def hints(key: PublicKey) -> frozenset[str]:
    """The ways in which tools name a key, all of them by a SHA-256."""
    digest = hashlib.sha256(public_key_der(key)).digest()
    encoded = base64.b64encode(digest).decode("ascii")
    return frozenset(
        {
            encoded,  # cosign, mint2m
            digest.hex(),
            hashlib.sha256(public_key_pem(key)).hexdigest(),  # model_signing
            f"SHA256:{encoded}",
            f"SHA256:{encoded.rstrip('=')}",  # npm
        }
    )


def _holds(bundle: SignedBundle, key: PublicKey, artifact: Artifact | None, signed: Signed) -> bool:
    content = bundle.content
    if isinstance(content, Envelope):
        return verify_bytes(content.signed_bytes, content.signature, key)
    if isinstance(key, ed25519.Ed25519PublicKey):
        held = None if artifact is None else artifact.content
        return held is not None and verify_bytes(held, content.signature, key)
    if signed.sha256 is None:
        return False
    try:
        key.verify(content.signature, bytes.fromhex(signed.sha256), ec.ECDSA(Prehashed(hashes.SHA256())))
    except InvalidSignature:
        return False
    return True


def _no_key(
    bundle: SignedBundle, keys: Sequence[PublicKey], tried: Sequence[PublicKey], artifact: Artifact | None
) -> Finding:
    if not keys:
        return found("sigstore.key-needed", file=bundle.file, actual=bundle.hint)
    bytes_needed = not isinstance(bundle.content, Envelope) and (artifact is None or artifact.content is None)
    if bytes_needed and any(isinstance(key, ed25519.Ed25519PublicKey) for key in tried):
        return found("sigstore.artifact-needed", file=bundle.file, expected="the file itself: Ed25519 signs its bytes")
    mine = " or ".join(f"key {key_id(key)}" for key in keys)[:300]
    if bundle.hint not in (None, "") and not tried:
        return found("signature.key-mismatch", file=bundle.file, expected=mine, actual=f"key {bundle.hint}"[:200])
    return found("signature.invalid", file=bundle.file, expected=f"a signature by {mine}")


def _witnesses(
    bundle: SignedBundle, root: TrustRoot, key: PublicKey, signed: Signed
) -> tuple[tuple[SignedTime, ...], list[Finding]]:
    """What logs and timestamp authorities of the root say of a key's signature."""
    times, unverified = signed_times(bundle, root)
    faults = [*unverified, *check_count(bundle)]
    for entry in bundle.entries[:1]:
        faults += log.check_form(entry, root, file=bundle.file)
        faults += log.check_signatures(entry, root, file=bundle.file)
        faults += log.check_window(entry, root, times, file=bundle.file)
    details = "PKIX_ED25519" if isinstance(key, ed25519.Ed25519PublicKey) else "PKIX_ECDSA_P256_SHA_256"
    signer = Witnessed(der=public_key_der(key), is_certificate=False, details=details, digest="sha256")
    faults += check_body(bundle, signer, signed.sha256)
    return times, faults
