"""A rank's log in the run directory: when each phase began and ended, what libraries warned of, and what went wrong.

The rule: a log is for people and no check reads it, so nothing may depend on it; and it travels with the evidence, so
no secret of the rank's environment may stand in it. What an exception says can hold any of them.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mint2m_verify import layout

#: Environment variables that hold secrets, by their names; shorter values than this are words that occur anyway.
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
_LEAST = 6


def secrets_of(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Values that must not be written, with the names of their variables."""
    return {value: name for name, value in environment.items() if len(value) >= _LEAST and _SECRET_NAME.search(name)}


class _Redacting(logging.Formatter):
    """One record as text in UTC, without the environment's secrets, its traceback's lines included."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for value, name in secrets_of(os.environ).items():
            text = text.replace(value, f"[{name}]")
        return text


class _Appending(logging.Handler):
    """Opens its file for each line: a file that is held open keeps a disk from being unmounted or made read-only."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self._place = place
        self.setFormatter(_Redacting())

    def emit(self, record: logging.LogRecord) -> None:
        # A full disk is told by what has to be written; a log that cannot be is no fault, and no news on stderr.
        with suppress(OSError), self._place.open("a", encoding="utf-8") as stream:
            stream.write(self.format(record) + "\n")


class RankLog:
    """The log of one rank, begun where it starts and ended with its session."""

    def __init__(self, root: Path, rank: int) -> None:
        place = root / layout.rank_log(rank)
        place.parent.mkdir(exist_ok=True)
        self._handler = _Appending(place)
        self._logger = logging.getLogger("mint2m.rank")
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self._handler)
        logging.getLogger().addHandler(self._handler)  # what libraries say, from warnings on

    @contextmanager
    def around(self, phase: str) -> Iterator[None]:
        """Scope of one phase; whatever it raises is written down and raised."""
        begun = time.monotonic()
        self._logger.info("%s begins", phase)
        try:
            yield
        except BaseException:
            self._logger.exception("%s failed after %.3f s", phase, time.monotonic() - begun)
            raise
        self._logger.info("%s ended after %.3f s", phase, time.monotonic() - begun)

    def close(self) -> None:
        """Write nothing more; harmless twice."""
        for logger in (self._logger, logging.getLogger()):
            logger.removeHandler(self._handler)
        self._handler.close()
