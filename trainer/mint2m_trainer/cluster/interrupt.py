"""SIGINT and SIGTERM as a flag that the driver looks at: Ray's calls do not survive a handler that raises.

(In Ray 2.60 a handler that raises inside `ray.wait` surfaces as a `SystemError` of its Cython layer.)
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler: TypeAlias = Callable[[int, FrameType | None], None]


class Interrupted(BaseException):
    """The operator wants the run to end. Not an `Exception`: nothing on the way may take it for a fault of its own."""


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Scope in which SIGTERM raises `KeyboardInterrupt`, so that half-written files are removed on the way out."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Stop:
    """Set by the first signal; raised by whoever looks at a moment when raising is safe."""

    def __init__(self) -> None:
        self._name: str | None = None

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self._name is not None:
            raise Interrupted(self._name)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Scope in which the signals set the flag; afterwards whatever handled them before does again."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            self.listen()
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Take the signals; again after a library put a handler of its own in place."""
        for number in _SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._name = signal.Signals(number).name
