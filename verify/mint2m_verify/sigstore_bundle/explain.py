"""Why a certificate bundle does not hold: every step again, one reason each.

The rule: reasons are found by doing, never by reading the words of a library's exception. This runs only where a bundle
has been refused already, so it accepts nothing and may cost what it likes. Steps are in the order of the argument:
chain, certificate log, transparency log, signature, entry.
"""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from mint2m_verify.finding import Finding, found
from mint2m_verify.sigstore_bundle import library, log
from mint2m_verify.sigstore_bundle.boundary import Refusal, guarded
from mint2m_verify.sigstore_bundle.certificate import Facts
from mint2m_verify.sigstore_bundle.entry import check_body
from mint2m_verify.sigstore_bundle.model import Content, Envelope, SignedBundle, SignedTime
from mint2m_verify.sigstore_bundle.root import TrustRoot


def reasons(
    bundle: SignedBundle,
    certificate: x509.Certificate,
    facts: Facts,
    root: TrustRoot,
    times: tuple[SignedTime, ...],
    artifact_sha256: str | None,
) -> Iterator[Finding]:
    """Everything cryptographic that is wrong with a certificate bundle."""
    yield from _chain(bundle, certificate, facts, root, times)
    for entry in bundle.entries[:1]:
        yield from log.check_signatures(entry, root, file=bundle.file)
    signed = signature_holds(facts.key, bundle.content, artifact_sha256)
    if not signed:
        yield signature_finding(bundle)
    yield from check_body(bundle, facts.witnessed, artifact_sha256)


def signature_holds(key: ec.EllipticCurvePublicKey, content: Content, artifact_sha256: str | None) -> bool:
    """Whether the content's signature is the certificate key's, hashed with SHA-256 as Sigstore's verifiers do."""
    try:
        if isinstance(content, Envelope):
            key.verify(content.signature, content.signed_bytes, ec.ECDSA(hashes.SHA256()))
        else:
            digest = bytes.fromhex(artifact_sha256 or "")
            key.verify(content.signature, digest, ec.ECDSA(Prehashed(hashes.SHA256())))
    except (InvalidSignature, ValueError):
        return False
    return True


def signature_finding(bundle: SignedBundle) -> Finding:
    envelope = isinstance(bundle.content, Envelope)
    return found(
        "sigstore.signature-invalid",
        file=bundle.file,
        pointer="/dsseEnvelope/signatures/0/sig" if envelope else "/messageSignature/signature",
        expected="a signature by the certificate's key over " + ("this payload" if envelope else "this artifact"),
    )


def _chain(
    bundle: SignedBundle, certificate: x509.Certificate, facts: Facts, root: TrustRoot, times: tuple[SignedTime, ...]
) -> Iterator[Finding]:
    first, last = facts.lifetime
    for moment in times:
        if not first <= moment.time <= last:
            yield found(
                "sigstore.certificate-expired",
                file=bundle.file,
                expected=f"signed within {_shown(first)}..{_shown(last)}",
                actual=f"{_shown(moment.time)}, by {moment.source}",
            )
            return
    everybody = tuple(range(len(root.authorities)))
    for moment in times:
        issuers = library.chain(root, everybody, certificate, moment.time)
        if isinstance(issuers, Refusal):
            yield found(
                "sigstore.chain-untrusted",
                file=bundle.file,
                expected=" or ".join(sorted({authority.name for authority in root.authorities}))[:200],
                actual=_issuer(certificate),
            )
            return
        holding = tuple(n for n in everybody if root.authorities[n].window.holds(moment.time))
        if isinstance(library.chain(root, holding, certificate, moment.time) if holding else None, Refusal):
            yield found(
                "sigstore.authority-outside-window",
                file=bundle.file,
                expected="an authority of the trusted root within its window",
                actual=_shown(moment.time),
            )
            return
        if library.sct_refusal(root, certificate, issuers) is not None:
            yield found("sigstore.sct-invalid", file=bundle.file, expected="a note signed by a log of the trusted root")
            return


def _issuer(certificate: x509.Certificate) -> str | None:
    """Who issued it, for people; None where that cannot be read."""
    words = guarded(lambda: certificate.issuer.rfc4514_string())
    return None if isinstance(words, Refusal) else words[:200]


def _shown(time: object) -> str:
    return str(time).replace(" ", "T").replace("+00:00", "Z")
