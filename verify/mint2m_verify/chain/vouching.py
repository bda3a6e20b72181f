"""Whether what the auditor brought vouches for a statement of the chain.

The rule: the anchor answers for each statement alone. A key answers for what it signed; the digest of the last seal's
payload answers for everything before it, since each seal names its parent's payload; and nothing inside the evidence
answers for anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from mint2m_verify.anchor import Anchor, DigestAnchor, KeyAnchor, NoAnchor
from mint2m_verify.finding import Finding, found
from mint2m_verify.signing import key_id, verify_bytes
from mint2m_verify.statement import Envelope


def check_signed(envelope: Envelope, anchor: Anchor, *, file: str) -> Iterator[Finding]:
    """What `anchor` has against the signature of one statement; nothing where only the last seal counts."""
    if not isinstance(anchor, KeyAnchor):
        return
    mine = key_id(anchor.key)
    if verify_bytes(envelope.signed_bytes, envelope.signature, anchor.key):
        if envelope.hint != mine:
            yield found("signature.hint-mismatch", file=file, expected=mine, actual=envelope.hint)
    elif envelope.hint == mine:
        yield found("signature.invalid", file=file, expected=f"a signature by key {mine}")
    else:
        yield found("signature.key-mismatch", file=file, expected=f"key {mine}", actual=f"key {envelope.hint}")


def check_last(payload_sha256: str | None, anchor: Anchor, *, file: str) -> Iterator[Finding]:
    """What `anchor` has against the chain as a whole, of which this is the last seal's payload."""
    if isinstance(anchor, NoAnchor):
        yield found("trust.no-anchor")
    elif isinstance(anchor, DigestAnchor) and payload_sha256 != anchor.sha256:
        yield found("trust.digest-mismatch", file=file, expected=anchor.sha256, actual=payload_sha256)
