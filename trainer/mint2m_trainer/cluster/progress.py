"""What a run tells whoever watches it, as it happens. Nothing here decides anything."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Told about stages and about work inside a stage; must return at once and never raise."""

    def stage(self, name: str, text: str) -> None:
        """A stage is over; `text` is the line for a person."""

    def advance(self, name: str, done: int, total: int) -> None:
        """Within stage `name`, `done` of `total` units are done."""


class Silent:
    """Watches nothing: for callers that only want the result."""

    def stage(self, name: str, text: str) -> None:
        """Ignore the line."""

    def advance(self, name: str, done: int, total: int) -> None:
        """Ignore the count."""
