"""Files that the caller names on the command line, as against files that lie in evidence.

The rule: such a path may be a link, since the caller chose it, and where it leads nowhere the caller is told so
(exit 2); no missing argument becomes a verdict on evidence.
"""

from __future__ import annotations

from pathlib import Path

from mint2m_verify.files import DOCUMENT_LIMIT, read_once
from mint2m_verify.finding import FindingError, found


def read_named(path: Path, *, name: str | None = None, limit: int = DOCUMENT_LIMIT) -> bytes:
    """All bytes of the file at `path`; `name` is what findings call it, the path where it is None.

    Raises:
        FindingError: `input.missing`, or `file.*` as `read_once`.
    """
    return read_once(resolve_named(path), name=str(path) if name is None else name, limit=limit)


def resolve_named(path: Path) -> Path:
    """Where `path` leads; raises `FindingError` (`input.missing`) where that is nowhere."""
    resolved = path.resolve()
    if not resolved.exists():
        raise FindingError(found("input.missing", file=str(path)))
    return resolved
