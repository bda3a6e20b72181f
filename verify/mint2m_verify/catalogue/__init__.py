"""Every finding id, with its verdict, its one-sentence message and what `mint2m explain` says of it.

One module per noun of the ids. An id is stable across releases; a finding without an entry here cannot be made.
"""

from __future__ import annotations

import importlib
from functools import cache

from mint2m_verify.catalogue.entry import Entry

#: Module names, in the order in which `mint2m explain --list` shows them.
MODULES = (
    "json",
    "schema",
    "file",
    "tool",
    "key",
    "signer",
    "model_signing",
    "signature",
    "sigstore",
    "trust",
    "policy",
    "grant",
    "seal",
    "tree",
    "manifest",
    "binding",
    "session",
    "journal",
    "numbers",
    "receipt",
    "explain",
    "fixture",
    "rollout",
    "training",
    "parity",
    "diff",
    "evidence",
    "memory",
    "prerequisite",
    "runtime",
    "execution",
    "ownership",
    "runlog",
    "validation_plan",
    "chain",
    "stage",
    "replay",
    "bundle",
    "release",
)


@cache
def entries() -> dict[str, Entry]:
    """All entries by id; two with one id are a bug and raise `ValueError`."""
    known: dict[str, Entry] = {}
    for module in MODULES:
        for item in importlib.import_module(f"{__name__}.{module}").ENTRIES:
            if item.id in known:
                raise ValueError(f"finding id {item.id} is defined twice")
            known[item.id] = item
    return known


def entry(id: str) -> Entry:
    """The entry of `id`; raises `KeyError` for an id that no module defines."""
    return entries()[id]


__all__ = ["MODULES", "Entry", "entries", "entry"]
