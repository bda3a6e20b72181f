"""Which names an archive may hold, one at a time and beside each other.

The rule: two names that some file system takes for one are a collision, here and not where the archive is unpacked.
Otherwise the second of them replaces the first on one machine and not on another, and what was verified is not what
lies there. Directories count: `Docs/a` and `docs/b` meet in one directory or in two. Names that a common file system
does not have, or has for something else, are refused for the same reason.
"""

from __future__ import annotations

import unicodedata

from mint2m_verify.finding import Finding, found
from mint2m_verify.statement import path_fault

#: What Windows reads as something else: a drive or a stream, wildcards, a redirection.
_WINDOWS_CHARACTERS = frozenset('<>:"|?*')

#: Devices of Windows, whatever the extension.
_WINDOWS_DEVICES = frozenset(
    {
        "con",
        "prn",
        "aux",
        "nul",
        *(f"{port}{number}" for port in ("com", "lpt") for number in "123456789\u00b9\u00b2\u00b3"),
    }
)

#: Characters that HFS+ leaves out when it compares names (Apple TN1150); git refuses `.git` with them, too.
_IGNORED = dict.fromkeys((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))


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
        fault = path_fault(path) or next(filter(None, map(_segment_fault, path.split("/"))), None)
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
                hidden = other.casefold() != place.casefold()  # it is not the case in which they differ
                id = "bundle.path-collision-unicode" if hidden else "bundle.path-collision-case"
                return found(id, file=path, actual=f"also {other!a}")
        return None


def _segment_fault(segment: str) -> str | None:
    """Why a name between two slashes is not the same name everywhere."""
    plain = _folded(segment)
    if plain in (".git", "git~1"):
        return "a .git directory, which git would obey"
    if segment.endswith((".", " ")):
        return "a dot or blank at the end, which Windows drops"
    if _WINDOWS_CHARACTERS & set(segment):
        return "a character that Windows reads as something else"
    if plain.split(".")[0].rstrip() in _WINDOWS_DEVICES:
        return "a device of Windows"
    return None


def _places(path: str) -> list[str]:
    """Each directory above `path`, outermost first, and `path` itself."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _folded(place: str) -> str:
    """One form for all spellings that differ in case, in composition or in what cannot be seen."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", place.translate(_IGNORED)).casefold())
