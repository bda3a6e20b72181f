"""Findings about a signature and the key that made it."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="signature.invalid",
        verdict=Verdict.FAILED,
        message="the signature does not cover these bytes",
        explanation=(
            "The bundle names your key, but the signature in it is not that key's over this payload. The payload, its type or\n"
            "the signature was changed after signing, or somebody put your key's id on a signature of their own.\n"
            "Nothing in the payload is authentic. Ask the operator for the evidence again, through another channel."
        ),
    ),
    Entry(
        id="signature.key-mismatch",
        verdict=Verdict.UNTRUSTED,
        message="signed with another key than yours",
        explanation=(
            "The evidence is signed, but not by the key you gave. It may be genuine and somebody else's, or it may have been\n"
            "altered and signed again: from here the two look the same. Findings beside this one are about the content only.\n"
            "If the operator changed keys, get the new public key from the operator directly, never out of the evidence."
        ),
        hint="check which public key the operator gave you",
    ),
    Entry(
        id="signature.hint-mismatch",
        verdict=Verdict.FAILED,
        message="the bundle's key hint is not that of the key that signed",
        explanation=(
            "The signature is your key's, but the bundle says it was made by another one. Signers of these bundles write the\n"
            "hint themselves, so it was changed afterwards; bundle bytes outside the payload are not covered by the signature."
        ),
    ),
    Entry(
        id="signature.not-by-key",
        verdict=Verdict.UNTRUSTED,
        message="the bundle is not signed with a key",
        explanation=(
            "The bundle carries a certificate: it was signed without a long-lived key, under an identity. A key cannot verify\n"
            "it. Such evidence needs a policy that names the identity, and a trusted root."
        ),
    ),
)
