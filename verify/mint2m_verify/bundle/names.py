"""Which names an archive may hold, one at a time and beside each other.

The rule: two names that some file system takes for one are a collision, here and not where the archive is unpacked.
Otherwise the second of them replaces the first on one machine and not on another, and what was verified is not what
lies there. Directories count: `Docs/a` and `docs/b` meet in one directory or in two.
"""

from __future__ import annotations

import unicodedata

from mint2m_verify.finding import Finding, found
from mint2m_verify.statement import path_fault


class Names:
    """The names of one archive so far."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._directories: set[str] = set()
        self._spellings: dict[str, str] = {}

    def add(self, path: str) -> Finding | None:
        """Take `path` in; the first thing that is wrong with it, alone or beside those taken in before."""
        fault = self._alone(path) or self._beside(path)
        if fault is None:
            self._files.add(path)
            for place in _places(path):
                self._spellings.setdefault(_folded(place), place)
                if place != path:
                    self._directories.add(place)
        return fault

    def _alone(self, path: str) -> Finding | None:
        if path.startswith("/"):
            return found("bundle.path-absolute", file=path)
        if ".." in path.split("/"):
            return found("bundle.path-outside", file=path)
        composed = unicodedata.normalize("NFC", path)
        if composed != path and composed in self._files:
            return found("bundle.path-collision-unicode", file=path, actual=f"also {composed!a}")
        fault = path_fault(path)
        if fault is None and any(_folded(part) == ".git" for part in path.split("/")):
            fault = "a .git directory, which git would obey"
        return None if fault is None else found("bundle.path-invalid", file=path, actual=fault)

    def _beside(self, path: str) -> Finding | None:
        if path in self._files:
            return found("bundle.member-duplicate", file=path)
        if path in self._directories:
            return found("bundle.path-conflict", file=path, actual="a file and a directory")
        for place in _places(path):
            if place != path and place in self._files:
                return found("bundle.path-conflict", file=path, actual=f"{place} is a file")
            other = self._spellings.get(_folded(place), place)
            if other != place:
                same = unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", place)
                id = "bundle.path-collision-unicode" if same else "bundle.path-collision-case"
                return found(id, file=path, actual=f"also {other!a}")
        return None


def _places(path: str) -> list[str]:
    """Each directory above `path`, outermost first, and `path` itself."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _folded(place: str) -> str:
    """One form for all spellings that differ in case or in composition only."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", place).casefold())
