"""The files of a directory as a model signature sees them: all regular files but those that are left out.

The rule: what is left out is named to whoever asks, file by file. A signature over most of a directory must not read
like one over all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mint2m_verify.documents import TreeEntry
from mint2m_verify.elsewhere import HashedElsewhere
from mint2m_verify.finding import Finding
from mint2m_verify.hash_journal import HashJournal
from mint2m_verify.model_signing.form import is_ignored
from mint2m_verify.walk import Hashing, Progress, ReadFile, read_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Files that count, files that were left out, and what is neither: links, devices, names that cannot be told."""

    files: tuple[ReadFile, ...]
    skipped: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def entries(self) -> tuple[TreeEntry, ...]:
        return tuple(file.entry for file in self.files)

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)


def read_model(
    root: Path,
    *,
    ignored: Iterable[str],
    progress: Progress | None = None,
    journal: HashJournal | None = None,
    elsewhere: Mapping[str, HashedElsewhere] | None = None,
) -> ModelFiles:
    """Everything below `root`, each file read once; raises as `walk.read_tree`. Such a signature knows no chunks."""
    left_out = tuple(ignored)
    hashing = Hashing(chunks=False, journal=journal, elsewhere=elsewhere or {})
    snapshot = read_tree(root, keep=lambda _: 0, progress=progress, hashing=hashing)
    return ModelFiles(
        files=tuple(file for file in snapshot.files if not is_ignored(file.path, left_out)),
        skipped=tuple(file.path for file in snapshot.files if is_ignored(file.path, left_out)),
        findings=snapshot.findings,
    )


def place_within(root: Path, file: Path) -> str | None:
    """The path of `file` relative to `root`, where it lies below it."""
    resolved, base = file.resolve(), root.resolve()
    return resolved.relative_to(base).as_posix() if resolved.is_relative_to(base) else None
