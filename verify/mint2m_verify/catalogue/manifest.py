"""Findings about manifests that contradict themselves."""

from __future__ import annotations

from mint2m_verify.catalogue.entry import Entry
from mint2m_verify.finding import Verdict

ENTRIES = (
    Entry(
        id="manifest.path-invalid",
        verdict=Verdict.FAILED,
        message="a path in the manifest is not a safe relative path",
        explanation=(
            "Paths in a manifest are relative, without `..`, backslashes or control characters, and in Unicode normal form C.\n"
            "Another path could point outside the tree, or be two names for one file. Nothing was opened by it."
        ),
    ),
    Entry(
        id="manifest.not-sorted",
        verdict=Verdict.FAILED,
        message="the manifest's paths are not sorted and unique",
        explanation=(
            "Entries are in code point order of their paths and no path appears twice. With a repeated path two readers could\n"
            "take two different digests for the same file."
        ),
    ),
    Entry(
        id="manifest.chunks-invalid",
        verdict=Verdict.FAILED,
        message="a file's chunk digests do not fit its size",
        explanation=(
            "A file has one digest for each 64 MiB begun; a file of one chunk has its own digest there; an empty file has none.\n"
            "The manifest was not written by a program that follows the format, or was altered."
        ),
    ),
    Entry(
        id="manifest.count-mismatch",
        verdict=Verdict.FAILED,
        message="the manifest's totals are not those of its entries",
        explanation="`file_count` and `total_bytes` are counted again from the entries and differ. The manifest was altered.",
    ),
    Entry(
        id="manifest.root-mismatch",
        verdict=Verdict.FAILED,
        message="the manifest's root digest is not that of its entries",
        explanation=(
            "The root digest is computed again over all entries (paths, sizes, executable bits, digests) and differs. An entry or\n"
            "the root was altered; nothing that refers to the tree by its root refers to these files."
        ),
    ),
)
