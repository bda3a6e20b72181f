"""Every time that somebody else signed over a bundle's signature: by timestamp authorities, and by a log's promise.

The rule: a time counts only with its signer. Timestamps are verified here; a promise is taken as it stands, and whoever
takes it verifies it with the entry. The reader of tokens is loaded only where there is one.
"""

from __future__ import annotations

from mint2m_verify.finding import Finding
from mint2m_verify.sigstore_bundle import log
from mint2m_verify.sigstore_bundle.model import SignedBundle, SignedTime
from mint2m_verify.sigstore_bundle.root import TrustRoot


def signed_times(bundle: SignedBundle, root: TrustRoot) -> tuple[tuple[SignedTime, ...], tuple[Finding, ...]]:
    """The times of a bundle, timestamps first, and why the others are none."""
    times: list[SignedTime] = []
    faults: list[Finding] = []
    if bundle.tokens:
        from mint2m_verify.sigstore_bundle.timestamps import verified_times

        for told in verified_times(bundle.tokens, bundle.signature, root, file=bundle.file):
            if isinstance(told, SignedTime):
                times.append(told)
            else:
                faults.append(told)
    promised = log.integrated_time(bundle.entries[0]) if bundle.entries else None
    if promised is not None:
        times.append(promised)
    return tuple(times), tuple(faults)
