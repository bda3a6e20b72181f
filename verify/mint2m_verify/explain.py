"""`mint2m explain ID`: what a finding means, what follows from it and what to do."""

from __future__ import annotations

import difflib

from mint2m_verify.catalogue import entries
from mint2m_verify.finding import FindingError, found


def explain(id: str) -> str:
    """The page of finding `id`; raises `FindingError` (`explain.unknown`) for an id that does not exist."""
    known = entries()
    if id not in known:
        close = difflib.get_close_matches(id, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "mint2m explain --list names all"
        raise FindingError(found("explain.unknown", actual=id, hint=hint))
    entry = known[id]
    parts = [
        f"{entry.id}   {entry.message}",
        f"exit {int(entry.verdict)} ({entry.verdict.word})",
        "",
        entry.explanation,
    ]
    if entry.hint is not None:
        parts += ["", f"Hint: {entry.hint}"]
    return "\n".join(parts) + "\n"


def listing() -> str:
    """Every finding id with its exit code and message, sorted."""
    known = entries()
    width = max(len(id) for id in known)
    return "".join(
        f"{id.ljust(width)}  {int(entry.verdict):>2}  {entry.message}\n" for id, entry in sorted(known.items())
    )
