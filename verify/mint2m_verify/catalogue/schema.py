"""Findings of JSON Schema validation and of document identity."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="schema.invalid",
        verdict=Verdict.FAILED,
        message="the document breaks its schema",
        explanation=(
            "A member is missing, unknown, of the wrong type or out of range; the pointer says where. Nothing that a schema does\n"
            "not know is ignored: a field such as `passed` has no place in evidence. See `mint2m schema show NAME`."
        ),
    ),
    Entry(
        id="schema.placeholder",
        verdict=Verdict.FAILED,
        message="a digest is a placeholder",
        explanation=(
            "An all-zero digest stands for a value that nobody filled in. It identifies nothing, so whatever it should have\n"
            "bound is unbound. Write the digest of the real bytes."
        ),
    ),
    Entry(
        id="schema.unknown",
        verdict=Verdict.FAILED,
        message="the document is of another type",
        explanation=(
            "The member `schema` is absent, or names another document type or a major version that this tool does not know.\n"
            "A newer tool may know it; `mint2m schema list` shows what this one reads."
        ),
    ),
)
