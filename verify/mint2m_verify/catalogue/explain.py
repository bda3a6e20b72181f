"""Findings of `mint2m explain` itself."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="explain.unknown",
        verdict=Verdict.BLOCKED,
        message="no finding has this id",
        explanation="Ids look like `tree.file-changed`; `mint2m explain --list` names all that this version knows.",
    ),
)
