"""Collects what checks find, in order, and tells causes from consequences.

The rule: a check that reads a damaged file says so, but the damage is the cause. Findings about a file's content
follow from an earlier finding that the file is not the one that was committed; a reader then sees what broke, not
everything that broke because of it. And a requirement whose check never ran is no acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias, TypeVar

from mint2m_verify.finding import Finding, Requirement, Standing, found

T = TypeVar("T")

#: A check yields what is wrong and returns what it found, in words for the report's table.
Check: TypeAlias = Generator[Finding, None, str]

#: Findings of one id that are kept. A directory of a hundred thousand strange files is told by fewer.
MOST_OF_ONE_ID = 1000

#: Why a file cannot be what was committed, if that is known.
Damage: TypeAlias = Callable[[str], Finding | None]

#: Findings that say a file is not the committed one, or not there: the content's faults follow from them.
_DAMAGE = frozenset(
    {
        "tree.file-changed",
        "tree.file-missing",
        "tree.file-renamed",
        "tree.symlink",
        "tree.special-file",
        "tree.name-invalid",
        "file.too-large",
        "file.unreadable",
        "tree.changed-while-read",
    }
)

#: Findings that say that something is not there: they follow from a run that did not come through.
_ABSENCE = frozenset({"tree.file-missing", "seal.missing", "file.missing"})


class Findings:
    """The findings and requirement rows of one verification, in the order of its argument."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._rows: list[Requirement] = []
        self._damage: dict[str, Finding] = {}
        self._unread: dict[str, Finding] = {}
        self._unreached: list[str] = []
        self._by_place: dict[tuple[str, str | None], list[Finding]] = {}
        self._counts: dict[str, int] = {}
        self._why_absent: Finding | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that was kept, and for each id with too many of them how many more there are."""
        more = (
            found("verify.more-findings", actual=f"{count - MOST_OF_ONE_ID} more of {id}")
            for id, count in self._counts.items()
            if count > MOST_OF_ONE_ID
        )
        return (*self._found, *more)

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        return tuple(self._rows)

    @property
    def unreached(self) -> tuple[str, ...]:
        """Requirements that could not be judged."""
        return tuple(self._unreached)

    def damage(self, path: str) -> Finding | None:
        """Why the file at `path` cannot be what was committed, if it is known."""
        return self._damage.get(path)

    def because(self, fault: Finding) -> None:
        """Keep a finding that explains whatever will be found absent."""
        self._why_absent = self._keep(fault, ())

    def add(self, faults: Iterable[Finding], *, sources: Sequence[str] = ()) -> None:
        """Keep findings; one without a cause of its own follows from damage to its file or to a source."""
        for fault in faults:
            self._keep(fault, sources)

    def unreadable(self, path: str, faults: Iterable[Finding]) -> None:
        """Keep findings that stop the file at `path` from being read as its type."""
        for fault in faults:
            kept = self._keep(fault, (path,))
            self._unread.setdefault(path, kept)

    def judge(
        self, required: str, standing: Standing, check: Check, *, sources: Sequence[str] = (), shown: str | None = None
    ) -> bool:
        """Run one check to its end, keep what it finds and add its row; whether it found nothing.

        Args:
            required: the row's first column.
            standing: of the row where nothing contradicts it.
            sources: files whose damage explains what the check finds.
            shown: the row's second column, where the check's own words are not wanted.
        """
        count = 0
        first: Finding | None = None
        while True:
            try:
                fault = next(check)
            except StopIteration as end:
                words: str = end.value
                break
            kept = self._keep(fault, sources)
            first = first or kept
            count += 1
        if first is None:
            self._rows.append(Requirement(required=required, found=shown or words, standing=standing))
            return True
        words = first.id if count == 1 else f"{first.id} and {count - 1} more"
        self._rows.append(Requirement(required=required, found=words, standing=Standing.FAILED))
        return False

    def not_reached(self, required: str, needs: Sequence[str]) -> None:
        """A requirement that could not be judged since a file it needs could not be read."""
        missing = [path for path in needs if path in self._unread or path in self._damage]
        words = f"not reached: {', '.join(missing or needs)}"
        self._unreached.append(required)
        self._rows.append(Requirement(required=required, found=words, standing=Standing.UNVERIFIABLE))

    def _keep(self, fault: Finding, sources: Sequence[str]) -> Finding:
        if fault.cause is None and fault.id in _ABSENCE:
            fault = fault.following(self._why_absent)
        if fault.cause is None and fault.id not in _DAMAGE:
            paths = ([fault.file] if fault.file is not None else []) + list(sources)
            fault = fault.following(next((self._damage[path] for path in paths if path in self._damage), None))
        for link in _lineage(fault):
            same = self._by_place.setdefault((link.id, link.file), [])
            if any(link is kept or link == kept for kept in same):
                continue
            self._counts[link.id] = self._counts.get(link.id, 0) + 1
            if self._counts[link.id] > MOST_OF_ONE_ID:
                continue
            same.append(link)
            self._found.append(link)
            if link.id in _DAMAGE and link.file is not None:
                self._damage.setdefault(link.file, link)
        return fault


def drain(check: Generator[Finding, None, T]) -> tuple[tuple[Finding, ...], T]:
    """All that a check finds, and what it returns, for whoever needs the answer before the report."""
    faults: list[Finding] = []
    while True:
        try:
            faults.append(next(check))
        except StopIteration as end:
            answer: T = end.value
            return tuple(faults), answer


def _lineage(fault: Finding) -> list[Finding]:
    chain = [fault]
    while chain[0].cause is not None:
        chain.insert(0, chain[0].cause)
    return chain
