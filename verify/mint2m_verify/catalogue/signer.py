"""Findings about whoever is to sign."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="signer.identity-invalid",
        verdict=Verdict.BLOCKED,
        message="the identity is not one that a certificate can carry",
        explanation=(
            "A private root issues certificates to a mail address (`someone@example.org`) or to a URI\n"
            "(`https://example.org/workflow`), with claims under the names that Fulcio gives them. Nothing was signed."
        ),
    ),
)
