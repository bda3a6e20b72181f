"""Findings about published evidence."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="evidence.nothing-published",
        verdict=Verdict.FAILED,
        message="nothing is published here",
        explanation="The folder holds no claim. An empty set proves nothing, and a folder that lost its claims would otherwise look clean.",
    ),
    Entry(
        id="evidence.claim-name",
        verdict=Verdict.FAILED,
        message="the claim is filed under another name",
        explanation="A claim's file is called by its `name`, so that two files cannot tell one claim twice and differently.",
    ),
    Entry(
        id="evidence.figure-repeated",
        verdict=Verdict.FAILED,
        message="a claim reports one figure twice",
        explanation="Two values under one name would let a reader take the one that suits.",
    ),
    Entry(
        id="evidence.figure-unknown",
        verdict=Verdict.FAILED,
        message="a bound is held against a figure that the claim does not report",
        explanation="A published bound without its number can neither be met nor missed; leaving it out would hide that it is unmet.",
    ),
)
