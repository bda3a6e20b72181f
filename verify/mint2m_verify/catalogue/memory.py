"""Findings about the memory that a run would need."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="memory.does-not-fit",
        verdict=Verdict.BLOCKED,
        message="the run needs more memory than a rank has",
        explanation=(
            "The byte plan by category is computed from the model's numbers and the profile, before anything is allocated.\n"
            "Pages, gradient pages and decisions grow with the prompt and shrink with more context-parallel ranks;\n"
            "activations shrink with smaller chunks. `decisions: rescore` keeps no ids and scores twice.\n"
            "`mint2m plan` prints the plan."
        ),
    ),
    Entry(
        id="memory.model-numbers",
        verdict=Verdict.BLOCKED,
        message="the model's config.json lacks a number that the byte plan needs",
        explanation=(
            "The plan needs the sizes of a GLM-MoE-DSA model: layers, widths, heads, ranks, experts and the indexer's\n"
            "numbers, each a positive integer. Without them nothing can be said about memory, so nothing starts."
        ),
    ),
)
