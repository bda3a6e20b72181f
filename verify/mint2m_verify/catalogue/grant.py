"""Findings about authorization grants."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="grant.invalid",
        verdict=Verdict.FAILED,
        message="this is no authorization grant",
        explanation=(
            "A grant is a statement of type urn:mint2m:predicate:grant:v1 over one file, with the members of mint2m.grant/v1 as its\n"
            "predicate and nothing more. `mint2m sign grant` makes one."
        ),
    ),
    Entry(
        id="grant.for-another",
        verdict=Verdict.FAILED,
        message="the authorization grant is for something else",
        explanation=(
            "A grant names the deployment or the validation plan that it is for by the SHA-256 of its bytes. This one names another:\n"
            "it was given for another run and laid beside this one, or the file was changed after it was given."
        ),
    ),
    Entry(
        id="grant.out-of-term",
        verdict=Verdict.UNTRUSTED,
        message="the authorization grant does not cover this time",
        explanation=(
            "The verified time of the run's signature, or without one the evaluation time, lies outside the term that the grantor set.\n"
            "A run that cannot show when it was signed could have been made today, whatever it says of its own time."
        ),
    ),
)
