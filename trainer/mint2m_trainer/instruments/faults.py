"""What an instrument raises."""

from __future__ import annotations


class InstrumentError(RuntimeError):
    """An instrument was used wrongly, or saw what must not be; names the place and both sides."""
