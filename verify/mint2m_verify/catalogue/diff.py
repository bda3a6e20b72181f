"""Findings about two runs that are compared with each other."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="diff.input",
        verdict=Verdict.FAILED,
        message="the two runs did not start from the same",
        explanation=(
            "A member of the profile, the model manifest, the fixture or the rollout differs, so the runs computed different\n"
            "things and their numbers need not agree. `expected` is the first run's value, `found` the second's."
        ),
    ),
)
