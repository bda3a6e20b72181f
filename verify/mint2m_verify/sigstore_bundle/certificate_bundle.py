"""Bundles signed under a certificate: what sigstore-python decides, and what it leaves open.

The rule: acceptance needs both, the library's yes and no finding of ours. Ours come first, since they are cheap and the
library must be told which times and authorities count; where either side refuses, every step is done again for its
reason. A certificate is valid for minutes, so it needs a time that somebody else signed: an entry whose log promised
one, or a timestamp. Imported only where there is a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509
from sigstore.models import Bundle

from mint2m_verify.finding import Finding, FindingError, found, merge_findings
from mint2m_verify.sigstore_bundle import certificate, library, log
from mint2m_verify.sigstore_bundle.boundary import Refusal
from mint2m_verify.sigstore_bundle.content import Signed
from mint2m_verify.sigstore_bundle.entry import check_body, check_count
from mint2m_verify.sigstore_bundle.explain import reasons, signature_finding, signature_holds
from mint2m_verify.sigstore_bundle.model import Result, SignedBundle, SignedTime, Verified
from mint2m_verify.sigstore_bundle.root import TrustRoot
from mint2m_verify.sigstore_bundle.signed_time import signed_times


def verify_certificate_bundle(bundle: SignedBundle, root: TrustRoot, signed: Signed) -> Result:
    """Everything about a certificate bundle."""
    unusable = library.root_refusal(root)
    if unusable is not None:
        return Result(verified=None, findings=(found("sigstore.root-invalid", file=root.path, actual=unusable.words),))
    findings = [*_check_chain(bundle, root), *_check_entries(bundle, root)]
    read = library.parsed(bundle)
    try:
        leaf = read.signing_certificate if isinstance(read, Bundle) else certificate.load(bundle)
        facts = certificate.read(leaf, bundle)
    except FindingError as fault:
        return Result(verified=None, findings=merge_findings([findings, [fault.finding], signed.findings]))
    times, faults = signed_times(bundle, root)
    if not times and not faults:
        faults = (_no_time(bundle),)
    authorities = tuple(
        n for n, authority in enumerate(root.authorities) if all(authority.window.holds(t.time) for t in times)
    )
    findings += [*faults, *_check_windows(bundle, root, facts, times)]
    if not findings and not signed.findings:
        if isinstance(read, Refusal):
            refused: Refusal | None = read
        else:
            refused = library.refusal(
                bundle, read, root, authorities=authorities, times=times, artifact_sha256=signed.sha256
            )
        if refused is None and bundle.entries[0].kind == "intoto":
            findings += _check_signature(bundle, facts, signed)
        if refused is None and not findings:
            return Result(
                verified=Verified(
                    bundle=bundle,
                    signer=facts.signer,
                    times=times,
                    logged=True,
                    timestamped=any(time.source == "timestamp-authority" for time in times),
                    root_sha256=root.sha256,
                    statement=signed.statement,
                ),
                findings=(),
            )
    else:
        refused = None
    steps = reasons(bundle, leaf, facts, root, times, signed.sha256)
    if signed.sha256 is not None and signed.findings:
        # Another file than the signed one: that its signature does not fit is what follows.
        steps = (step.following(signed.findings[0]) for step in steps)
    told = merge_findings([findings, signed.findings, steps])
    if not told:
        words = refused.words if refused is not None else "no reason"
        told = (found("sigstore.refused", file=bundle.file, actual=words),)
    return Result(verified=None, findings=told)


def _check_chain(bundle: SignedBundle, root: TrustRoot) -> Iterator[Finding]:
    """Older bundles may put certificates behind the signing one: only issuers that the root names, never its roots."""
    if not bundle.chain:
        return
    known = {raw for authority in root.authorities for raw in authority.chain}
    for n, raw in enumerate(bundle.chain, start=1):
        pointer = f"/verificationMaterial/x509CertificateChain/certificates/{n}"
        try:
            extra = x509.load_der_x509_certificate(raw)
            itself = extra.issuer == extra.subject
        except certificate.UNREADABLE as fault:
            yield found("sigstore.certificate-invalid", file=bundle.file, pointer=pointer, actual=str(fault)[:200])
            continue
        if itself or raw not in known:
            yield found(
                "sigstore.chain-not-allowed",
                file=bundle.file,
                pointer=pointer,
                expected="the signing certificate, and intermediate authorities of the trusted root",
                actual=extra.subject.rfc4514_string()[:200],
            )


def _check_entries(bundle: SignedBundle, root: TrustRoot) -> Iterator[Finding]:
    if not bundle.entries:
        where = "/verificationMaterial/tlogEntries"
        yield found("sigstore.log-entry-missing", file=bundle.file, pointer=where, expected="one log entry")
    yield from check_count(bundle)
    for entry in bundle.entries[:1]:
        yield from log.check_form(entry, root, file=bundle.file)


def _no_time(bundle: SignedBundle) -> Finding:
    return found(
        "sigstore.no-signed-time",
        file=bundle.file,
        pointer="/verificationMaterial",
        expected="a timestamp, or a log entry with the log's promise of its time",
    )


def _check_windows(
    bundle: SignedBundle, root: TrustRoot, facts: certificate.Facts, times: tuple[SignedTime, ...]
) -> Iterator[Finding]:
    for entry in bundle.entries[:1]:
        yield from log.check_window(entry, root, times, file=bundle.file)
    ct_log = root.ct_log(facts.log_id)
    if ct_log is None:
        yield found(
            "sigstore.ct-log-unknown",
            file=bundle.file,
            expected="a certificate log of the trusted root",
            actual=facts.log_id.hex(),
        )
    elif not ct_log.window.holds(facts.noted):
        yield found(
            "sigstore.ct-log-outside-window",
            file=bundle.file,
            expected=f"{ct_log.url} within {ct_log.window}",
            actual=facts.noted.isoformat().replace("+00:00", "Z"),
        )
    if times and not any(all(authority.window.holds(t.time) for t in times) for authority in root.authorities):
        yield found(
            "sigstore.authority-outside-window",
            file=bundle.file,
            expected="an authority of the trusted root within its window",
            actual=", ".join(t.time.isoformat().replace("+00:00", "Z") for t in times),
        )


def _check_signature(bundle: SignedBundle, facts: certificate.Facts, signed: Signed) -> Iterator[Finding]:
    """What the library leaves to us of entries that it no longer knows."""
    if not signature_holds(facts.key, bundle.content, signed.sha256):
        yield signature_finding(bundle)
    yield from check_body(bundle, facts.witnessed, signed.sha256)
