"""Options that say how a verification hashes: what of an earlier pass counts, and how many digests of a large file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from mint2m_verify.finding import FindingError, found

if TYPE_CHECKING:
    from mint2m_verify.hash_journal import HashJournal

Journal: TypeAlias = Annotated[
    Path | None,
    typer.Option("--hash-journal", metavar="FILE", help="Keep digests here, and go on where a pass was interrupted."),
]
UseCached: TypeAlias = Annotated[
    bool, typer.Option("--use-cached", help="Take the journal's digests of files that have not changed since.")
]
WholeDigests: TypeAlias = Annotated[
    bool, typer.Option("--whole-digests", help="Hash large files as a whole, too, not only by committed chunks.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehashing:
    """What of an earlier pass counts, and how many digests a large file gets."""

    journal: Journal = None
    use_cached: UseCached = False
    whole_digests: WholeDigests = False

    @contextmanager
    def kept(self, root: Path) -> Iterator[HashJournal | None]:
        """The journal that the options name; its pass is over when the work ends by itself.

        Raises:
            FindingError: `usage.invalid` for --use-cached without a journal, or as `open_journal`.
        """
        if self.journal is None:
            if self.use_cached:
                raise FindingError(found("usage.invalid", expected="--hash-journal FILE with --use-cached"))
            yield None
            return
        from mint2m_verify.hash_journal import open_journal

        with open_journal(self.journal, root=root, use_cached=self.use_cached) as journal:
            yield journal
            journal.finish()
