"""How a finding is told in one sentence, for formats that have room for no more."""

from __future__ import annotations

from mint2m_verify.finding import Finding
from mint2m_verify.render.escape import escape


def place(finding: Finding) -> str:
    """File, pointer and bytes of a finding, harmless and on one line; empty where it has none."""
    parts = [escape(part) for part in (finding.file, finding.pointer) if part]
    if finding.byte_range is not None:
        first, end = finding.byte_range
        parts.append(f"bytes {first:,} to {max(first, end - 1):,}")
    return " ".join(parts)


def sentence(finding: Finding) -> str:
    """What is wrong, what was expected and found, and what to do, harmless and on one line."""
    words = [escape(finding.message)]
    pair = (("expected", finding.expected), ("found", finding.actual))
    words += [f"{word} {escape(value)}" for word, value in pair if value is not None]
    if finding.stage is not None:
        words.append(f"stage {escape(finding.stage)}")
    if finding.hint is not None:
        words.append(escape(finding.hint))
    return "; ".join(words)
